"""How fast the batched executor is: against Triton's own interpreter, and as the number of tokens grows.

    python benchmarks/executor.py against-stock            # 4,096 tokens, about three minutes
    python benchmarks/executor.py scaling                  # 4k to 64k tokens

One head, K = V = 64, float32, a cold pass with the final state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from math import log
from statistics import linear_regression

import torch
import typer
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from fla.ops.kda import chunk_kda
from mamba_replay_check.kernels.executor.scope import Executor, executing
from rich.console import Console
from rich.table import Table
from torch.nn.functional import normalize

OPS = {"GDN": chunk_gated_delta_rule, "KDA": chunk_kda}
DIM = 64

app = typer.Typer(add_completion=False, help=__doc__)
console = Console()


def call(name: str, tokens: int) -> Callable[[], tuple]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, tokens, 1, DIM) for _ in range(3))
    g = -0.1 * torch.rand((1, tokens, 1, DIM) if name == "KDA" else (1, tokens, 1))
    beta = torch.rand(1, tokens, 1)
    return lambda: OPS[name](q, normalize(k, dim=-1), v, g, beta, output_final_state=True)


def seconds(executor: Executor, op: Callable[[], tuple]) -> tuple[float, tuple]:
    with executing(executor), torch.inference_mode():
        start = time.perf_counter()
        result = op()
        return time.perf_counter() - start, result


@app.command()
def against_stock(tokens: int = 4096) -> None:
    """Run both interpreters on the same input, and compare their results too."""
    table = Table("op", "tokens", "stock s", "batched s", "ratio", "same bits")
    for name in OPS:
        op = call(name, tokens)
        seconds(Executor.BATCHED, call(name, 128))  # builds the kernels' functions
        batched, ours = seconds(Executor.BATCHED, op)
        stock, theirs = seconds(Executor.STOCK, op)
        same = all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        table.add_row(name, f"{tokens:,}", f"{stock:.1f}", f"{batched:.2f}", f"{stock / batched:.0f}", str(same))
    console.print(table)


@app.command()
def scaling(repeats: int = 3) -> None:
    """Time per token, the best of some repeats. An exponent of 1: time grows with the tokens and no faster."""
    lengths = [1 << bits for bits in range(12, 17)]
    table = Table("op", "tokens", "seconds", "us per token", "times the one before")
    for name in OPS:
        seconds(Executor.BATCHED, call(name, 128))
        taken = [min(seconds(Executor.BATCHED, call(name, n))[0] for _ in range(repeats)) for n in lengths]
        steps = ["", *(f"{after / before:.2f}" for before, after in pairwise(taken))]
        for n, s, step in zip(lengths, taken, steps, strict=True):
            table.add_row(name, f"{n:,}", f"{s:.2f}", f"{s / n * 1e6:.0f}", step)
        slope, _ = linear_regression([log(n) for n in lengths], [log(s) for s in taken])
        table.add_section()
        table.add_row(name, "exponent", f"{slope:.2f}", "", "", end_section=True)
    console.print(table)


if __name__ == "__main__":
    app()

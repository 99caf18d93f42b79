"""A small workload: one donor and one resuming prompt through the modelled engine, on a 256-token tree page.

The model is qwen3-next unless a test asks for the other: its kernels take a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from mamba_replay_check.checker.cells import Cell, CellResult
from mamba_replay_check.checker.check import Workload, check
from mamba_replay_check.checker.events import Checked
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines.base import Engine
from mamba_replay_check.engines.catalog import create
from mamba_replay_check.kernels.backend import choose_backend
from mamba_replay_check.kernels.presets import PRESETS
from mamba_replay_check.kernels.stack import Stack
from mamba_replay_check.scenarios.prompt import Prompt
from mamba_replay_check.scenarios.tokens import seeded_stream

GEOMETRY = Geometry(chunk=64, page=64, dcp=4, interval=256)
PROMPT = Prompt((512, 400), next_turn=70)

MakeEngine = Callable[[Cell], Engine]


@cache
def stack(model: str = "qwen3-next", dtype: torch.dtype = torch.float32, seed: int = 0) -> Stack:
    """Building weights takes a moment; tests share them."""
    return Stack(PRESETS[model], 64, seed, dtype, choose_backend("cpu", "batched"))


def stream(length: int, seed: int = 0) -> list[int]:
    """The first tokens of a seeded stream."""
    return seeded_stream(seed, length, 100_000).tolist()


def modelled(release: str = "0.5.23", guard: bool = False) -> MakeEngine:
    """The modelled engine of a release, new for every cell."""
    return lambda cell: create(f"model:sglang-{release}", cell.geometry, guard)


def results_of(
    cells: list[Cell],
    engine: MakeEngine,
    *,
    share: bool = True,
    model: str = "qwen3-next",
    dtype: torch.dtype = torch.float32,
    tokens: list[int] | None = None,
) -> list[CellResult]:
    """Check the cells and return their results in the order of the cells."""
    longest = max(cell.prompt.longest for cell in cells)
    streams = {"seeded": tokens or stream(longest)}
    work = Workload(cells, streams, engine, lambda _chunk: stack(model, dtype), share)
    # On a stack of its own: CPython 3.11 keeps frames in pieces of 16 KiB, and when a hot loop's calls happen to cross
    # from one piece to the next, each maps and unmaps memory. As deep as pytest calls, that took most of the time.
    with ThreadPoolExecutor(1) as thread:
        events = thread.submit(lambda: list(check(work))).result()
    found = {id(e.result.cell): e.result for e in events if isinstance(e, Checked)}
    return [found[id(cell)] for cell in cells]


def result_of(engine: MakeEngine, prompt: Prompt = PROMPT, geometry: Geometry = GEOMETRY, **how: object) -> CellResult:
    """Check one cell."""
    return results_of([Cell(geometry, prompt, "seeded")], engine, **how)[0]


@pytest.fixture(scope="session")
def clean() -> CellResult:
    """The clean twin of every planted fault: the newest rules on the same prompt."""
    return result_of(modelled())

"""Entering an executor and leaving it: nothing of Triton, and nothing of a kernel's module, may be left changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from fla.modules.norm.l2norm import l2norm
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from mamba_replay_check.kernels.executor.errors import UnsupportedError
from mamba_replay_check.kernels.executor.scope import Executor, executing
from threadpoolctl import threadpool_info
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

INTERPRETED = [Executor.BATCHED, Executor.STOCK]


@triton.jit
def double_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) * 2 + tl.sum(tl.load(x + i)) * 0)


@triton.autotune(configs=[triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8})], key=["n"])
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * BLOCK, mask=i < n)


@triton.jit
def failing_kernel(x):
    tl.static_assert(False, "on purpose")


def double() -> torch.Tensor:
    x = torch.arange(8.0)
    out = torch.empty_like(x)
    double_kernel[(1,)](x, out, BLOCK=8)
    return out


def surroundings() -> dict[str, dict[str, object]]:
    owners = [
        JITFunction,
        Autotuner,
        InterpretedFunction,
        interpreter.FunctionRewriter,
        interpreter,
        tl,
        tl.core,
        tl.math,
        tl.standard,
        tl.tensor,
        tl.dtype,
        tl.block_type,
        tl.core.tensor_descriptor_base,
        sys.modules["fla.ops.gated_delta_rule.chunk_fwd"],
        sys.modules["fla.ops.common.chunk_delta_h"],
        sys.modules["fla.ops.utils.op"],
        sys.modules["fla.modules.norm.l2norm"],
        sys.modules[__name__],
    ]
    return {owner.__name__: dict(vars(owner)) for owner in owners}


def assert_untouched(before: dict[str, dict[str, object]]) -> None:
    for owner, attributes in surroundings().items():
        assert attributes.keys() == before[owner].keys(), owner
        changed = [name for name, value in attributes.items() if value is not before[owner][name]]
        assert not changed, f"{owner}: {changed}"


def run_fla() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 10, 1, 64)
    chunk_gated_delta_rule(x, l2norm(x), x, -torch.rand(1, 10, 1), torch.rand(1, 10, 1), use_qk_l2norm_in_kernel=True)


def run_failing() -> None:
    with pytest.raises((AssertionError, interpreter.InterpreterError), match="on purpose"):
        failing_kernel[(1,)](torch.zeros(1))


@pytest.mark.parametrize("work", [double, run_fla, run_failing], ids=lambda work: work.__name__)
@pytest.mark.parametrize("executor", INTERPRETED)
def test_everything_is_put_back(executor: Executor, work: Callable[[], object]) -> None:
    before = surroundings()
    with executing(executor):
        work()
        assert JITFunction.run is not before["JITFunction"]["run"]
    assert_untouched(before)


@pytest.mark.parametrize("executor", INTERPRETED)
def test_everything_is_put_back_after_an_exception(executor: Executor) -> None:
    before = surroundings()
    with pytest.raises(KeyboardInterrupt), executing(executor):
        double()
        raise KeyboardInterrupt
    assert_untouched(before)


@pytest.mark.parametrize("inner", INTERPRETED)
@pytest.mark.parametrize("outer", INTERPRETED)
def test_blocks_nest(outer: Executor, inner: Executor) -> None:
    before = surroundings()
    with executing(outer):
        first = double()
        within = surroundings()
        with executing(inner):
            second = double()
        assert_untouched(within)
        third = double()
    assert_untouched(before)
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    assert first.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_the_innermost_block_counts() -> None:
    with executing(Executor.BATCHED) as launcher:
        launcher.counts.clear()
        with executing(Executor.STOCK):
            double()
            assert not launcher.counts
            with executing(Executor.BATCHED):
                double()
    assert launcher.counts["double_kernel"].launches == 1


def test_the_compiled_executor_changes_nothing() -> None:
    before = surroundings()
    with executing(Executor.COMPILED):
        assert_untouched(before)


@pytest.mark.parametrize("executor", INTERPRETED)
def test_the_autotuner_takes_its_first_config_and_keeps_no_tensors(executor: Executor) -> None:
    x, out = torch.ones(6), torch.empty(6)
    with executing(executor):
        tuned_kernel[lambda meta: (triton.cdiv(6, meta["BLOCK"]),)](x, out, 6)
    assert out.tolist() == [4.0] * 6
    assert tuned_kernel.nargs is None


def test_bfloat16_is_refused_by_the_stock_interpreter() -> None:
    x = torch.ones(8).bfloat16()
    with executing(Executor.STOCK), pytest.raises(UnsupportedError, match="bfloat16"):
        double_kernel[(1,)](x, x.clone(), BLOCK=8)


def test_a_tensor_elsewhere_is_refused_by_name() -> None:
    with executing(Executor.BATCHED), pytest.raises(UnsupportedError, match="not on meta"):
        double_kernel[(1,)](torch.ones(8, device="meta"), torch.ones(8), BLOCK=8)


@pytest.mark.parametrize("executor", INTERPRETED)
def test_matrix_products_use_one_thread(executor: Executor) -> None:
    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["internal_api"] == "openblas"]

    before = threads()
    with executing(executor):
        assert set(threads()) <= {1}
    assert threads() == before


def test_a_warmup_launch_runs_nothing() -> None:
    out = torch.zeros(8)
    with executing(Executor.BATCHED):
        double_kernel.warmup(torch.ones(8), out, BLOCK=8, grid=(1,))
    assert not out.any()


def in_a_new_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_patches_nothing() -> None:
    code = """
import triton.language as tl, triton.language.core, triton.language.math
from triton.runtime import interpreter, autotuner, jit
owners = [tl, tl.core, tl.math, tl.tensor, tl.dtype, interpreter, interpreter.InterpretedFunction,
          interpreter.FunctionRewriter, autotuner.Autotuner, jit.JITFunction]
before = [dict(vars(o)) for o in owners]
from mamba_replay_check.kernels.executor import scope
bookkeeping = {"__annotations__", "__slotnames__"}  # which Python makes when it is first asked for
print([n for o, b in zip(owners, before) for n, v in vars(o).items() if b.get(n) is not v and n not in bookkeeping])
"""
    assert in_a_new_process(code) == "[]"


def test_with_triton_interpret_set() -> None:
    """TRITON_INTERPRET=1 turns every kernel into an InterpretedFunction at import; both executors must take those."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch, test_scope as t
before = t.surroundings()
results = []
for executor in t.INTERPRETED:
    with t.executing(executor):
        results.append(t.double())
        t.run_fla()
    t.assert_untouched(before)
assert isinstance(t.double_kernel, t.InterpretedFunction)
assert torch.equal(*results)
print(results[0].tolist())
"""
    assert in_a_new_process(code, TRITON_INTERPRET="1") == "[0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]"

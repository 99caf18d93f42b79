"""Random small kernels: whatever Triton's interpreter computes, the batched executor computes to the bit."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

HEADER = "import triton\nimport triton.language as tl\n"
number = itertools.count()


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    """An expression over rows [A, 1], columns [1, B], blocks [A, B], scalars and constants."""
    if depth == 0 or draw(st.booleans()):
        leaves = ["row", "column", "block", "other", "pid", "n", "1.5", "-2", "0.25", "index_row", "index_column"]
        return draw(st.sampled_from(leaves))
    a, b = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    form = draw(
        st.sampled_from(
            [
                "({a} + {b})",
                "({a} - {b})",
                "({a} * {b})",
                "tl.where({a} > {b}, {b}, {a})",
                "tl.minimum({a} + 0.0, {b} + 0.0)",
                "tl.abs(block + {a})",
                "tl.exp(-tl.abs(block + {a}))",
                "({a} / (tl.abs({b} + block) + 1.0))",
                "tl.sum(block + {a}, axis=1)[:, None]",
                "tl.sum(block * {a}, axis=0)[None, :]",
                "tl.max(block + {a}, axis=0)[None, :]",
                "tl.cumsum(block + {a}, axis=1)",
                "tl.dot(block + {a}, tl.trans(other + {b}))[:, :]",
                "({a} if pid > 1 else {b})",
            ]
        )
    )
    return form.format(a=a, b=b)


def kernel_of(expression: str, directory: Path):
    """Kernels need source in a file."""
    name = f"random_kernel_{next(number)}"
    path = directory / f"{name}.py"
    path.write_text(
        HEADER
        + f"""
@triton.jit
def {name}(x, y, out, n, A: tl.constexpr, B: tl.constexpr):
    pid = tl.program_id(0)
    index_row, index_column = tl.arange(0, A)[:, None], tl.arange(0, B)[None, :]
    at = pid * A * B + index_row * B + index_column
    block, other = tl.load(x + at), tl.load(y + at, mask=index_column < n, other=0.5)
    row, column = tl.load(y + index_row), tl.load(x + pid * B + index_column)
    value = {expression}
    tl.store(out + at, block * 0 + value, mask=index_row + pid < n)
"""
    )
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


@settings(max_examples=150, deadline=None)
@given(expression=expressions(), n=st.integers(1, 9))
def test_random_kernels(expression: str, n: int, same, tmp_path_factory: pytest.TempPathFactory) -> None:
    torch.manual_seed(n)
    kernel = kernel_of(expression, tmp_path_factory.mktemp("kernels"))
    x, y = torch.randn(4, 8, 8), torch.randn(4, 8, 8)
    same(kernel, (4,), x, y, torch.zeros(4, 8, 8), n, A=8, B=8)


@triton.jit
def sums(x, rows, columns, total, A: tl.constexpr, B: tl.constexpr):
    pid = tl.program_id(0)
    r, c = tl.arange(0, A), tl.arange(0, B)
    v = tl.load(x + pid * A * B + r[:, None] * B + c[None, :])
    tl.store(rows + pid * A + r, tl.sum(v, axis=1))
    tl.store(columns + pid * B + c, tl.sum(v, axis=0))
    tl.store(total + pid, tl.sum(v))


@pytest.mark.parametrize("programs", [1, 2, 7])
@pytest.mark.parametrize("a", [1, 2, 16, 128])
@pytest.mark.parametrize("b", [1, 4, 64, 256])
def test_sums_add_in_the_same_order(a: int, b: int, programs: int, same) -> None:
    """numpy's order of summation depends on the shape and on the strides, and float32 shows it."""
    torch.manual_seed(a * b)
    x = torch.randn(programs, a, b)
    outs = torch.zeros(programs, a), torch.zeros(programs, b), torch.zeros(programs)
    same(sums, (programs,), x, *outs, A=a, B=b)

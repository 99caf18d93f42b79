"""16-bit numbers, integer arithmetic and casts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from mamba_replay_check.kernels.executor.handle import from_storage, round_to_bfloat16, to_storage
from mamba_replay_check.kernels.executor.scope import Executor, executing

EDGES = [
    0.0,
    -0.0,
    1.0,
    1.00390625,  # half way between two bfloat16, to even: down
    1.01171875,  # half way, to even: up
    1.0039063,  # just above half way
    3.3961775e38,  # rounds to infinity
    3.3895314e38,  # the largest bfloat16
    1e-40,  # subnormal
    9.183549615799121e-41,  # the smallest subnormal bfloat16
    4.591774807899561e-41,  # half of it: to zero
    float("inf"),
    -float("inf"),
    float("nan"),
]


def as_torch_rounds(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).bfloat16().float().numpy()


def test_rounding_to_bfloat16_at_the_edges() -> None:
    values = np.array([*EDGES, *(-x for x in EDGES)], np.float32)
    rounded = round_to_bfloat16(values)
    np.testing.assert_array_equal(rounded, as_torch_rounds(values))
    finite = ~np.isnan(values)
    np.testing.assert_array_equal(np.signbit(rounded[finite]), np.signbit(values[finite]))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_rounding_to_bfloat16_of_any_bits(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    np.testing.assert_array_equal(round_to_bfloat16(values), as_torch_rounds(values))


@given(st.integers(0, 2**16 - 1), st.sampled_from([0x0000, 0x7FFF, 0x8000, 0x8001, 0xFFFF]))
def test_rounding_to_bfloat16_around_every_tie(upper: int, lower: int) -> None:
    values = np.array([upper << 16 | lower], np.uint32).view(np.float32)
    np.testing.assert_array_equal(round_to_bfloat16(values), as_torch_rounds(values))


def test_every_bfloat16_survives_memory() -> None:
    raw = np.arange(2**16, dtype=np.uint16)
    np.testing.assert_array_equal(to_storage(from_storage(raw, tl.bfloat16), tl.bfloat16), raw)


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_arithmetic_rounds_once_like_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(1000).to(dtype), torch.randn(1000).to(dtype) * 100
    out = torch.empty_like(x)
    with executing(Executor.BATCHED):
        add_kernel[(16,)](x, y, out, 1000, BLOCK=64)
    assert torch.equal(out, x + y)


@triton.jit
def scale_kernel(x, out, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) * scale)


def test_a_float_argument_keeps_float32_precision_beside_bfloat16() -> None:
    x = torch.randn(64).bfloat16()
    out = torch.empty(64)
    with executing(Executor.BATCHED):
        scale_kernel[(1,)](x, out, 128**-0.5, BLOCK=64)
    assert torch.equal(out, x.float() * 128**-0.5)
    assert not torch.equal(out, (x * 128**-0.5).float())


@triton.jit
def dot_kernel(a, b, out, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    where = tl.program_id(0)
    x = tl.load(a + where * M * K + m[:, None] * K + k[None, :])
    y = tl.load(b + where * K * N + k[:, None] * N + n[None, :])
    tl.store(out + where * M * N + m[:, None] * N + n[None, :], tl.dot(x, y))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_dot_is_a_float32_product_of_the_rounded_inputs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b, out = torch.randn(3, 16, 64).to(dtype), torch.randn(3, 64, 32).to(dtype), torch.empty(3, 16, 32)
    with executing(Executor.BATCHED):
        dot_kernel[(3,)](a, b, out, M=16, K=64, N=32)
    exact = a.double() @ b.double()
    # 64 roundings at most, each relative to the sum of absolute products.
    bound = 64 * torch.finfo(torch.float32).eps * (a.double().abs() @ b.double().abs())
    assert ((out.double() - exact).abs() <= bound).all()


@triton.jit
def cast_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0).to(out.dtype.element_ty), mask=i < n)


TYPES = ["int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("source", TYPES)
def test_casts_like_torch(source: str, target: str) -> None:
    values = torch.tensor([0.0, 1.0, -1.0, 2.5, -2.5, 100.0, -100.0, 126.9]).to(getattr(torch, source))
    if source == "uint8":
        values = torch.tensor([0, 1, 2, 100, 127], dtype=torch.uint8)
    elif target == "uint8":  # torch and C leave a negative number as an unsigned one undefined
        values = values.abs()
    out = torch.empty(len(values), dtype=getattr(torch, target))
    with executing(Executor.BATCHED):
        cast_kernel[(2,)](values, out, len(values), BLOCK=4)
    assert torch.equal(out, values.to(out.dtype))


@triton.jit
def integer_kernel(x, y, div, mod, product, shifted, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(div + i, a // b)
    tl.store(mod + i, a % b)
    tl.store(product + i, a * b)
    tl.store(shifted + i, a >> 3)


def test_signed_integers_divide_towards_zero_and_wrap() -> None:
    x = torch.tensor([7, -7, 7, -7, 2**31 - 1, -(2**31), -1, 5], dtype=torch.int32)
    y = torch.tensor([2, 2, -2, -2, 3, 3, 7, 2**30], dtype=torch.int32)
    div, mod, product, shifted = (torch.empty_like(x) for _ in range(4))
    with executing(Executor.BATCHED):
        integer_kernel[(2,)](x, y, div, mod, product, shifted, BLOCK=4)
    assert torch.equal(div, torch.div(x, y, rounding_mode="trunc"))
    assert torch.equal(mod, torch.fmod(x, y))
    assert torch.equal(product, x * y)
    assert torch.equal(shifted, x >> 3)


def test_unsigned_integers_are_unsigned() -> None:
    x = torch.tensor([2**32 - 1, 2**31, 7, 2**32 - 2], dtype=torch.uint32)
    y = torch.tensor([2, 3, 2, 2**31], dtype=torch.uint32)
    out = [torch.empty_like(x) for _ in range(4)]
    with executing(Executor.BATCHED):
        integer_kernel[(1,)](x, y, *out, BLOCK=4)
    wide, by = x.numpy().astype(np.uint64), y.numpy().astype(np.uint64)
    wanted = (wide // by, wide % by, (wide * by) % 2**32, wide >> np.uint64(3))
    for got, want in zip(out, wanted, strict=True):
        np.testing.assert_array_equal(got.numpy(), want.astype(np.uint32))


@triton.jit
def unsigned_cast_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i).to(tl.uint32)
    tl.store(out + i, (a // 2).to(tl.int64) + (a > 5).to(tl.int64))


def test_a_value_cast_to_unsigned_is_unsigned() -> None:
    x = torch.tensor([-1, 4, 6, -(2**31)], dtype=torch.int32)
    out = torch.empty(4, dtype=torch.int64)
    with executing(Executor.BATCHED):
        unsigned_cast_kernel[(1,)](x, out, BLOCK=4)
    assert out.tolist() == [2**31 - 1 + 1, 2, 3 + 1, 2**30 + 1]


@triton.jit
def random_kernel(out, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.rand(seed, i))


def test_random_numbers_are_tritons_own(same) -> None:
    (numbers,) = same(random_kernel, (4,), torch.empty(256), 7, BLOCK=64)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert numbers.unique().numel() > 250


@triton.jit
def extremum_kernel(x, y, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, tl.maximum(a, b))
    tl.store(out + BLOCK + i, tl.minimum(a, b))
    tl.store(out + 2 * BLOCK + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))


def test_nan_propagates_through_an_extremum_only_when_asked() -> None:
    nan = float("nan")
    x, y, out = torch.tensor([1.0, nan, 2.0, nan]), torch.tensor([nan, 1.0, 3.0, nan]), torch.empty(3, 4)
    with executing(Executor.BATCHED):
        extremum_kernel[(1,)](x, y, out, BLOCK=4)
    torch.testing.assert_close(
        out, torch.tensor([[1, 1, 3, nan], [1, 1, 2, nan], [nan, nan, 2, nan]]), rtol=0, atol=0, equal_nan=True
    )


@triton.jit
def bitcast_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    bits = tl.load(x + i).to(tl.int16, bitcast=True)
    tl.store(out + i, (bits ^ 1).to(tl.bfloat16, bitcast=True))


def test_a_bitcast_of_bfloat16_sees_its_sixteen_bits() -> None:
    x = torch.randn(64).bfloat16()
    out = torch.empty_like(x)
    with executing(Executor.BATCHED):
        bitcast_kernel[(1,)](x, out, BLOCK=64)
    assert torch.equal(out.view(torch.int16), x.view(torch.int16) ^ 1)


@triton.jit
def erf_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.erf(tl.load(x + i)))


def test_erf_is_exact_to_the_last_bit(same) -> None:
    same(erf_kernel, (4,), torch.linspace(-4, 4, 256), torch.empty(256), BLOCK=64)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)), min_size=8, max_size=8))
def test_high_product_bits(pairs: list[tuple[int, int]]) -> None:
    x, y = (torch.tensor(column, dtype=torch.int64) for column in zip(*pairs, strict=True))
    out = torch.empty_like(x)
    with executing(Executor.BATCHED):
        high_product_kernel[(1,)](x, y, out, BLOCK=8)
    wanted = [((a % 2**64) * (b % 2**64)) >> 64 for a, b in pairs]
    assert [v % 2**64 for v in out.tolist()] == wanted


@triton.jit
def high_product_kernel(x, y, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.umulhi(tl.load(x + i), tl.load(y + i)))

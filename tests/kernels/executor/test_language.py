"""The language of kernels: reductions, scans, shapes, helpers, atomics, block pointers, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch
import triton
import triton.language as tl
from mamba_replay_check.kernels.executor.errors import UnsupportedError
from mamba_replay_check.kernels.executor.scope import Executor, executing
from triton.language import associative_scan as captured_scan
from triton.language import dot as captured_dot
from triton.language.extra import libdevice
from triton.language.extra.libdevice import tanh as captured_tanh

A, B = 4, 8
PROGRAMS = 3


def blocks(*, ties: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[PROGRAMS, A, B]"""
    torch.manual_seed(0)
    return (torch.randint(-2, 3, (PROGRAMS, A, B)) if ties else torch.randn(PROGRAMS, A, B) * 3).to(dtype)


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def affine(a, b, c, d):
    """The composition of x -> a x + b and x -> c x + d."""
    return a * c, b * c + d


@triton.jit
def keep_larger(value, index, other, other_index):
    better = value > other or (value == other and index < other_index)
    return tl.where(better, value, other), tl.where(better, index, other_index)


@triton.jit
def tile(x, A: tl.constexpr, B: tl.constexpr):
    return tl.load(x + tl.program_id(0) * A * B + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :])


@triton.jit
def put(out, value, N: tl.constexpr):
    """Stores any block of N elements, flat."""
    tl.store(out + tl.program_id(0) * N + tl.arange(0, N), tl.reshape(value, [N]))


@triton.jit
def reductions(x, rows, columns, total, A: tl.constexpr, B: tl.constexpr):
    v = tile(x, A, B)
    put(rows, tl.sum(v, axis=1) + tl.max(v, axis=-1) * 2 + tl.min(v, 1, keep_dims=True).reshape([A]), A)
    put(columns, tl.sum(v, axis=0) + tl.reduce(v, 0, add) + tl.reduce(v, 0, add, keep_dims=True).reshape([B]), B)
    tl.store(total + tl.program_id(0), tl.sum(v) + tl.max(v) + tl.reduce(v, None, add))


@triton.jit
def picks(x, rows, columns, A: tl.constexpr, B: tl.constexpr):
    v = tile(x, A, B)
    value, index = tl.max(v, axis=1, return_indices=True)
    put(rows, value + index * 100 + 1000 * tl.argmin(v, axis=-1), A)
    fast, fast_index = tl.min(v, axis=0, return_indices=True, return_indices_tie_break_left=False)
    places = tl.arange(0, A)[:, None] + tl.zeros([A, B], tl.int32)
    best, where = tl.reduce((v, places), 0, keep_larger)
    put(columns, tl.argmax(v, axis=0) + 10 * fast_index + 100 * where + fast + best, B)


@triton.jit
def scans(x, out, A: tl.constexpr, B: tl.constexpr):
    v = tile(x, A, B)
    s = tl.cumsum(v, axis=0) + tl.cumsum(v, axis=1, reverse=True) + tl.cumprod(v, axis=1)
    a, b = tl.associative_scan((v, v + 1), 1, affine)
    c, d = tl.associative_scan((v, v + 1), 0, affine, reverse=True)
    put(out, s + a + b + c + d, A * B)


@triton.jit
def ordered(x, out, A: tl.constexpr, B: tl.constexpr):
    v = tile(x, A, B)
    put(out, tl.sort(v) + tl.flip(v, 1) * 10 + tl.sort(v, descending=True) * 100, A * B)


@triton.jit
def shapes(x, out, A: tl.constexpr, B: tl.constexpr):
    v = tile(x, A, B)
    even, odd = tl.split(tl.reshape(v, [A, B // 2, 2]))
    back = tl.reshape(tl.join(odd, even), [A, B])
    cube = tl.permute(tl.reshape(v, [A, 2, B // 2]), [1, 0, 2])
    w = tl.trans(v)
    gathered = tl.gather(v, (tl.arange(0, B)[None, :] * 3 + tl.arange(0, A)[:, None]) % B, axis=1)
    joined = tl.cat(tl.sum(v, 1), tl.max(v, 1), can_reorder=True)
    put(out, back + tl.reshape(cube, [A, B]) + w.T + tl.reshape(w, [A, B]) * 2 + gathered + joined[None, :], A * B)


@triton.jit
def where_and_logic(x, out, A: tl.constexpr, B: tl.constexpr):
    v = tile(x, A, B)
    picked = tl.where((v <= 1) & ((v > -1) | (v < -3)) ^ (v > 2), v, -v)
    clamped = tl.clamp(v, -0.5, 0.5) + tl.fma(v, v, 1.0) + tl.minimum(v, 0)
    put(out, picked + clamped + tl.abs(v) + tl.sqrt(v * v) + tl.exp2(v) + tl.sigmoid(v) + tl.cos(v), A * B)


@triton.jit
def captured(x, out, A: tl.constexpr, B: tl.constexpr):
    v = tile(x, A, B)
    ones = tl.full([A, A], 1.0, tl.float32)
    put(out, captured_dot(ones, v) + captured_scan(v, 1, add) + max(v, 0.25, 1) + min(v, 1), A * B)


@triton.jit
def two_results(v, scale=2):
    """A helper with a default that returns a tuple."""
    if scale == 3:
        return v, v
    return v * scale, v + scale


@triton.jit
def control(x, out, n, A: tl.constexpr, B: tl.constexpr):
    v = tile(x, A, B)
    for i in tl.static_range(2):
        v = v + i
    for i in tl.static_range(4, 0, step=-2):
        v = v * i
    for i in tl.range(n):
        v += i.to(tl.float32)
    a, b = two_results(v)
    c, d = two_results(v, scale=3)
    e = (a if n > 100 else b) + c * d
    put(out, e + tl.cdiv(n, 4) + tl.max(a), A * B)


BLOCK_KERNELS = {
    "reductions": (reductions, (A, B, 1)),
    "picks": (picks, (A, B)),
    "scans": (scans, (A * B,)),
    "sort and flip": (ordered, (A * B,)),
    "shapes": (shapes, (A * B,)),
    "where and logic": (where_and_logic, (A * B,)),
}


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "with ties"])
@pytest.mark.parametrize("name", BLOCK_KERNELS)
def test_operations_on_blocks(name: str, ties: bool, same) -> None:
    kernel, sizes = BLOCK_KERNELS[name]
    outs = [torch.zeros(PROGRAMS, n) for n in sizes]
    _, *results = same(kernel, (PROGRAMS,), blocks(ties=ties), *outs, A=A, B=B)
    assert all(r.any() for r in results)


def test_builtins_captured_at_import_and_those_of_python() -> None:
    """Triton's interpreter can run neither."""
    x, out = blocks(), torch.zeros(PROGRAMS, A * B)
    with executing(Executor.BATCHED):
        captured[(PROGRAMS,)](x, out, A=A, B=B)
    want = x.sum(1)[:, None, :] + x.cumsum(2) + x.clamp(min=1) + x.clamp(max=1)
    torch.testing.assert_close(out.view(PROGRAMS, A, B), want, rtol=1e-5, atol=1e-5)


def test_control_flow_and_helpers(same) -> None:
    same(control, (PROGRAMS,), blocks(), torch.zeros(PROGRAMS, A * B), 5, A=A, B=B)


def test_picks_against_torch() -> None:
    """The interpreter's word for `argmax` is numpy's; here is torch's, where nothing ties."""
    x, rows, columns = blocks(), torch.zeros(PROGRAMS, A), torch.zeros(PROGRAMS, B)
    with executing(Executor.BATCHED):
        picks[(PROGRAMS,)](x, rows, columns, A=A, B=B)
    top, low = x.max(1), x.min(1)
    assert torch.equal(columns, top.indices + 10 * low.indices + 100 * top.indices + low.values + top.values)
    assert torch.equal(rows, x.max(2).values + x.argmax(2) * 100 + 1000 * x.argmin(2))


@triton.jit
def logic_on_blocks(x, out, A: tl.constexpr, B: tl.constexpr):
    v = tile(x, A, B)
    put(out, ((v > 0 and not (v >= 2)) or v < -2).to(tl.float32), A * B)


def test_and_or_not_are_elementwise_on_blocks() -> None:
    """As when compiled. Triton's interpreter follows Python, where a block is simply true."""
    x, out = blocks(), torch.zeros(PROGRAMS, A, B)
    with executing(Executor.BATCHED):
        logic_on_blocks[(PROGRAMS,)](x, out, A=A, B=B)
    assert torch.equal(out.bool(), ((x > 0) & (x < 2)) | (x < -2))


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    put(out, tl.histogram(tl.load(x + i, mask=i < n, other=0), BINS, mask=i < n), BINS)


def test_histogram(same) -> None:
    x = torch.arange(30, dtype=torch.int32) * 7 % 8
    _, out = same(histogram, (2,), x, torch.zeros(2, 8, dtype=torch.int32), 30, BLOCK=16, BINS=8)
    assert torch.equal(out[0], torch.bincount(x[:16], minlength=8).int())
    assert out.sum() == 30


@triton.jit
def apply(x, out, FUNCTION: tl.constexpr, A: tl.constexpr, B: tl.constexpr):
    put(out, FUNCTION(tile(x, A, B)), A * B)


@triton.jit
def square(v):
    return v * v


def test_a_helper_may_be_an_argument() -> None:
    x, out = blocks(), torch.zeros(PROGRAMS, A, B)
    with executing(Executor.BATCHED):
        apply[(PROGRAMS,)](x, out, FUNCTION=square, A=A, B=B)
    assert torch.equal(out, x * x)


@triton.jit
def tuple_argument(pair, out, steps):
    i = tl.program_id(0)
    tl.store(out + i, tl.load(pair[0] + i) - tl.load(pair[1] + i) + steps[1])


def test_a_tuple_argument() -> None:
    x, y, out = torch.randn(5), torch.randn(5), torch.zeros(5)
    with executing(Executor.BATCHED):
        tuple_argument[(5,)]((x, y), out, (7, 3))
        with pytest.raises(UnsupportedError, match="not on meta"):
            tuple_argument[(5,)]((x, y.to("meta")), out, (7, 3))
    assert torch.equal(out, x - y + 3)


@triton.jit
def device_functions(x, out, A: tl.constexpr, B: tl.constexpr):
    v = tile(x, A, B)
    put(out, captured_tanh(v) + libdevice.tanh(v) + libdevice.log1p(tl.exp(v)), A * B)


def test_device_functions(same) -> None:
    x, out = blocks(), torch.zeros(PROGRAMS, A, B)
    with executing(Executor.BATCHED):
        device_functions[(PROGRAMS,)](x, out, A=A, B=B)
    wide = x.double()
    torch.testing.assert_close(out.double(), 2 * wide.tanh() + wide.exp().log1p(), rtol=1e-6, atol=1e-6)


@triton.jit
def huge_offsets(out, n):
    """Offsets beyond 32 bits must not wrap."""
    i = tl.program_id(0).to(tl.int64)
    base = out - i * 1000000007 * 1000
    tl.store(base + i * 1000000007 * 1000 + i, n * 2 + 1)


def test_offsets_and_arguments_of_64_bits(same) -> None:
    (out,) = same(huge_offsets, (7,), torch.zeros(7, dtype=torch.int64), 2**40)
    assert (out == 2**41 + 1).all()


# ---- atomics --------------------------------------------------------------------------------------------------------


@triton.jit
def atomics(counter, top, low, order, lock, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    if pid == 4:
        return
    i = tl.arange(0, BLOCK)
    seen = tl.atomic_add(counter + i, 0.1 * (pid + 1), mask=i < BLOCK - 1)
    tl.atomic_max(top + i % 2, pid * i)
    tl.atomic_min(low + i, -pid.to(tl.float32))
    first = tl.atomic_cas(lock, 0, pid + 1)
    before = tl.atomic_xchg(lock + 1, pid)
    tl.store(order + pid * 4, first)
    tl.store(order + pid * 4 + 1, before)
    tl.store(order + pid * 4 + 2, (tl.sum(tl.where(i < BLOCK - 1, seen, 0.0)) * 1000).to(tl.int32))
    tl.atomic_or(lock + 2, 1 << pid)


def test_atomics_run_program_by_program(same) -> None:
    counter, top, low, order, lock = same(
        atomics,
        (7,),
        torch.zeros(8),
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(8),
        torch.zeros(7, 4, dtype=torch.int32),
        torch.zeros(3, dtype=torch.int32),
        BLOCK=8,
    )
    assert torch.allclose(counter[:7], torch.tensor(2.3))
    assert counter[7] == 0
    assert top.tolist() == [36, 42]
    assert low.tolist() == [-6.0] * 8
    assert order[:, 0].tolist() == [0, 1, 1, 1, 0, 1, 1]
    assert order[:, 1].tolist() == [0, 0, 1, 2, 0, 3, 5]
    assert lock.tolist() == [1, 6, 0b1101111]


@triton.jit
def atomic_after_store(x, counter):
    pid = tl.program_id(0)
    tl.store(x + pid, tl.load(x + pid) + 1)
    if pid % 2 == 0:
        tl.store(x + pid, tl.load(x + pid) * 10)
    tl.atomic_add(counter, tl.load(x + pid))


def test_stores_before_an_atomic_happen_once(same) -> None:
    x, counter = same(atomic_after_store, (5,), torch.ones(5), torch.zeros(1))
    assert x.tolist() == [20, 2, 20, 2, 20]
    assert counter.item() == 64


@triton.jit
def ticket_after_parting(x, ticket, order):
    pid = tl.program_id(0)
    tl.store(x + pid, tl.load(x + pid) + 1)
    if pid != 4:  # program 4 finds itself alone before it meets the atomic
        tl.store(x + pid, tl.load(x + pid) * 10)
    tl.store(order + pid, tl.atomic_add(ticket, 1))


def test_a_program_on_its_own_still_waits_for_its_turn(same) -> None:
    x, _, order = same(
        ticket_after_parting, (7,), torch.zeros(7), torch.zeros(1, dtype=torch.int32), torch.zeros(7, dtype=torch.int32)
    )
    assert x.tolist() == [10, 10, 10, 10, 1, 10, 10]
    assert order.tolist() == list(range(7))


@triton.jit
def masked_atomic(counter, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.atomic_add(counter + i, 1.0, mask=i < 2))


def test_a_masked_off_atomic_returns_zero() -> None:
    """Triton's interpreter returns whatever lay in memory."""
    counter, out = torch.full((64,), 5.0), torch.full((64,), -1.0)
    with executing(Executor.BATCHED):
        masked_atomic[(1,)](counter, out, BLOCK=64)
    assert out.tolist() == [5.0, 5.0] + [0.0] * 62
    assert counter.tolist() == [6.0, 6.0] + [5.0] * 62


@triton.jit
def atomic_half(counter):
    tl.atomic_add(counter, 1.0)


def test_an_atomic_on_bfloat16_is_refused() -> None:
    with executing(Executor.BATCHED), pytest.raises(UnsupportedError, match="atomic on bfloat16"):
        atomic_half[(2,)](torch.zeros(1, dtype=torch.bfloat16))


# ---- block pointers -------------------------------------------------------------------------------------------------


@triton.jit
def block_pointers(x, out, rows, columns, down, across, R: tl.constexpr, C: tl.constexpr, PADDING: tl.constexpr):
    start = (tl.program_id(0) * R - 1, 0)
    source = tl.make_block_ptr(x, (rows, columns), (down, across), start, (R, C), (1, 0))
    target = tl.make_block_ptr(out, (rows, columns), (columns, 1), start, (R, C), (1, 0))
    for _ in range(tl.cdiv(columns, C)):
        v = tl.load(source, boundary_check=(0, 1), padding_option=PADDING)
        tl.store(target, v + 1, boundary_check=(0, 1))
        source = tl.advance(source, (0, C))
        target = tl.advance(target, (0, C))


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("strides", [(11, 1), (1, 6)], ids=["row major", "column major"])
def test_block_pointers(strides: tuple[int, int], padding: str, same) -> None:
    rows, columns = 6, 11
    x, out = same(
        block_pointers, (3,), torch.randn(66), torch.zeros(6, 11), rows, columns, *strides, R=4, C=4, PADDING=padding
    )
    assert torch.equal(out, x.as_strided((rows, columns), strides) + 1)


@triton.jit
def padded_block(x, out, n, PADDING: tl.constexpr):
    pointer = tl.make_block_ptr(x, (n,), (1,), (tl.program_id(0) * 4 - 2,), (4,), (0,))
    put(out, tl.load(pointer, boundary_check=(0,), padding_option=PADDING), 4)


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_what_lies_outside_a_block_is_padding(padding: str, same) -> None:
    _, out = same(padded_block, (2,), torch.ones(5), torch.zeros(2, 4), 5, PADDING=padding)
    pad = 0.0 if padding == "zero" else float("nan")
    torch.testing.assert_close(out, torch.tensor([[pad, pad, 1, 1], [1, 1, 1, pad]]), equal_nan=True, rtol=0, atol=0)


@triton.jit
def chosen_block(x, y, out):
    pid = tl.program_id(0)
    pointer = tl.make_block_ptr(x, (4,), (1,), (0,), (4,), (0,))
    if pid % 2 == 1:
        pointer = tl.make_block_ptr(y, (4,), (1,), (0,), (4,), (0,))
    put(out, tl.load(pointer) + pid, 4)


def test_programs_may_choose_between_block_pointers(same) -> None:
    *_, out = same(chosen_block, (3,), torch.zeros(4), torch.ones(4), torch.zeros(3, 4))
    assert out[:, 0].tolist() == [0, 2, 2]


# ---- what is refused ------------------------------------------------------------------------------------------------


@triton.jit
def inline_assembly(x):
    v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x)], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(x, v)


@triton.jit
def descriptor(x):
    d = tl.make_tensor_descriptor(x, shape=[4, 4], strides=[4, 1], block_shape=[4, 4])
    d.store([0, 0], d.load([0, 0]))


@triton.jit
def unknown_function(x):
    tl.store(x, libdevice.cyl_bessel_i0(tl.load(x)))


@triton.jit
def own_rounding(x):
    tl.store(x, tl.load(x).to(tl.bfloat16, fp_downcast_rounding="rtz").to(tl.float32))


@triton.jit
def float8(x):
    tl.store(x, tl.load(x).to(tl.float8e5).to(tl.float32))


@pytest.mark.parametrize(
    ("kernel", "named"),
    [
        (inline_assembly, "inline assembly"),
        (descriptor, "make_tensor_descriptor"),
        (unknown_function, "cyl_bessel_i0"),
        (own_rounding, "rounding"),
        (float8, "fp8e5"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_needs_a_gpu_is_named(kernel, named: str) -> None:
    with executing(Executor.BATCHED), pytest.raises(UnsupportedError, match=re.escape(named)):
        kernel[(1,)](torch.zeros(4, 4))


@triton.jit
def block_as_index(x):
    pair = (1, 2)
    tl.store(x, pair[tl.arange(0, 2)])


def test_a_block_is_not_an_index() -> None:
    with executing(Executor.BATCHED), pytest.raises(ValueError, match="is not one integer"):
        block_as_index[(1,)](torch.zeros(1))


def test_arguments_of_an_unknown_kind_are_named() -> None:
    with executing(Executor.BATCHED), pytest.raises(UnsupportedError, match="set"):
        float8[(1,)]({1})


@triton.jit
def asserting(x, LIMIT: tl.constexpr):
    tl.static_assert(LIMIT < 5, "the limit is too high")
    tl.device_assert(tl.load(x + tl.program_id(0)) > 0, "not positive")


def test_assertions_are_checked() -> None:
    x = torch.tensor([1.0, 2.0, -1.0])
    with executing(Executor.BATCHED):
        asserting[(2,)](x, LIMIT=4, debug=True)
        with pytest.raises(AssertionError, match="too high"):
            asserting[(2,)](x, LIMIT=5)
        with pytest.raises(AssertionError, match="not positive"):
            asserting[(3,)](x, LIMIT=4, debug=True)
        asserting[(3,)](x, LIMIT=4)


@triton.jit
def printing(x):
    tl.device_print("value", tl.load(x + tl.program_id(0)))


def test_prints_come_in_the_order_of_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with executing(Executor.BATCHED):
        printing[(3,)](torch.tensor([1.0, 2.0, 3.0]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["1.0", "2.0", "3.0"]

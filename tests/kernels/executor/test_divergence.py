"""Programs of one launch that part ways: memory must end up as it does when they run one after the other."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from mamba_replay_check.kernels.executor import launch
from mamba_replay_check.kernels.executor.memory import Memory
from mamba_replay_check.kernels.executor.scope import Executor, executing

WIDTH = 8


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


@triton.jit
def early_return(x, out, n):
    i = tl.program_id(0)
    if i >= n:
        return
    if tl.load(x + i) % 3 == 0:
        tl.store(out + i, -1)
        return
    tl.store(out + i, tl.load(x + i) * 2)


@triton.jit
def branch_after_store(x, W: tl.constexpr):
    i = tl.program_id(0)
    at = x + i * W + tl.arange(0, W)
    tl.store(at, tl.load(at) + 1)
    if i % 3 == 0:
        tl.store(at, tl.load(at) * 10)
    elif i % 3 == 1:
        tl.store(at, tl.load(at) - 100)


@triton.jit
def branch_after_scattered_store(x, W: tl.constexpr):
    i = tl.program_id(0)
    at = x + i * W + (tl.arange(0, W) * 3) % W
    tl.store(at, tl.load(at) + 1)
    if i % 2 == 0:
        tl.store(at, tl.load(at) * 10)


@triton.jit
def trip_counts(x, out):
    i = tl.program_id(0)
    total = 0.0
    for j in range(i % 4):
        total += tl.load(x + j) * (j + 1)
    for j in range(i, i + 3):
        total += tl.load(x + j)
    for j in range(10, 10 - i % 3, -1):
        total -= tl.load(x + j)
    for j in tl.range(0, i, 2, num_stages=2):
        total += j
    tl.store(out + i, total)


@triton.jit
def in_place_in_a_loop(x, W: tl.constexpr):
    i = tl.program_id(0)
    at = x + i * W + tl.arange(0, W)
    for j in range(i % 5):
        tl.store(at, tl.load(at) * 2 + j)


@triton.jit
def in_place_in_a_while(x, W: tl.constexpr):
    i = tl.program_id(0)
    at = x + i * W + tl.arange(0, W)
    left = i % 4
    while left > 0:
        tl.store(at, tl.load(at) * 2 + left)
        left -= 1


@triton.jit
def nested(x, out):
    i = tl.program_id(0)
    value = tl.load(x + i)
    if i % 2 == 0:
        if i % 3 == 0:
            tl.store(out + i, value)
        else:
            for j in range(i % 4):
                if j == 1:
                    tl.store(out + i, value * j)
    else:
        value = value + 1
        if value > 10:
            tl.store(out + i, -value)


@triton.jit
def while_loop(x, out):
    i = tl.program_id(0)
    n = tl.load(x + i).to(tl.int32)
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n //= 2
        else:
            n = 3 * n + 1
        steps += 1
    tl.store(out + i, steps)


@triton.jit
def pointer_chasing(x, links, out, n):
    i = tl.program_id(0)
    at = i
    for _ in range(3):
        at = tl.load(links + at)
    tl.store(out + i, tl.load(x + at))
    if at > n // 2:
        tl.store(out + i, -tl.load(x + tl.load(links + at)))


@triton.jit
def count_down(n):
    steps = 0
    while n != 0:
        n -= 1
        steps += 1
    return steps


@triton.jit
def assigning(x, out, W: tl.constexpr):
    """Branches that only assign are run both ways. A program must not act on the way that it did not take."""
    i = tl.program_id(0)
    column = tl.arange(0, W)
    row = x + i * W + column
    scale = 1.0
    for j in range(3):
        if i % 2 == 0:
            scale = scale * 2
            if i % 4 == 0:
                scale += j
                extra = tl.load(row) * scale
            else:
                extra = tl.load(x + column)
        else:
            row = x + (i - 1) * W + column
            extra = tl.load(row)
    steps = 0
    if i > 3:  # with i <= 3 the helper would count down for ever
        steps = count_down(i - 3)
    tl.store(out + i * W + column, extra * scale + steps)


@triton.jit
def guarded(x, out, n):
    i = tl.program_id(0)
    far = i.to(tl.int64) * 100000000000
    # Only program 0 may look; the others would read outside the process.
    if i == 0 and tl.load(x + far) == 1.0:
        tl.store(out + i, 1.0)
    if i > 0 or tl.load(x + far) == 2.0:
        tl.store(out + i, 2.0)
    if not (i == 0 or i == 4):
        tl.store(out + 2 * n + i, 3.0)


@triton.jit
def guarded_assignments(x, out):
    i = tl.program_id(0)
    far = i.to(tl.int64) * 100000000000
    value = 5.0
    if i < 1:
        value = tl.load(x + far)
    if i < 2:  # noqa: SIM102
        if i % 2 == 0:
            value += tl.load(x + far)
    tl.store(out + i, value)


@triton.jit
def same_trips_from_other_starts(x, out):
    i = tl.program_id(0)
    total = 0.0
    for j in range(2 * i, 2 * i + 2):
        total += tl.load(x + j.to(tl.int64))
    tl.store(out + i, total)


@triton.jit
def three_axes(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    at = (x * ny + y) * nz + z
    if (x + y) % 2 == 0:
        tl.store(out + at, 100 * x + 10 * y + z)
    if z == nz - 1:
        tl.store(out + at + nx * ny * nz, at)


KERNELS = {
    "early return": lambda same: same(early_return, (20,), numbers(20), torch.zeros(20), 17),
    "branch after store": lambda same: same(branch_after_store, (20,), numbers(20, WIDTH), W=WIDTH),
    "branch after scattered store": lambda same: same(branch_after_scattered_store, (20,), numbers(20, WIDTH), W=WIDTH),
    "trip counts": lambda same: same(trip_counts, (20,), numbers(30), torch.zeros(20)),
    "in place in a loop": lambda same: same(in_place_in_a_loop, (20,), numbers(20, WIDTH), W=WIDTH),
    "in place in a while": lambda same: same(in_place_in_a_while, (9,), numbers(9, WIDTH), W=WIDTH),
    "nested": lambda same: same(nested, (24,), numbers(24), torch.zeros(24)),
    "while": lambda same: same(while_loop, (12,), numbers(12), torch.zeros(12)),
    "pointer chasing": lambda same: same(
        pointer_chasing, (20,), numbers(20), torch.arange(20, dtype=torch.int32) * 7 % 20, torch.zeros(20), 20
    ),
    "assigning": lambda same: same(assigning, (12,), numbers(12, WIDTH), torch.zeros(12, WIDTH), W=WIDTH),
    "guarded": lambda same: same(guarded, (6,), numbers(6), torch.zeros(18), 6),
    "guarded assignments": lambda same: same(guarded_assignments, (6,), numbers(6), torch.zeros(6)),
    "same trips": lambda same: same(same_trips_from_other_starts, (9,), numbers(18), torch.zeros(9)),
    "one axis": lambda same: same(three_axes, (7,), torch.zeros(14)),
    "two axes": lambda same: same(three_axes, (3, 4), torch.zeros(24)),
    "three axes": lambda same: same(three_axes, (3, 2, 4), torch.zeros(48)),
}


@pytest.mark.parametrize("group", [1, 3, None], ids=["one by one", "groups of 3", "all at once"])
@pytest.mark.parametrize("name", KERNELS)
def test_programs_that_part_ways(name: str, group: int | None, same, monkeypatch: pytest.MonkeyPatch) -> None:
    if group:
        monkeypatch.setattr(launch.Launcher, "_room", lambda self, key: group)
    results = KERNELS[name](same)
    assert any(r.any() for r in results)


def test_what_is_undone_would_otherwise_be_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the journal the same kernel goes wrong, so the tests above do test it."""
    x, broken = numbers(20, WIDTH), numbers(20, WIDTH)
    with executing(Executor.BATCHED):
        branch_after_store[(20,)](x, W=WIDTH)
        monkeypatch.setattr(Memory, "undo", Memory.forget)
        branch_after_store[(20,)](broken, W=WIDTH)
    assert not torch.equal(x, broken)


@triton.jit
def helper_in_a_branch(out):
    i = tl.program_id(0)
    n = i
    if i % 2 == 0:
        n = 5
    steps = 0
    if i % 2 == 0:
        steps = count_down(n)
    tl.store(out + i, steps)


def test_programs_run_together_as_long_as_they_agree() -> None:
    with executing(Executor.BATCHED) as launcher:
        launcher.counts.clear()
        same_trips_from_other_starts[(9,)](numbers(18), torch.zeros(9))
        assigning[(2,)](numbers(2, WIDTH), torch.zeros(2, WIDTH), W=WIDTH)
        branch_after_store[(20,)](numbers(20, WIDTH), W=WIDTH)
        helper_in_a_branch[(8,)](out := torch.zeros(8))
    # Programs that did not take a branch have no say in how often its loops turn.
    assert out.tolist() == [5, 0] * 4
    assert launcher.counts["helper_in_a_branch"].calls == 1
    # Other starts, or a branch that only assigns, split nothing.
    assert launcher.counts["same_trips_from_other_starts"].calls == 1
    assert launcher.counts["assigning"].calls == 1
    # One call to find out, then one per answer of `i % 3 == 0`, one of which parts again over `i % 3 == 1`.
    assert launcher.counts["branch_after_store"].calls == 5


@pytest.mark.parametrize("grid", [(0,), (4, 0), (0, 3, 2)], ids=str)
def test_a_grid_without_programs_does_nothing(grid: tuple[int, ...]) -> None:
    out = torch.zeros(48)
    with executing(Executor.BATCHED):
        three_axes[grid](out)
    assert not out.any()


# ---- memory ---------------------------------------------------------------------------------------------------------


@triton.jit
def copy_block(x, out, rows, columns, down, across, R: tl.constexpr, C: tl.constexpr, REVERSED: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    from_ = columns - 1 - c if REVERSED else c
    block = tl.load(x + r[:, None] * down + from_[None, :] * across, mask=inside, other=-1.0)
    tl.store(out + r[:, None] * down + c[None, :] * across, block + 1, mask=inside)


@pytest.mark.parametrize("reversed_", [False, True], ids=["runs", "scattered"])
@pytest.mark.parametrize("column_major", [False, True], ids=["row major", "column major"])
@pytest.mark.parametrize("shape", [(8, 16), (7, 13), (1, 1), (3, 40), (16, 5)], ids=str)
def test_blocks_that_do_not_fit(shape: tuple[int, int], column_major: bool, reversed_: bool, same) -> None:
    rows, columns = shape
    strides = (1, rows) if column_major else (columns, 1)
    grid = (triton.cdiv(rows, 4), triton.cdiv(columns, 8))
    x, got = same(
        copy_block,
        grid,
        numbers(rows * columns),
        torch.zeros(rows * columns),
        *shape,
        *strides,
        R=4,
        C=8,
        REVERSED=reversed_,
    )
    x, got = x.as_strided(shape, strides), got.as_strided(shape, strides)
    assert torch.equal(got, 1 + (x.flip(1) if reversed_ else x))


@triton.jit
def strided_copy(x, out, n, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i * stride, tl.load(x + i * stride, mask=i < n), mask=i < n)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_strides(stride: int, same) -> None:
    _, got = same(strided_copy, (3,), numbers(10 * stride), torch.zeros(10 * stride), 10, stride, BLOCK=4)
    assert got[::stride].all()


def test_views_into_one_storage(same) -> None:
    x, out = numbers(100)[30:], torch.zeros(50)[10:]
    _, got = same(strided_copy, (3,), x, out, 10, 1, BLOCK=4)
    assert torch.equal(got[:10], x[:10])


@triton.jit
def other_block(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    got = tl.load(x + i, mask=i < n, other=(i * 10 + row).to(tl.float32))
    tl.store(out + row * BLOCK + i, got)
    whole = tl.load(x + row * n + i, mask=(i < n) & (row > 0), other=(i * 10 + row).to(tl.float32))
    tl.store(out + 3 * BLOCK + row * BLOCK + i, whole)


def test_masked_off_elements_take_the_other_value(same) -> None:
    same(other_block, (3,), numbers(15), torch.zeros(48), 5, BLOCK=8)


@triton.jit
def far_addresses(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    offset = tl.where(i < n, i, (i - n - 1).to(tl.int64) * 1000000000000)
    value = tl.load(x + offset, mask=i < n, other=0.0)
    tl.store(out + offset + row * n, value + row, mask=i < n)
    wild = x - 1000000000000 * (row + 1).to(tl.int64) + i
    value = tl.load(wild, mask=i < 0, other=7.0)
    tl.store(wild, value, mask=row < 0)
    tl.store(out + 2 * n + i, value, mask=i < n)


def test_masked_off_addresses_are_never_touched(same) -> None:
    _, out = same(far_addresses, (2,), numbers(5), torch.zeros(15), 5, BLOCK=8)
    assert out.tolist() == [1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7]


@triton.jit
def misaligned(raw, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    words = (raw + 1).to(tl.pointer_type(tl.int32))
    tl.store(out + i, tl.load(words + i))


def test_elements_that_lie_across_the_grid_of_their_type(same) -> None:
    raw = torch.arange(33, dtype=torch.int8)
    _, out = same(misaligned, (1,), raw, torch.zeros(8, dtype=torch.int32), BLOCK=8)
    assert torch.equal(out, raw[1:].clone().view(torch.int32))


@triton.jit
def one_for_all(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + tl.program_id(0))


def test_the_last_program_to_write_wins(same) -> None:
    x, out = same(one_for_all, (5,), numbers(8), torch.zeros(8), BLOCK=8)
    assert torch.equal(out, x + 4)


@pytest.mark.parametrize("name", ["branch after store", "assigning", "three axes"])
def test_a_memory_bound_cuts_groups_and_changes_nothing(name: str, same, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = KERNELS[name](same)
    monkeypatch.setattr(launch, "MAX_ARRAY_BYTES", 64)
    cut = KERNELS[name](same)
    assert all(torch.equal(a, b) for a, b in zip(whole, cut, strict=True))


@triton.jit
def wide_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.exp(tl.load(x + i)))


def test_a_group_holds_no_more_than_the_memory_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, block = 1 << 16, 1024
    monkeypatch.setattr(launch, "MAX_ARRAY_BYTES", bound)
    widest = []
    result = launch.BatchedBuilder._result

    def watched(self, data, dtype, shape):
        widest.append(data.nbytes)
        return result(self, data, dtype, shape)

    x = torch.randn(400 * block)
    with executing(Executor.BATCHED) as launcher:
        wide_kernel[(400,)](x, torch.empty_like(x), BLOCK=block)  # learns the width
        monkeypatch.setattr(launch.BatchedBuilder, "_result", watched)
        launcher.counts.clear()
        wide_kernel[(400,)](x, torch.empty_like(x), BLOCK=block)
    assert max(widest) <= bound
    assert launcher.counts["wide_kernel"].calls == 400 * block * 4 / bound

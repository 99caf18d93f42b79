"""Where SGLang takes a snapshot of a recurrent state, which one it copies, and what depth it writes down for it.

One function per rule, and one `Rules` per release that says which of them it uses. All depths are in tokens from the
start of the prompt. A pass is one prefill forward over tokens [start, end); PR numbers are those of sgl-project/sglang.

Three sizes are easily mixed up, and most of the bugs are such mix-ups (see `Geometry`):

- the kernel chunk c, on which the kernel leaves intermediate states `h`, counted from `start`, not from 0;
- the cache chunk C = max(c, page), on which the engine wants snapshots;
- the checkpoint grid G = lcm(C, tree page), the depths that the radix tree can name as well.

The scheduler does not hand the kernel a depth. It hands it a *selector*, a sequence length from which the backend works
out by itself what to copy: a length of whole chunks means the final state, any other means the `h` below it. To get an
`h` that is not the end of the pass the scheduler therefore asks for one token more than it wants (`force_track_h`). So
the depth written down, the state copied and the convolution window are computed in three places, and no release
compares them.

Modelled: one request per pass, the extra-buffer strategy without speculative decoding. A Mamba2 kernel lays `h` out
over the flattened batch, which only matters to the second request of a batch (31833, corrected in 0.5.20), so not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mamba_replay_check.checker.geometry import Geometry, floor_to


class EngineStopped(RuntimeError):
    """The release would have ended here on an assertion of its own: a crash, not a wrong answer."""


# Which depth a prefill pass is tracked at. None: this pass leaves no snapshot.


def depth_on_cache_chunk(geometry: Geometry, start: int, end: int) -> int | None:
    """Before 34808: whole cache chunks from `start` on. With dcp the tree cannot name all of these depths."""
    tracked = floor_to(end - start, geometry.cache_chunk)
    return start + tracked if tracked else None


def depth_on_checkpoint_grid(geometry: Geometry, start: int, end: int) -> int | None:
    """34808: whole steps of the checkpoint grid, still counted from `start`, which may be off the tree page itself."""
    tracked = floor_to(end - start, geometry.checkpoint_grid)
    return start + tracked if tracked else None


def depth_on_absolute_grid(geometry: Geometry, start: int, end: int) -> int | None:
    """39115: with dcp, the last depth of the checkpoint grid counted from 0, if the kernel has a state there.

    Without dcp 40907 went back to counting from `start`, so that a prompt whose prefill was once cut off the grid can
    go on donating. That is right as long as the cut was on a page; a cut off the page is mislabelled to this day.
    """
    if geometry.dcp == 1:
        return depth_on_checkpoint_grid(geometry, start, end)
    depth = floor_to(end, geometry.checkpoint_grid)
    reachable = depth > start and (depth - start) % geometry.cache_chunk == 0
    return depth if reachable else None


# By which chunk the release counts the kernel's states.


def count_by_cache_chunk(geometry: Geometry) -> int:
    """Until 0.5.18: h[m] is looked up by the cache chunk, though the kernel leaves one a kernel chunk (33515, 35086).

    With a page of several kernel chunks the copied state is too shallow by the same factor.
    """
    return geometry.cache_chunk


def count_by_kernel_chunk(geometry: Geometry) -> int:
    """Since 0.5.19: h[m] is looked up by the chunk the kernel really uses."""
    return geometry.chunk


# How the scheduler asks for a state that is not the last one.


def force_track_h_absolute(depth: int, start: int, cache_chunk: int) -> int:
    """Until 0.5.18: the selector that makes the backend read `h` at `depth`.

    The assertion forgets that h counts from `start`, and stops a pass that could have been tracked.
    """
    if depth % cache_chunk:
        raise EngineStopped(f"depth {depth} is not a multiple of the cache chunk {cache_chunk}")
    return depth + 1


def force_track_h_relative(depth: int, start: int, cache_chunk: int) -> int:
    """Since 0.5.19: the same, with the assertion on the offset from `start`."""
    if (depth - start) % cache_chunk:
        raise EngineStopped(f"depth {depth} is not whole cache chunks of {cache_chunk} from {start}")
    return depth + 1


# Where a branch off a shared prefix gets a snapshot of its own.


def branch_on_cache_chunk(geometry: Geometry) -> int:
    """Before 34808: branches are tracked on the cache chunk."""
    return geometry.cache_chunk


def branch_on_checkpoint_grid(geometry: Geometry) -> int:
    """34808: branches are tracked where the tree can name them."""
    return geometry.checkpoint_grid


def branch_depth(grid: int, state_depth: int, kv_depth: int) -> int | None:
    """The deepest depth on `grid` where a prompt still shares KV with an earlier one, if no state reaches that far."""
    depth = floor_to(kv_depth, grid)
    return depth if depth > state_depth else None


def branch_replaces_end(branch: int, start: int, selector: int, cache_chunk: int) -> bool:
    """Whether this pass tracks the branch INSTEAD of its end: there is one snapshot a pass, and the branch wins."""
    return start < branch < selector and (branch - start) % cache_chunk == 0


# At which decode steps a snapshot is taken.


def decode_on_interval(geometry: Geometry) -> int:
    """Before 35412: every raw interval, whether or not the tree has a node there."""
    return geometry.interval


def decode_on_safe_interval(geometry: Geometry) -> int:
    """35412: every lcm of checkpoint grid and interval."""
    return geometry.safe_interval


# What the backend makes of a selector.


def state_index(selected: int, state_chunk: int) -> int | None:
    """The state copied for a selector `selected` tokens past the start: m for h[m], None for the final one."""
    return selected // state_chunk if selected % state_chunk else None


def conv_window_end(start: int, selected: int, cache_chunk: int) -> int:
    """Where the convolution's window of raw inputs ends: on the cache chunk, whatever the states are counted by."""
    return start + floor_to(selected, cache_chunk)


@dataclass(frozen=True, slots=True)
class PrefillTrack:
    """One snapshot of a prefill pass.

    depth:    what the scheduler writes down for it.
    index:    the state that the backend copies, as in `Snapshots.take`.
    conv_end: where the convolution window that goes with it ends.
    """

    depth: int
    index: int | None
    conv_end: int

    def __post_init__(self) -> None:
        assert self.depth > 0
        assert self.index is None or self.index > 0, "h[0] is the state that the pass began with"


@dataclass(frozen=True, slots=True)
class Rules:
    """The choices of one release."""

    release: str
    prefill_depth: Callable[[Geometry, int, int], int | None]
    state_chunk: Callable[[Geometry], int]
    force_track_h: Callable[[int, int, int], int]
    branch_grid: Callable[[Geometry], int]
    decode_step: Callable[[Geometry], int]

    def plan_prefill(self, geometry: Geometry, start: int, end: int, branch: int | None) -> PrefillTrack | None:
        """The snapshot of a pass over [start, end) of a request that branches off at depth `branch`, if anywhere."""
        assert 0 <= start < end
        depth = self.prefill_depth(geometry, start, end)
        if depth is None:
            return None
        selector = self._selector(geometry, start, end, depth)
        if branch is not None and branch_replaces_end(branch, start, selector, geometry.cache_chunk):
            depth = branch
            selector = self.force_track_h(branch, start, geometry.cache_chunk)
        index = state_index(selector - start, self.state_chunk(geometry))
        return PrefillTrack(depth, index, conv_window_end(start, selector - start, geometry.cache_chunk))

    def _selector(self, geometry: Geometry, start: int, end: int, depth: int) -> int:
        """`end` where the backend would find `depth` from it anyway; else one more than `depth`.

        Before 34808 the two could not differ: both were counted by the cache chunk, and the branch was dead code.
        """
        found_from_end = start + floor_to(end - start, self.state_chunk(geometry))
        return end if found_from_end == depth else self.force_track_h(depth, start, geometry.cache_chunk)


SGLANG_0_5_17 = Rules(
    release="0.5.17",
    prefill_depth=depth_on_cache_chunk,
    state_chunk=count_by_cache_chunk,
    force_track_h=force_track_h_absolute,
    branch_grid=branch_on_cache_chunk,
    decode_step=decode_on_interval,
)
"""None of the corrections."""

SGLANG_0_5_18 = Rules(
    release="0.5.18",
    prefill_depth=depth_on_checkpoint_grid,
    state_chunk=count_by_cache_chunk,
    force_track_h=force_track_h_absolute,
    branch_grid=branch_on_checkpoint_grid,
    decode_step=decode_on_interval,
)
"""34808."""

SGLANG_0_5_19 = Rules(
    release="0.5.19",
    prefill_depth=depth_on_checkpoint_grid,
    state_chunk=count_by_kernel_chunk,
    force_track_h=force_track_h_relative,
    branch_grid=branch_on_checkpoint_grid,
    decode_step=decode_on_safe_interval,
)
"""34808, 35412, and states counted by the kernel chunk. 0.5.20 has the same rules."""

SGLANG_0_5_23 = Rules(
    release="0.5.23",
    prefill_depth=depth_on_absolute_grid,
    state_chunk=count_by_kernel_chunk,
    force_track_h=force_track_h_relative,
    branch_grid=branch_on_checkpoint_grid,
    decode_step=decode_on_safe_interval,
)
"""All of the above and 39115 with 40907. 0.5.21 and 0.5.22 have the same rules."""

RELEASES = (SGLANG_0_5_17, SGLANG_0_5_18, SGLANG_0_5_19, SGLANG_0_5_23)
"""Oldest first."""

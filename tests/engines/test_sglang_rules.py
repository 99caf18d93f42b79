"""Each rule on its own, the release that has it wrong beside the one that has it right."""

from __future__ import annotations

import pytest
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines import sglang_rules as rules
from mamba_replay_check.engines.sglang_rules import (
    SGLANG_0_5_17,
    SGLANG_0_5_18,
    SGLANG_0_5_19,
    SGLANG_0_5_23,
    EngineStopped,
    PrefillTrack,
    Rules,
)

DCP8 = Geometry.with_default_interval(chunk=64, page=64, dcp=8)
PAGE128 = Geometry.with_default_interval(chunk=64, page=128, dcp=1)


def test_34808_moves_the_depth_to_the_checkpoint_grid() -> None:
    assert rules.depth_on_cache_chunk(DCP8, 16384, 20450) == 20416
    assert rules.depth_on_checkpoint_grid(DCP8, 16384, 20450) == 19968


@pytest.mark.parametrize(
    ("length", "before", "after"), [(63, None, None), (64, 64, None), (511, 448, None), (512, 512, 512)]
)
def test_34808_also_moves_the_shortest_pass_that_is_tracked(length: int, before: int | None, after: int | None) -> None:
    assert rules.depth_on_cache_chunk(DCP8, 0, length) == before
    assert rules.depth_on_checkpoint_grid(DCP8, 0, length) == after


def test_39115_counts_the_grid_from_the_start_of_the_prompt() -> None:
    assert rules.depth_on_checkpoint_grid(DCP8, 64, 605) == 576
    assert rules.depth_on_absolute_grid(DCP8, 64, 605) == 512


def test_39115_tracks_nothing_where_the_kernel_has_no_state() -> None:
    """From 100 the kernel leaves states at 164, 228 ..., none of them on a page of 512."""
    assert rules.depth_on_absolute_grid(DCP8, 100, 1200) is None


def test_40907_keeps_counting_from_the_pass_without_dcp() -> None:
    alone = Geometry.with_default_interval(chunk=64, page=16, dcp=1)
    assert rules.depth_on_absolute_grid(alone, 16, 200) == 16 + 128


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        pytest.param(SGLANG_0_5_17, PrefillTrack(20416, 63, 20416), id="0.5.17"),
        pytest.param(SGLANG_0_5_18, PrefillTrack(19968, 56, 19968), id="0.5.18"),
        pytest.param(SGLANG_0_5_23, PrefillTrack(19968, 56, 19968), id="0.5.23"),
    ],
)
def test_the_state_copied_is_the_one_below_the_depth_written_down(release: Rules, expected: PrefillTrack) -> None:
    assert release.plan_prefill(DCP8, 16384, 20450, branch=None) == expected


@pytest.mark.parametrize("release", rules.RELEASES, ids=lambda release: release.release)
def test_a_pass_of_whole_chunks_gives_its_final_state(release: Rules) -> None:
    assert release.plan_prefill(DCP8, 0, 1024, branch=None) == PrefillTrack(1024, None, 1024)


@pytest.mark.parametrize(
    ("release", "state_depth"),
    [
        pytest.param(SGLANG_0_5_17, 64, id="0.5.17"),
        pytest.param(SGLANG_0_5_18, 64, id="0.5.18"),
        pytest.param(SGLANG_0_5_19, 128, id="0.5.19"),
        pytest.param(SGLANG_0_5_23, 128, id="0.5.23"),
    ],
)
def test_33515_a_page_of_two_chunks_halves_the_index(release: Rules, state_depth: int) -> None:
    """The convolution window stands right all the while, so the two parts of one snapshot disagree."""
    track = release.plan_prefill(PAGE128, 0, 192, branch=None)
    assert track is not None and track.index is not None
    assert (track.depth, track.index * PAGE128.chunk, track.conv_end) == (128, state_depth, 128)


def test_until_0_5_18_the_assertion_stops_a_pass_that_starts_off_the_chunk() -> None:
    geometry = Geometry.with_default_interval(chunk=64, page=16, dcp=8)
    with pytest.raises(EngineStopped, match="depth 208 is not a multiple of the cache chunk 64"):
        SGLANG_0_5_18.plan_prefill(geometry, 80, 80 + 200, branch=None)
    assert SGLANG_0_5_19.plan_prefill(geometry, 80, 80 + 200, branch=None) == PrefillTrack(208, 2, 208)


def test_the_branch_takes_the_one_snapshot_of_the_pass() -> None:
    assert SGLANG_0_5_23.plan_prefill(DCP8, 0, 2048, branch=1024) == PrefillTrack(1024, 16, 1024)


@pytest.mark.parametrize(
    ("start", "branch"),
    [
        pytest.param(1024, 1024, id="already passed"),
        pytest.param(0, 3072, id="still to come"),
        pytest.param(32, 1024, id="not on a chunk of this pass"),
    ],
)
def test_a_branch_that_the_pass_cannot_reach_leaves_the_end_tracked(start: int, branch: int) -> None:
    with_branch = SGLANG_0_5_19.plan_prefill(DCP8, start, 2048, branch)
    assert with_branch == SGLANG_0_5_19.plan_prefill(DCP8, start, 2048, branch=None)


def test_34808_moves_the_branch_to_the_checkpoint_grid() -> None:
    geometry = Geometry.with_default_interval(chunk=64, page=16, dcp=3)
    assert rules.branch_depth(SGLANG_0_5_17.branch_grid(geometry), 0, kv_depth=240) == 192
    assert rules.branch_depth(SGLANG_0_5_17.branch_grid(geometry), 0, kv_depth=144) == 128  # no page of 48 ends here
    assert rules.branch_depth(SGLANG_0_5_18.branch_grid(geometry), 0, kv_depth=144) is None


def test_a_branch_no_deeper_than_a_state_is_none() -> None:
    assert rules.branch_depth(512, state_depth=512, kv_depth=1000) is None
    assert rules.branch_depth(512, state_depth=512, kv_depth=1024) == 1024


def test_35412_decodes_on_steps_that_the_tree_can_name() -> None:
    assert rules.decode_on_interval(DCP8) % DCP8.tree_page == 256
    assert rules.decode_on_safe_interval(DCP8) % DCP8.tree_page == 0


def test_which_release_has_which_correction() -> None:
    """The table of the module's docstrings, so that a release is not edited by accident."""
    assert [release.release for release in rules.RELEASES] == ["0.5.17", "0.5.18", "0.5.19", "0.5.23"]
    on_grid = [release.prefill_depth(DCP8, 0, 600) == 512 for release in rules.RELEASES]  # 34808
    by_kernel = [release.state_chunk(PAGE128) == 64 for release in rules.RELEASES]
    safe_decode = [release.decode_step(DCP8) == 512 for release in rules.RELEASES]  # 35412
    absolute = [release.prefill_depth(DCP8, 64, 605) == 512 for release in rules.RELEASES]  # 39115
    branch_on_grid = [release.branch_grid(DCP8) == 512 for release in rules.RELEASES]  # 34808
    assert on_grid == branch_on_grid == [False, True, True, True]
    assert by_kernel == [False, False, True, True]
    assert safe_decode == [False, False, True, True]
    assert absolute == [False, False, False, True]

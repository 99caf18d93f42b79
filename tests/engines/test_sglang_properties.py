"""What holds for every history: forks, follow-up turns, prefill cut anywhere, decode across intervals.

Where the newest release is right only under a condition, the condition is in the test, with a case beside it that shows
the fault without it. Those faults are the real releases' own; the model copies them on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mamba_replay_check.checker.geometry import Geometry, floor_to
from mamba_replay_check.engines import catalog
from mamba_replay_check.engines.base import Donation, Engine, Fate, Match
from mamba_replay_check.engines.sglang_rules import EngineStopped

NEWEST = catalog.NEWEST


@dataclass(frozen=True)
class Turn:
    """One request: the first `shared` tokens of the common stream, then `own` tokens of fork `fork`."""

    shared: int
    own: int
    fork: int
    decoded: int
    cuts: tuple[int, ...]

    @property
    def prompt(self) -> list[int]:
        return [*range(self.shared), *range(10_000 * self.fork, 10_000 * self.fork + self.own)]


def geometries(dcps: st.SearchStrategy[int]) -> st.SearchStrategy[Geometry]:
    chunks, pages = st.sampled_from([16, 64, 128]), st.sampled_from([1, 16, 32, 64, 128])
    return st.builds(Geometry.with_default_interval, chunks, pages, dcps)


any_dcp = st.integers(1, 8)
turns = st.builds(
    Turn,
    shared=st.integers(1, 1500),
    own=st.integers(0, 1500),
    fork=st.integers(1, 3),
    decoded=st.sampled_from([0, 0, 3, 300]),
    cuts=st.lists(st.integers(1, 2500), max_size=4).map(tuple),
)
histories = st.lists(turns, min_size=1, max_size=5)


def replay(serve, engine: Engine, geometry: Geometry, history: list[Turn], cut_grid: int) -> list[Match]:
    """Serve each turn and the conversation's next one, with prefill cut at multiples of `cut_grid` only."""
    matches = []
    for number, turn in enumerate(history):
        cuts = [floor_to(cut, cut_grid) for cut in turn.cuts]
        reply = range(100_000 * (number + 1), 100_000 * (number + 1) + turn.decoded)
        matches.append(serve(engine, geometry, turn.prompt, cuts, reply))
        matches.append(serve(engine, geometry, [*turn.prompt, *reply, 7, 7, 7], cuts))
    return matches


def assert_state_stands_where_it_is_used(match: Match) -> None:
    if match.payload is not None:
        depths = (match.claimed_depth, match.payload.state_depth, match.payload.conv_depth)
        assert depths == (match.cached_tokens,) * 3


@settings(max_examples=150, deadline=None)
@given(geometries(any_dcp), histories)
def test_the_newest_release_is_right_when_prefill_is_cut_on_pages(
    serve, geometry: Geometry, history: list[Turn]
) -> None:
    engine = catalog.create(NEWEST, geometry)
    for match in replay(serve, engine, geometry, history, cut_grid=geometry.page):
        assert_state_stands_where_it_is_used(match)
    assert all(one.claimed_depth == one.node_depth for one in engine.donations)


@settings(max_examples=100, deadline=None)
@given(geometries(st.integers(2, 8)), histories)
def test_with_dcp_the_newest_release_is_right_wherever_prefill_is_cut(
    serve, geometry: Geometry, history: list[Turn]
) -> None:
    engine = catalog.create(NEWEST, geometry)
    for match in replay(serve, engine, geometry, history, cut_grid=1):
        assert_state_stands_where_it_is_used(match)


def test_without_dcp_the_newest_release_mislabels_after_a_cut_off_the_page(serve) -> None:
    """Open: 40907 counts from the start of the pass and trusts that it is on a page.

    The scheduler's own cut of a prompt it continues is not rounded to pages (PrefillAdder.add_chunked_req).
    """
    geometry = Geometry.with_default_interval(chunk=64, page=64, dcp=1)
    engine = catalog.create(NEWEST, geometry)
    serve(engine, geometry, range(1000), cuts=[100])
    assert engine.donations[-1] == Donation(0, 996, 960, Fate.ATTACHED)
    resumed = engine.match(range(1000))
    assert (resumed.cached_tokens, resumed.payload.state_depth) == (960, 996)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(catalog.available()), geometries(any_dcp), histories)
def test_the_guard_keeps_every_release_true_to_its_own_books(
    serve, name: str, geometry: Geometry, history: list[Turn]
) -> None:
    """The books are all it sees: where the backend copies another state than planned (33515), it is no help."""
    engine = catalog.create(name, geometry, guard=True)
    try:
        matches = replay(serve, engine, geometry, history, cut_grid=1)
    except EngineStopped:
        assume(False)
    copies_what_it_planned = geometry.page <= geometry.chunk or name not in (
        "model:sglang-0.5.17",
        "model:sglang-0.5.18",
    )
    for match in matches:
        if match.payload is not None:
            assert match.claimed_depth == match.cached_tokens
            if copies_what_it_planned:
                assert_state_stands_where_it_is_used(match)


@settings(max_examples=100, deadline=None)
@given(geometries(any_dcp), st.integers(1, 4000))
def test_before_34808_the_gap_is_whole_cache_chunks_short_of_a_tree_page(
    serve, geometry: Geometry, length: int
) -> None:
    assume(geometry.tree_page % geometry.cache_chunk == 0)
    engine = catalog.create("model:sglang-0.5.17", geometry)
    serve(engine, geometry, range(length))
    for one in engine.donations:
        gap = one.claimed_depth - one.node_depth
        assert gap in range(0, geometry.tree_page, geometry.cache_chunk)


@settings(max_examples=100, deadline=None)
@given(geometries(any_dcp), st.integers(1, 4000))
def test_the_newest_release_keeps_all_that_the_grid_allows(serve, geometry: Geometry, length: int) -> None:
    engine = catalog.create(NEWEST, geometry)
    serve(engine, geometry, range(length))
    assert engine.match(range(length + 1)).cached_tokens == floor_to(length, geometry.checkpoint_grid)


@pytest.mark.parametrize("name", ["model:sglang-0.5.17", "model:sglang-0.5.18", "model:sglang-0.5.19"])
def test_the_properties_above_can_fail(serve, name: str) -> None:
    """An older release, one history: were the first property asked of it, it would be found out."""
    geometry = Geometry.with_default_interval(chunk=64, page=64, dcp=8)
    engine = catalog.create(name, geometry)
    replay(serve, engine, geometry, [Turn(605, 0, 1, 0, (64,))], cut_grid=geometry.page)
    assert any(one.claimed_depth != one.node_depth for one in engine.donations)

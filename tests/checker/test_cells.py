"""What a donor's history allows to be reused, held against every depth tried one by one and against the engines."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mamba_replay_check.checker.cells import Cell
from mamba_replay_check.checker.drive import drive
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.checker.trajectory import Snapshot, Tag
from mamba_replay_check.engines.base import Snapshots
from mamba_replay_check.engines.catalog import NEWEST, available, create
from mamba_replay_check.reference.page_tree import PageTree
from mamba_replay_check.scenarios.prompt import Prompt

powers = st.sampled_from([1, 16, 32, 64, 128])
geometries = st.builds(Geometry.with_default_interval, st.sampled_from([16, 32, 64]), powers, st.integers(1, 8))
prompts = st.builds(
    Prompt,
    st.lists(st.one_of(st.integers(1, 700), st.sampled_from([64, 128, 512])), min_size=1, max_size=4).map(tuple),
    st.sampled_from([0, 0, 1, 300, 512]),
    st.sampled_from([0, 1, 64, 65]),
)
cells = st.builds(Cell, geometries, prompts, st.just("seeded"))


def allowed(cell: Cell) -> int:
    """`reusable` as its docstring says it, by trying every depth."""
    geometry, start, found = cell.geometry, 0, 0
    for size in cell.prompt.prefill:
        ends = range(start + 1, start + size + 1)
        named = [d for d in ends if (d - start) % geometry.cache_chunk == 0 and d % geometry.tree_page == 0]
        found = max([found, *(d for d in named[-1:] if d < cell.prompt.resume_length)])
        start += size
    decoded = [d for d in range(start + 1, start + cell.prompt.decode + 1) if d % geometry.safe_interval == 0]
    return max([found, *(d for d in decoded[-1:] if d < cell.prompt.resume_length)])


class Counting(Snapshots):
    """A pass whose states are tags and nothing else."""

    def __init__(self, chunk: int, start: int, end: int) -> None:
        self._chunk, self._start, self._end = chunk, start, end

    def take(self, index: int | None, conv_end: int) -> Snapshot:
        depth = self._end if index is None else self._start + index * self._chunk
        return Snapshot(Tag("seeded", depth, conv_end), dict)


def driven(name: str, cell: Cell, guard: bool = False):
    tokens = list(range(cell.prompt.resume_length))
    offer = lambda start, end: Counting(cell.geometry.chunk, start, end)  # noqa: E731
    return drive(lambda: create(name, cell.geometry, guard), cell, tokens, offer)[0]


@settings(max_examples=300, deadline=None)
@given(cells)
def test_reusable_is_what_its_docstring_says(cell: Cell) -> None:
    assert cell.reusable == allowed(cell)


@pytest.mark.parametrize(
    "sizes, prompt, expected",
    [
        ((64, 64, 8, 256), "16384+4066", 19968),
        ((64, 64, 4, 256), "16384+4066", 20224),
        ((64, 64, 1, 256), "16384+4066", 20416),
        ((64, 64, 8, 256), "64+541", 512),
        ((64, 64, 1, 256), "64", 0),
        ((64, 64, 1, 256), "64n1", 64),
        ((64, 64, 1, 64), "500d80n64", 576),
        ((64, 64, 1, 64), "500d76", 448),
        ((64, 64, 2, 64), "100+541", 0),
        ((64, 1, 1, 64), "100+541", 612),
    ],
)
def test_table(sizes: tuple[int, ...], prompt: str, expected: int) -> None:
    assert Cell(Geometry(*sizes), Prompt.parse(prompt), "seeded").reusable == expected


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(available()), cells, st.booleans())
def test_no_engine_rightly_reuses_more_than_the_history_allows(name: str, cell: Cell, guard: bool) -> None:
    """What is deeper is a state that stands elsewhere than the engine says: a finding, and not more reuse."""
    replay = driven(name, cell, guard)
    assert replay.failure == "" or "EngineStopped" in replay.failure
    assert replay.cached_tokens <= cell.reusable or replay.state_depth != replay.cached_tokens


@settings(max_examples=300, deadline=None)
@given(geometries, st.integers(1, 3000), st.sampled_from([0, 1, 65]))
def test_the_newest_engine_reuses_all_of_it_when_prefill_is_one_pass(
    geometry: Geometry, length: int, more: int
) -> None:
    cell = Cell(geometry, Prompt((length,), next_turn=more), "seeded")
    replay = driven(NEWEST, cell)
    assert (replay.cached_tokens, replay.failure) == (cell.reusable, "")
    if cell.reusable:
        assert replay.state_depth == replay.conv_depth == replay.claimed_depth == cell.reusable


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(available()), cells)
def test_cached_tokens_are_where_a_naive_page_tree_has_a_state(name: str, cell: Cell) -> None:
    """The same donations into the reference's tree, which knows nothing of nodes and splits."""
    replay = driven(name, cell)
    assume(not replay.failure)
    tokens = list(range(cell.prompt.resume_length))
    tree: PageTree[int] = PageTree(cell.geometry)
    for donation in replay.donations:
        given_state = donation.claimed_depth if donation.node_depth else None
        tree.insert(tokens[: donation.claimed_depth], donation.node_depth, given_state)
    found = tree.match(tokens)
    assert (found.depth, found.state) == (replay.cached_tokens, replay.claimed_depth)

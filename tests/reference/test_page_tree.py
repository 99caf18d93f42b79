"""The page tree against its definition: a prefix is cached if and only if some prompt brought it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mamba_replay_check.checker.geometry import Geometry, floor_to
from mamba_replay_check.reference.page_tree import (
    Match,
    PageTree,
    checkpoint_depths,
    deepest_checkpoint,
    nameable_depths,
)

SEED_CASE = Geometry(chunk=64, page=64, dcp=7, interval=256)  # tree page 448


def geometry_of(small: int, factor: int, chunk_is_larger: bool, dcp: int) -> Geometry:
    chunk, page = (small * factor, small) if chunk_is_larger else (small, small * factor)
    return Geometry.with_default_interval(chunk, page, dcp)


geometries = st.builds(geometry_of, st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(1, 4))
tiny = st.builds(lambda page, dcp: Geometry.with_default_interval(1, page, dcp), st.integers(1, 3), st.integers(1, 2))
prompts = st.lists(st.integers(0, 1), max_size=14).map(tuple)
histories = st.lists(st.tuples(prompts, st.one_of(st.none(), st.integers(1, 14))), max_size=6)


def grow(geometry: Geometry, history) -> tuple[PageTree, list[tuple[tuple[int, ...], int | None]]]:
    """A tree after a history, and what really went in: a state that no path can name stays out."""
    tree, inserted = PageTree(geometry), []
    for tokens, depth in history:
        legal = depth if depth in nameable_depths(geometry, len(tokens)) else None
        if legal is None:
            tree.insert(tokens)
        else:
            tree.insert(tokens, legal, state=tokens[:legal])
        inserted.append((tokens, legal))
    return tree, inserted


@settings(deadline=None)
@given(tiny, histories, prompts)
def test_match_is_the_definition(geometry, history, prompt):
    tree, inserted = grow(geometry, history)
    page = geometry.page * geometry.dcp
    kv_depth = depth = 0
    for candidate in range(page, len(prompt), page):  # stops short of the last token
        if any(tokens[:candidate] == prompt[:candidate] for tokens, _ in inserted):
            kv_depth = candidate
        if any(state == candidate and tokens[:state] == prompt[:state] for tokens, state in inserted):
            depth = candidate
    assert tree.match(prompt) == Match(depth, prompt[:depth] or None, kv_depth)


@settings(deadline=None)
@given(tiny, histories, prompts)
def test_insert_says_what_was_held(geometry, history, prompt):
    tree, _ = grow(geometry, history)
    held = tree.match((*prompt, 0)).kv_depth  # one more token, so that the prompt itself may match in full
    assert tree.insert(prompt) == held
    assert tree.insert(prompt) == floor_to(len(prompt), geometry.tree_page)


@settings(deadline=None)
@given(tiny, histories, histories, prompts)
def test_more_history_never_shortens_a_match(geometry, history, more, prompt):
    before = grow(geometry, history)[0].match(prompt)
    after = grow(geometry, history + more)[0].match(prompt)
    assert after.depth >= before.depth
    assert after.kv_depth >= before.kv_depth


@settings(deadline=None)
@given(geometries, st.integers(0, 200))
def test_checkpoints_are_what_both_tree_and_engine_can_name(geometry, length):
    tree = {depth for depth in range(1, length + 1) if depth % (geometry.page * geometry.dcp) == 0}
    engine = {d for d in range(1, length + 1) if d % geometry.chunk == 0 and d % geometry.page == 0}
    assert list(nameable_depths(geometry, length)) == sorted(tree)
    assert list(checkpoint_depths(geometry, length)) == sorted(tree & engine)
    assert deepest_checkpoint(geometry, length) == max(tree & engine, default=0)


def test_the_seed_case():
    """A donor of 20,450 tokens, as in SGLang PR 34808: the engine's last snapshot is not a depth the tree can name."""
    tokens = range(20_450)
    assert deepest_checkpoint(SEED_CASE, 20_450) == 20_160
    tree = PageTree(SEED_CASE)
    with pytest.raises(ValueError, match="no path over 20450 tokens in tree pages of 448 ends at depth 20416"):
        tree.insert(tokens, 20_416, "state after 20416")
    assert tree.match(tokens).kv_depth == 0, "a refused insert leaves nothing behind"
    tree.insert(tokens, 19_712, "state after 19712")
    assert tree.match(tokens) == Match(19_712, "state after 19712", 20_160)


def test_the_last_token_is_always_left_to_compute():
    tree = PageTree(Geometry(1, 2, 1, 2))
    tree.insert([5, 6, 7, 8], 2, "two")
    tree.insert([5, 6, 7, 8], 4, "four")
    assert tree.match([5, 6, 7, 8]) == Match(2, "two", 2)
    assert tree.match([5, 6, 7, 8, 9]) == Match(4, "four", 4)
    assert tree.match([5, 6]) == Match(0, None, 0)
    assert tree.match([]) == Match(0, None, 0)


def test_the_first_state_of_a_prefix_stays():
    tree = PageTree(Geometry(1, 2, 1, 2))
    tree.insert([1, 2, 3], 2, "first")
    tree.insert([1, 2, 9, 9], 2, "second")
    assert tree.match([1, 2, 4]).state == "first"


@pytest.mark.parametrize("depth", [0, 1, 3, 6])
def test_a_state_at_a_depth_no_path_ends_at_is_refused(depth):
    with pytest.raises(ValueError, match=f"over 5 tokens in tree pages of 2 ends at depth {depth}"):
        PageTree(Geometry(1, 2, 1, 2)).insert([1, 2, 3, 4, 5], depth, "state")

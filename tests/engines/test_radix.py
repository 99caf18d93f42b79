"""The radix tree: each rule by hand, then all of them against a cache that has no tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mamba_replay_check.engines.radix import Inserted, RadixTree, TreeMatch

PAGE = 4
LONG = tuple(range(16))
"""Four pages."""


def test_an_empty_tree_matches_nothing() -> None:
    assert RadixTree(PAGE).match(LONG) == TreeMatch(0, None, 0)


def test_a_state_is_found_by_a_longer_prompt() -> None:
    tree: RadixTree[str] = RadixTree(PAGE)
    assert tree.insert(LONG, "deep") == Inserted(16, took_state=True)
    assert tree.match((*LONG, 99)) == TreeMatch(16, "deep", 16)


def test_only_whole_pages_enter() -> None:
    tree: RadixTree[str] = RadixTree(PAGE)
    assert tree.insert(LONG[:15], "cut") == Inserted(12, took_state=True)
    assert tree.match(LONG) == TreeMatch(12, "cut", 12)


@pytest.mark.parametrize("length", [0, 1, PAGE - 1])
def test_less_than_a_page_has_no_node(length: int) -> None:
    tree: RadixTree[str] = RadixTree(PAGE)
    assert tree.insert(LONG[:length], "lost") == Inserted(0, took_state=False)


def test_the_last_token_is_never_matched() -> None:
    """The same prompt again stops one page short of the node's end, where there is no state."""
    tree: RadixTree[str] = RadixTree(PAGE)
    tree.insert(LONG, "deep")
    assert tree.match(LONG) == TreeMatch(0, None, 12)


def test_the_upper_half_of_a_split_has_no_state_until_it_is_given_one() -> None:
    tree: RadixTree[str] = RadixTree(PAGE)
    tree.insert(LONG, "first")
    fork = (*LONG[:8], 50, 51, 52, 53)
    assert tree.insert(fork, "second") == Inserted(12, took_state=True)
    assert tree.match((*LONG[:8], 90, 91, 92, 93, 94)) == TreeMatch(0, None, 8)
    assert tree.insert(LONG[:8], "shared") == Inserted(8, took_state=True)
    assert tree.match((*LONG[:8], 90, 91, 92, 93, 94)) == TreeMatch(8, "shared", 8)
    assert tree.match((*LONG, 99)) == TreeMatch(16, "first", 16)
    assert tree.match((*fork, 99)) == TreeMatch(12, "second", 12)


def test_the_first_writer_wins() -> None:
    tree: RadixTree[str] = RadixTree(PAGE)
    tree.insert(LONG, "first")
    assert tree.insert(LONG, "second") == Inserted(16, took_state=False)
    assert tree.match((*LONG, 99)).state == "first"


def test_kv_can_enter_without_a_state() -> None:
    tree: RadixTree[str] = RadixTree(PAGE)
    tree.insert(LONG[:8], "shallow")
    assert tree.insert(LONG, None) == Inserted(16, took_state=False)
    assert tree.match((*LONG, 99)) == TreeMatch(8, "shallow", 16)


class PrefixList:
    """The oracle: every prefix that was ever inserted, page by page, and who wrote its state first."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.kv: set[tuple[int, ...]] = set()
        self.states: dict[tuple[int, ...], int] = {}

    def insert(self, tokens: list[int], state: int | None) -> tuple[int, bool]:
        whole = len(tokens) // self.page * self.page
        self.kv |= {tuple(tokens[:end]) for end in range(self.page, whole + 1, self.page)}
        key = tuple(tokens[:whole])
        took = bool(key) and state is not None and key not in self.states
        if took:
            self.states[key] = state
        return whole, took

    def match(self, tokens: list[int]) -> tuple[int, int | None, int]:
        ends = range(0, len(tokens), self.page)  # stops short of the last token
        kv_depth = max(end for end in ends if end == 0 or tuple(tokens[:end]) in self.kv)
        resume = max(end for end in ends if end == 0 or tuple(tokens[:end]) in self.states)
        return resume, self.states.get(tuple(tokens[:resume])), kv_depth


# Few tokens and pages, so that prompts share prefixes, fork inside nodes and end on each other.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)


@given(st.integers(1, 4), st.lists(st.tuples(prompts, st.booleans(), prompts), max_size=12))
def test_the_tree_answers_as_a_list_of_prefixes_would(
    page: int, steps: list[tuple[list[int], bool, list[int]]]
) -> None:
    tree: RadixTree[int] = RadixTree(page)
    oracle = PrefixList(page)
    for writer, (inserted, with_state, asked) in enumerate(steps):
        state = writer if with_state else None
        result = tree.insert(inserted, state)
        assert (result.node_depth, result.took_state) == oracle.insert(inserted, state)
        found = tree.match(asked)
        assert (found.state_depth, found.state, found.kv_depth) == oracle.match(asked)

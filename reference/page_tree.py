"""Which depths a prefix cache can name, and the plainest cache that obeys it.

A radix tree compresses paths, splits nodes and keeps the state on whichever node ends at its depth. None of that may
change an answer, so the oracle has no nodes: it remembers whole prompts and whole prefixes and compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from mamba_replay_check.checker.geometry import Geometry, floor_to

State = TypeVar("State")


def nameable_depths(geometry: Geometry, length: int) -> range:
    """The depths at which a path over `length` tokens can end in the tree, shallowest first, without the root."""
    return range(geometry.tree_page, length + 1, geometry.tree_page)


def checkpoint_depths(geometry: Geometry, length: int) -> range:
    """The nameable depths at which the engine also has a state from prefill, shallowest first."""
    return range(geometry.checkpoint_grid, length + 1, geometry.checkpoint_grid)


def deepest_checkpoint(geometry: Geometry, length: int) -> int:
    """The last of `checkpoint_depths`, or 0 where there is none: start cold."""
    return floor_to(length, geometry.checkpoint_grid)


class Match(NamedTuple, Generic[State]):
    """What the cache holds for a prompt."""

    depth: int  # where to resume: the deepest usable state; 0 is a cold start
    state: State | None  # the state that stands at `depth`; None exactly when depth is 0
    kv_depth: int  # tokens whose KV is cached, at least `depth`; those past `depth` must be recomputed all the same


class PageTree(Generic[State]):
    """All prefixes ever inserted; nothing is evicted.

    A state is any value but None. It is kept, handed back as it is, and never looked into.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._paths: list[tuple[int, ...]] = []
        self._states: dict[tuple[int, ...], State] = {}

    def insert(self, tokens: Sequence[int], depth: int = 0, state: State | None = None) -> int:
        """Cache the KV of every whole page of `tokens`, and `state` as what stands after exactly tokens[:depth].

        Returns how many of the tokens were cached already. A second state for the same prefix is dropped, as a tree
        does: it can only repeat the first. A depth that no path can end at is refused, never rounded.
        """
        tokens, page = tuple(tokens), self._geometry.tree_page
        if state is not None and depth not in nameable_depths(self._geometry, len(tokens)):
            raise ValueError(f"no path over {len(tokens)} tokens in tree pages of {page} ends at depth {depth}")
        held = self._held(tokens)
        self._paths.append(tokens[: floor_to(len(tokens), page)])
        if state is not None:
            self._states.setdefault(tokens[:depth], state)
        return held

    def match(self, tokens: Sequence[int]) -> Match[State]:
        """The deepest reuse for a prompt. At least its last token is left to compute: that one yields the logits."""
        usable = tuple(tokens)[:-1]
        prefixes = [prefix for prefix in self._states if usable[: len(prefix)] == prefix]
        deepest = max(prefixes, key=len, default=())
        return Match(len(deepest), self._states.get(deepest), self._held(usable))

    def _held(self, tokens: tuple[int, ...]) -> int:
        """The longest prefix of `tokens`, in whole pages, that some inserted prompt begins with."""
        return max((floor_to(_common(path, tokens), self._geometry.tree_page) for path in self._paths), default=0)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many leading tokens two sequences share."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

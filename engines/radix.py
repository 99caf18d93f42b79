"""The radix tree that a prefix cache hangs recurrent states on.

A node stands for a prompt prefix, and only whole tree pages have names: `node.depth` is a multiple of the page. Every
node holds the attention cache (KV) of its tokens, because KV can be cut at any page; a recurrent state cannot be cut,
so it belongs to exactly the depth where its node ends. Three rules follow, and SGLang's unified tree keeps them all:

1. A node that is split leaves its state with its lower half. The upper half ends earlier and gets NO state.
2. A match resumes at the deepest node that HAS a state, however much more KV the path holds.
3. The first writer wins: a node that has a state keeps it, and a later one for the same prefix is dropped.

The tree does not ask whether a state really stands where its node ends. That is the question of this whole program.

Left out, because no depth depends on it: eviction, locks, the host and storage tiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mamba_replay_check.checker.geometry import floor_to

State = TypeVar("State")


@dataclass(slots=True, eq=False)
class Node(Generic[State]):
    """The prefix of `depth` tokens; `edge` holds those of them that come after the parent."""

    edge: tuple[int, ...]
    depth: int
    state: State | None = None
    children: dict[tuple[int, ...], Node[State]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert 0 <= len(self.edge) <= self.depth


@dataclass(frozen=True, slots=True)
class TreeMatch(Generic[State]):
    """What the tree holds of a prompt. Depths are in tokens.

    state_depth: where the deepest node with a state ends; 0 when there is none.
    state:       that state, or None.
    kv_depth:    how far the attention cache alone would reach.
    """

    state_depth: int
    state: State | None
    kv_depth: int

    def __post_init__(self) -> None:
        assert 0 <= self.state_depth <= self.kv_depth
        assert (self.state is None) == (self.state_depth == 0)


@dataclass(frozen=True, slots=True)
class Inserted:
    """Where the inserted tokens end in the tree, and whether that node took the state it was offered."""

    node_depth: int
    took_state: bool

    def __post_init__(self) -> None:
        assert self.node_depth > 0 or not self.took_state, "the root names no prefix"


class RadixTree(Generic[State]):
    """A page-granular radix tree; children are keyed by their first page of tokens."""

    def __init__(self, page: int) -> None:
        assert page >= 1
        self.page = page
        self._root: Node[State] = Node(edge=(), depth=0)

    def match(self, tokens: Sequence[int]) -> TreeMatch[State]:
        """Look a prompt up. Its last token is never matched: one token must be left to compute logits from.

        The tree is not changed. (SGLang splits a half-matched node here already; an insert would split it at the same
        place, and the new upper node has no state to offer, so no later answer differs.)
        """
        path = tuple(tokens[: floor_to(max(len(tokens) - 1, 0), self.page)])
        node = resume = self._root
        kv_depth = 0
        while (child := self._next_child(node, path)) is not None:
            shared = self._shared_length(child, path, node.depth)
            kv_depth += shared
            if shared < len(child.edge):
                break
            node = child
            if node.state is not None:
                resume = node
        return TreeMatch(resume.depth, resume.state, kv_depth)

    def insert(self, tokens: Sequence[int], state: State | None) -> Inserted:
        """Add the whole pages of `tokens` and offer `state` to the node they end on; None adds their KV alone."""
        path = tuple(tokens[: floor_to(len(tokens), self.page)])
        node = self._root
        while node.depth < len(path):
            child = self._next_child(node, path)
            if child is None:
                child = self._attach(node, Node(edge=path[node.depth :], depth=len(path)))
            elif (shared := self._shared_length(child, path, node.depth)) < len(child.edge):
                child = self._split(node, child, shared)
            node = child
        took = node is not self._root and node.state is None and state is not None
        if took:
            node.state = state
        return Inserted(node.depth, took)

    def _next_child(self, node: Node[State], path: tuple[int, ...]) -> Node[State] | None:
        return node.children.get(path[node.depth : node.depth + self.page])

    def _shared_length(self, child: Node[State], path: tuple[int, ...], start: int) -> int:
        """Tokens, in whole pages, that the child's edge and `path` from `start` on have in common."""
        longest = min(len(child.edge), len(path) - start)
        if child.edge[:longest] == path[start : start + longest]:
            return longest
        shared = 0
        while child.edge[shared : shared + self.page] == path[start + shared : start + shared + self.page]:
            shared += self.page
        return shared

    def _split(self, parent: Node[State], lower: Node[State], length: int) -> Node[State]:
        """Cut `lower` after `length` tokens of its edge; returns the new upper node, which has no state."""
        assert 0 < length < len(lower.edge)
        upper: Node[State] = Node(edge=lower.edge[:length], depth=parent.depth + length)
        lower.edge = lower.edge[length:]
        self._attach(parent, upper)
        self._attach(upper, lower)
        return upper

    def _attach(self, parent: Node[State], child: Node[State]) -> Node[State]:
        """Hang `child` under `parent`, over whatever had the same first page there (the node that is being split)."""
        assert child.edge and len(child.edge) % self.page == 0
        assert child.depth == parent.depth + len(child.edge)
        parent.children[child.edge[: self.page]] = child
        return child

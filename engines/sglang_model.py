"""SGLang's prefix cache for recurrent states, from its rules: scheduler, track buffer and radix tree as one object.

A request owns two track slots and fills them in turn, so that the slot it last wrote survives while the next is being
written. With each snapshot it writes down a depth. It donates the last slot written, under that depth:

- between two prefill passes, and once more between prefill and the first decode step ("unfinished" in SGLang);
- when it finishes.

The tree attaches the donated state to the node that the donated tokens end on, in whole tree pages. If the depth
written down is not a whole number of them, state and node part ways here, and nothing says so, unless the guard is on.

The request's active slot, the state that every pass carries on from, is the check's own: it computes, this does not.
Handing out a payload stands for copying it (SGLang copies on match): no one writes to a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mamba_replay_check.checker.geometry import Geometry, floor_to
from mamba_replay_check.engines.base import Donation, Engine, Fate, Match, Payload, RequestId, Snapshots
from mamba_replay_check.engines.radix import RadixTree
from mamba_replay_check.engines.sglang_rules import Rules, branch_depth


class TreeState(NamedTuple):
    """A donated state, and the depth at which its donor said it stands."""

    payload: Payload
    claimed_depth: int


@dataclass(slots=True)
class TrackSlots:
    """The two snapshot slots of a request ("ping-pong"), and the depth written down for the one written last."""

    payloads: list[Payload | None] = field(default_factory=lambda: [None, None])
    next_slot: int = 0
    last_depth: int | None = None

    def write(self, payload: Payload, depth: int) -> None:
        """Fill the next slot and turn to the other."""
        self.payloads[self.next_slot] = payload
        self.next_slot = 1 - self.next_slot
        self.last_depth = depth

    def donate(self) -> TreeState | None:
        """Give the last snapshot away, at most once; a fresh slot takes its place."""
        if self.last_depth is None:
            return None
        kept_slot = 1 - self.next_slot
        donated = TreeState(self.payloads[kept_slot], self.last_depth)
        self.payloads[kept_slot] = None
        self.last_depth = None
        return donated


@dataclass(slots=True)
class LiveRequest:
    """A request that is being served.

    tokens:   its prompt, then what it decoded.
    prompt:   tokens in its prompt.
    absorbed: tokens that its active state has seen.
    branch:   where it leaves a shared prefix that has KV but no state, on the branch grid; None if nowhere.
    """

    tokens: list[int]
    prompt: int
    absorbed: int
    branch: int | None
    slots: TrackSlots = field(default_factory=TrackSlots)
    decoding: bool = False

    def __post_init__(self) -> None:
        assert 0 <= self.absorbed < self.prompt == len(self.tokens)
        assert self.branch is None or self.branch > self.absorbed


class SGLangModel(Engine):
    """One empty SGLang cache of one release. Requests may be live side by side; a pass serves one of them."""

    def __init__(self, geometry: Geometry, rules: Rules, guard: bool = False) -> None:
        """guard: refuse a donation whose depth is not where its node ends, as 34760 and 34780 proposed.

        Neither was merged. A refusal costs reuse only: the tokens' KV still enters the tree, without a state.
        """
        self.name = f"model:sglang-{rules.release}"
        self._geometry = geometry
        self._rules = rules
        self._guard = guard
        self._tree: RadixTree[TreeState] = RadixTree(geometry.tree_page)
        self._live: dict[RequestId, LiveRequest] = {}
        self._next_request: RequestId = 0
        self._donations: list[Donation] = []

    def match(self, tokens: Sequence[int]) -> Match:
        found = self._tree.match(tokens)
        request = self._next_request
        self._next_request += 1
        grid = self._rules.branch_grid(self._geometry)
        branch = branch_depth(grid, found.state_depth, found.kv_depth)
        self._live[request] = LiveRequest(list(tokens), len(tokens), found.state_depth, branch)
        if found.state is None:
            return Match(request, 0, None, None)
        return Match(request, found.state_depth, found.state.payload, found.state.claimed_depth)

    def extend(self, request: RequestId, start: int, end: int, snapshots: Snapshots) -> None:
        live = self._live[request]
        assert start == live.absorbed < end <= live.prompt, f"pass [{start}, {end}) after {live.absorbed} tokens"
        track = self._rules.plan_prefill(self._geometry, start, end, live.branch)
        if track is not None:
            live.slots.write(snapshots.take(track.index, track.conv_end), track.depth)
        live.absorbed = end
        if end < live.prompt:
            self._donate(request)

    def decode(self, request: RequestId, token: int, snapshots: Snapshots) -> None:
        live = self._live[request]
        assert live.absorbed == len(live.tokens), "decode begins where the prompt ends"
        if not live.decoding:
            live.decoding = True
            self._donate(request)
        live.tokens.append(token)
        live.absorbed += 1
        if live.absorbed % self._rules.decode_step(self._geometry) == 0:
            live.slots.write(snapshots.take(None, live.absorbed), live.absorbed)

    def finish(self, request: RequestId) -> None:
        self._donate(request)
        del self._live[request]

    @property
    def donations(self) -> Sequence[Donation]:
        return tuple(self._donations)

    def _donate(self, request: RequestId) -> None:
        """Hand the request's last snapshot to the tree. Without one since the last donation not even KV is inserted."""
        live = self._live[request]
        state = live.slots.donate()
        if state is None:
            return
        node_depth = floor_to(state.claimed_depth, self._geometry.tree_page)
        refused = self._guard and node_depth != state.claimed_depth
        inserted = self._tree.insert(live.tokens[: state.claimed_depth], None if refused else state)
        assert inserted.node_depth == node_depth
        if node_depth == 0:
            fate = Fate.NO_NODE
        elif refused:
            fate = Fate.REFUSED
        else:
            fate = Fate.ATTACHED if inserted.took_state else Fate.ALREADY_THERE
        self._donations.append(Donation(request, state.claimed_depth, node_depth, fate))

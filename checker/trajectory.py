"""The cold run of one token stream, and the states that an engine may snapshot along it.

Every prompt of a run is a prefix of one stream, and a causal model's states depend on nothing that comes later. So one
cold pass serves every prompt length, every page and dcp size, and every donor: the state that a donor leaves at depth d
is the state of the stream at depth d, however its prefill was cut. Where d stands on a kernel chunk it is bit for bit
the kernel's own `h`; elsewhere the last few tokens are run from the chunk boundary below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ..engines.base import Snapshots
from ..kernels.attention import KVCache
from ..kernels.mixers import RecurrentState
from ..kernels.stack import Span, Stack, StackState, Trace
from ..scenarios.prompt import Prompt
from ..scenarios.tokens import parted
from .geometry import floor_to


@dataclass(frozen=True, slots=True)
class Tag:
    """Where a snapshot was really taken: the tokens its recurrent state and its convolution window had absorbed."""

    stream: str
    depth: int
    conv_depth: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The payload that engines move about. Most do not look into it; `read` gives the tensors, made when needed.

    tag: None for bytes that an engine handed back without saying which snapshot they once were.
    """

    tag: Tag | None
    read: Callable[[], StackState]


class Trajectory:
    """A stream of tokens and its cold run up to `length`, computed on first use."""

    def __init__(self, name: str, tokens: Sequence[int] | Tensor, length: int, stack: Stack) -> None:
        self.name = name
        self.length = length
        self.stack = stack
        self.tokens = torch.as_tensor(tokens[:length], dtype=torch.int64)
        self._between: dict[int, StackState] = {}

    @cached_property
    def cold(self) -> Trace:
        """The whole stream from an empty state."""
        return self.stack.run([Span(self.tokens)])[0]

    def caches(self, depth: int) -> dict[int, KVCache]:
        """The KV of the first `depth` tokens: what an engine's attention layers resume over."""
        return {layer: cache.cut(depth) for layer, cache in self.cold.caches.items()}

    def state(self, depth: int, conv_depth: int | None = None) -> StackState:
        """The states after `depth` tokens, with the convolution windows of `conv_depth` (default: the same)."""
        chunk = self.stack.chunk
        below = floor_to(depth, chunk)
        if depth == self.length:
            state = self.cold.state(None, depth)
        elif below == depth:
            state = self.cold.state(depth // chunk, depth)
        else:
            if depth not in self._between:
                start = self.cold.state(below // chunk, below)
                step = Span(self.tokens[below:depth], below, start, self.caches(below))
                self._between[depth] = self.stack.run([step])[0].state(None, depth)
            state = self._between[depth]
        if conv_depth is None or conv_depth == depth:
            return state
        windows = self.cold.recurrent
        return {i: RecurrentState(s.recurrent, windows[i].window(conv_depth)) for i, s in state.items()}

    def empty(self) -> StackState:
        """The states before the first token: zeros."""
        return self.cold.state(0, 0)

    def resume(self, state: StackState, cached_tokens: int, end: int) -> Span:
        """The resumed run of the first `end` tokens: from this state, over the KV of `cached_tokens` tokens."""
        return Span(self.tokens[cached_tokens:end], cached_tokens, state, self.caches(cached_tokens))


class Donor:
    """What a donor absorbs: the tokens of a trajectory, and others from where the resuming prompt parts from it."""

    def __init__(self, trajectory: Trajectory, tokens: Sequence[int], prompt: Prompt) -> None:
        """tokens: the stream of the trajectory, as long as the donor needs it."""
        self.stack = trajectory.stack
        self._trunk, self._tokens, self._prompt = trajectory, tokens, prompt

    def along(self, depth: int) -> Trajectory:
        """The trajectory on which the donor's states of this depth stand."""
        return self._trunk if depth <= self._prompt.shared_length else self.own

    @cached_property
    def own(self) -> Trajectory:
        """The donor's own from the first token to its last."""
        branch = self._prompt.branch
        if branch is None:
            return self._trunk
        name = f"{self._trunk.name}, other tokens from {branch}"
        return Trajectory(name, parted(self._tokens, branch), self._prompt.donor_length, self.stack)


class OfferedSnapshots(Snapshots):
    """What a donor's pass over tokens [start, end) leaves to be snapshotted."""

    def __init__(self, donor: Donor, start: int, end: int) -> None:
        self._donor, self._start, self._end = donor, start, end

    def take(self, index: int | None, conv_end: int) -> Snapshot:
        if not self._start <= conv_end <= self._end:
            raise IndexError(
                f"a pass over [{self._start}, {self._end}) has no convolution window that ends at {conv_end}"
            )
        return self._snapshot(self._depth(index), conv_end)

    def cut(self, end: int) -> Snapshot:
        if not self._start < end <= self._end:
            raise IndexError(f"a pass over [{self._start}, {self._end}) cannot end at {end}")
        return self._snapshot(end, end)

    def _snapshot(self, depth: int, conv_end: int) -> Snapshot:
        trajectory = self._donor.along(max(depth, conv_end))
        return Snapshot(Tag(trajectory.name, depth, conv_end), partial(trajectory.state, depth, conv_end))

    def _depth(self, index: int | None) -> int:
        if index is None:
            return self._end
        chunk = self._donor.stack.chunk
        chunks = -(-(self._end - self._start) // chunk)
        if not 0 <= index < chunks:
            raise IndexError(f"a pass over [{self._start}, {self._end}) has {chunks} kernel chunks, and no h[{index}]")
        return self._start + index * chunk

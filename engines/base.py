"""The protocol between the check and an engine under test.

An engine never computes. It is driven through a history of requests, is offered snapshots of the recurrent state, and
decides which one to keep, what depth to claim for it, where its tree attaches it, and what a later prompt gets back.
The payloads it moves are opaque to it: the check measures what they really hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

Payload = object
"""What the check hands out as a snapshot and gets back on a match. Engines store and copy it, and look no further."""

RequestId = int


class EngineFailure(RuntimeError):
    """The engine could not be asked, or gave no answer that can be true. The message is told as it stands."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """The bytes of a tensor, little-endian, row by row. dtype: float32, bfloat16 or float16."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one recurrent layer keeps: recurrent [value heads, key dim, value dim], window [tokens, channels]."""

    recurrent: RawTensor
    window: RawTensor


class StateBytes(ABC):
    """How a payload becomes bytes and bytes a payload, for engines that move the states themselves.

    dtype:  of the windows, which is the model's; recurrent states are float32.
    shapes: per recurrent layer, (recurrent, window).
    """

    dtype: str
    shapes: Sequence[tuple[tuple[int, int, int], tuple[int, int]]]

    @abstractmethod
    def bytes_of(self, payload: Payload) -> list[LayerState]:
        """The payload's tensors, one entry per recurrent layer."""

    @abstractmethod
    def payload_of(self, states: Sequence[LayerState], given: Payload | None) -> Payload:
        """What an engine handed back. `given`: the payload that it says this once was, None if it does not say.

        Raises EngineFailure for tensors of other shapes.
        """


class Fate(Enum):
    """What became of a state that a request donated to the tree."""

    ATTACHED = "attached"
    """The node that the donated tokens end on took the state."""
    ALREADY_THERE = "already there"
    """The node held a state from an earlier request; the first writer wins and the donated one is dropped."""
    REFUSED = "refused"
    """A guard rejected the donation: the state does not stand where the node ends."""
    NO_NODE = "no node"
    """The donated tokens fill no tree page, so there is no node to hold a state."""


@dataclass(frozen=True, slots=True)
class Donation:
    """One hand-over of a request's snapshot to the tree. Depths are in tokens from the start of the prompt.

    claimed_depth: where the engine says the state stands.
    node_depth:    where the tree node that it was offered to ends.
    """

    request: RequestId
    claimed_depth: int
    node_depth: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class Match:
    """What a new prompt gets from the cache.

    request:       the handle for `extend`, `decode` and `finish`.
    cached_tokens: how many tokens the matched path holds; the engine resumes there. 0: nothing is reused.
    payload:       the state it will start from, already copied; None when it starts from an empty state.
    claimed_depth: the depth at which the engine donated that state, by its own books; None without a payload.
    """

    request: RequestId
    cached_tokens: int
    payload: Payload | None
    claimed_depth: int | None

    def __post_init__(self) -> None:
        assert self.cached_tokens >= 0
        assert (self.payload is None) == (self.claimed_depth is None)


class Snapshots(ABC):
    """The states that one forward pass makes available, as the kernels leave them behind.

    A pass over tokens [start, end) yields the state before each kernel chunk (FLA's intermediate `h`), and the one at
    its end.
    """

    @abstractmethod
    def take(self, index: int | None, conv_end: int) -> Payload:
        """Copy one state out of the pass.

        index:    m takes `h[m]`, the recurrent state before chunk m of this pass, at depth start + m * chunk;
                  None takes the final state, at depth end.
        conv_end: the depth at which the short convolution's window of raw inputs ends.
        Raises IndexError when the pass has no such state.
        """

    def cut(self, end: int) -> Payload:
        """Copy the final state that the pass would have left if it had ended at `end`, with the window there.

        For engines that cut a pass where they were not told to. Raises IndexError unless start < end <= its end.
        """
        raise IndexError(f"this pass cannot be cut at {end}")


class Engine(ABC):
    """A system under test. One instance is one empty cache; requests are served one after another."""

    name: str
    """How the command line names it, e.g. `model:sglang-0.5.18`."""

    @abstractmethod
    def match(self, tokens: Sequence[int]) -> Match:
        """Start a request for this prompt and say what the cache gives it."""

    @abstractmethod
    def extend(self, request: RequestId, start: int, end: int, snapshots: Snapshots) -> None:
        """The forward pass over prompt tokens [start, end) of the request has run; keep what is worth keeping.

        `start` is where the previous pass of the request ended, or its cached_tokens. The last pass ends the prompt;
        after an earlier one the request may donate to the tree, as engines do between prefill chunks.
        """

    @abstractmethod
    def decode(self, request: RequestId, token: int, snapshots: Snapshots) -> None:
        """A decode step has absorbed `token`; `snapshots` holds only the final state, one token deeper than before."""

    @abstractmethod
    def finish(self, request: RequestId) -> None:
        """The request is done: donate its last snapshot and free what it held."""

    @property
    @abstractmethod
    def donations(self) -> Sequence[Donation]:
        """Every donation so far, in order."""

    def close(self) -> None:  # noqa: B027  (most engines have nothing to release)
        """Release what the engine holds outside this process. In-process models hold nothing."""

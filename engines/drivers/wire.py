"""The driver's side of docs/engine-protocol.md: JSON lines in, JSON lines out, and an object that answers.

A driver is a folder of scripts that is run by the Python of the engine under test, where our package is not installed:
so this module needs the standard library only, and torch for the payload "tensors". A driver's `__main__.py` is

    sys.path.append(str(Path(__file__).resolve().parent.parent))  # at the end: never in front of the engine itself
    import wire

    def make() -> wire.Driver:
        from my_engine_driver import MyDriver  # imports the engine: only now, as engines print when imported
        return MyDriver()

    wire.main(make)

An exception in a method answers that call with its type and words, and the driver goes on: `open` must bring it back to
an empty engine whatever happened before.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

PROTOCOL = 1


class Geometry(NamedTuple):
    """Sizes in tokens: the kernel's chunk, the KV page, the ranks that share a page, decode steps between snapshots."""

    chunk: int
    page: int
    dcp: int
    interval: int


class Layer(NamedTuple):
    """The shapes of one recurrent layer's state: [value heads, key dim, value dim] and [tokens, channels]."""

    recurrent: tuple[int, ...]
    window: tuple[int, ...]


class LayerState(NamedTuple):
    """One recurrent layer's state: its memory, and the last inputs of its short convolution, oldest token first."""

    recurrent: torch.Tensor
    window: torch.Tensor


State = list[LayerState]


class Taken(NamedTuple):
    """What the checker answers to a `take`. state: None unless the payload is "tensors"."""

    snapshot: int
    state: State | None


class Take(Protocol):
    """What a pass leaves, during `extend` and `decode`. Raises `NoSuchState` when the pass does not have it."""

    def __call__(self, index: int | None = None, conv_end: int | None = None, *, end: int | None = None) -> Taken:
        """The state before the kernel's chunk `index`, None for the final one, and the window that ends at `conv_end`.

        end: instead of both, where an engine cut the pass: its final state if it had ended there.
        """


class NoSuchState(IndexError):
    """The pass has no such state: the checker's own words."""


@dataclass(frozen=True)
class Match:
    """What a prompt gets. The fields are those of the protocol's answer to `match`."""

    request: int
    cached_tokens: int
    snapshot: int | None
    claimed_depth: int | None = None
    state: State | None = None


@dataclass(frozen=True)
class Donation:
    """One state handed to the tree. fate: "attached", "already there", "refused" or "no node"."""

    request: int
    claimed_depth: int
    node_depth: int
    fate: str


class Driver(ABC):
    """An engine as the protocol sees it: one method a call."""

    @abstractmethod
    def hello(self) -> Mapping[str, Any]:
        """The keys `engine`, `versions` and `payloads`."""

    @abstractmethod
    def open(self, geometry: Geometry, payload: str, tokens: int, dtype: str | None, layers: Sequence[Layer]) -> None:
        """Begin with a new, empty cache. Without tensors `dtype` is None and `layers` is empty."""

    @abstractmethod
    def match(self, tokens: list[int]) -> Match:
        """Start a request for this prompt."""

    @abstractmethod
    def extend(self, request: int, start: int, end: int, take: Take) -> Sequence[Donation]:
        """The pass over prompt tokens [start, end) has run."""

    @abstractmethod
    def decode(self, request: int, token: int, take: Take) -> Sequence[Donation]:
        """A decode step has absorbed `token`."""

    @abstractmethod
    def finish(self, request: int) -> Sequence[Donation]:
        """The request is done."""

    def close(self) -> None:  # noqa: B027  (most drivers have nothing to release)
        """The driver is about to end."""


def main(make: Callable[[], Driver]) -> None:
    """Serve the driver that `make` makes until `close`, or until standard input ends."""
    answers = reserve_stdout()
    serve(make(), sys.stdin, answers)


def reserve_stdout() -> IO[str]:
    """Keep the real standard output for the protocol, and send whatever else is printed to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def serve(driver: Driver, calls: IO[str], answers: IO[str]) -> None:
    """Answer calls, one a line, until `close` or the end of `calls`."""
    wire = _Wire(calls, answers)
    while (line := wire.read()) is not None:
        call = json.loads(line)
        try:
            answer = _answer(driver, call, wire.take)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            answer = {"error": words_of(error)}
        wire.write({"id": call.get("id"), **answer})
        if call.get("call") == "close":
            return


def words_of(error: BaseException) -> str:
    """One line: the type, the words, and for an assertion without any where it stands in the engine's source."""
    words = " ".join(str(error).split())
    if not words and (frames := traceback.extract_tb(error.__traceback__)):
        last = frames[-1]
        words = f"{last.line} ({Path(last.filename).name}:{last.lineno}, {last.name})"
    return f"{type(error).__name__}: {words}"


def _answer(driver: Driver, call: dict[str, Any], take: Take) -> dict[str, Any]:
    match call["call"]:
        case "hello":
            if call["protocol"] != PROTOCOL:
                raise ValueError(f"protocol {call['protocol']} is asked for; this driver speaks {PROTOCOL}")
            return {"protocol": PROTOCOL, **driver.hello()}
        case "open":
            sizes = Geometry(*(int(call["geometry"][name]) for name in Geometry._fields))
            layers = [Layer(tuple(one["recurrent"]), tuple(one["window"])) for one in call.get("layers") or ()]
            driver.open(sizes, call["payload"], int(call["tokens"]), call.get("dtype"), layers)
            return {}
        case "match":
            found = driver.match(call["tokens"])
            answer = dict(vars(found))
            if found.state is None:
                del answer["state"]
            else:
                answer["state"] = pack_state(found.state)
            if found.claimed_depth is None:
                del answer["claimed_depth"]
            return answer
        case "extend":
            return _donated(driver.extend(call["request"], call["start"], call["end"], take))
        case "decode":
            return _donated(driver.decode(call["request"], call["token"], take))
        case "finish":
            return _donated(driver.finish(call["request"]))
        case "close":
            driver.close()
            return {}
        case unknown:
            raise ValueError(f"there is no call {unknown!r} in protocol {PROTOCOL}")


def _donated(donations: Sequence[Donation]) -> dict[str, Any]:
    return {"donations": [vars(donation) for donation in donations]} if donations else {}


class _Wire:
    """The two streams."""

    def __init__(self, calls: IO[str], answers: IO[str]) -> None:
        self._calls = calls
        self._answers = answers

    def read(self) -> str | None:
        """The next line; None when the checker has gone."""
        return self._calls.readline() or None

    def write(self, message: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def take(self, index: int | None = None, conv_end: int | None = None, *, end: int | None = None) -> Taken:
        self.write({"take": {"index": index, "conv_end": conv_end} if end is None else {"end": end}})
        line = self.read()
        if line is None:
            raise EOFError("the checker went away during a take")
        answer = json.loads(line)
        if "error" in answer:
            raise NoSuchState(answer["error"])
        state = answer.get("state")
        return Taken(answer["snapshot"], None if state is None else unpack_state(state))


def pack_state(state: State) -> list[dict[str, Any]]:
    """The wire's form of a state."""
    return [{name: pack_tensor(tensor) for name, tensor in layer._asdict().items()} for layer in state]


def unpack_state(packed: Sequence[Mapping[str, Any]]) -> State:
    """A state from the wire's form of it."""
    return [LayerState(unpack_tensor(layer["recurrent"]), unpack_tensor(layer["window"])) for layer in packed]


def pack_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """The wire's form of a tensor on the CPU: its own dtype, little-endian, row by row."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    data = base64.b64encode(flat.numpy().tobytes()).decode("ascii")
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "data": data}


def unpack_tensor(packed: Mapping[str, Any]) -> torch.Tensor:
    """A tensor from the wire's form of it; it owns its memory."""
    import torch

    data = bytearray(base64.b64decode(packed["data"]))
    return torch.frombuffer(data, dtype=getattr(torch, packed["dtype"])).reshape(tuple(packed["shape"]))

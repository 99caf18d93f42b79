"""An engine in a process of its own, behind the engine protocol (docs/engine-protocol.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mamba_replay_check.checker.geometry import Geometry

from . import protocol
from .base import Donation, Engine, EngineFailure, Fate, Match, Payload, RequestId, Snapshots, StateBytes
from .process import DriverError, JsonLines


@dataclass(frozen=True, slots=True)
class Hello:
    """What a driver says of itself."""

    engine: str
    versions: Mapping[str, str]
    payloads: tuple[str, ...]


class Driver:
    """A driver's process, which serves one cell after the other and is started again after it failed."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        """timeout: seconds for each exchange. Nothing is started yet."""
        self._command = command
        self._timeout = timeout
        self._process: JsonLines | None = None
        self._calls = 0

    def hello(self) -> Hello:
        """What the driver says of itself. Raises DriverError."""
        answer = self.ask("hello", protocol=protocol.VERSION)
        return Hello(answer["engine"], answer["versions"], tuple(answer["payloads"]))

    def open(self, geometry: Geometry, payload: str, tokens: int, states: StateBytes) -> ExternalEngine:
        """A new, empty cache. Snapshots travel as `payload`; no prompt will be longer than `tokens`.

        Raises EngineFailure if the driver cannot make one, or cannot move this payload.
        """
        sizes = {name: getattr(geometry, name) for name in ("chunk", "page", "dcp", "interval")}
        layout = {}
        if payload == "tensors":
            layers = [{"recurrent": list(recurrent), "window": list(window)} for recurrent, window in states.shapes]
            layout = {"dtype": states.dtype, "layers": layers}
        self.ask("open", geometry=sizes, payload=payload, tokens=tokens, **layout)
        return ExternalEngine(self, states if payload == "tensors" else None)

    def ask(self, call: str, snapshots: _Numbered | None = None, **values: Any) -> dict[str, Any]:
        """One call and its answer; the process is started if none runs. What the driver takes meanwhile comes from
        `snapshots`.

        Raises EngineFailure with the driver's own words if it says that it failed. Raises DriverError if it cannot be
        talked to any more; it is then stopped.
        """
        if self._process is None:
            self._process = JsonLines(self._command, self._timeout)
            if call != "hello":
                self.hello()
        try:
            self._calls += 1
            self._process.send({"id": self._calls, "call": call, **values})
            while "take" in (answer := self._process.receive()):
                self._process.send(self._take(call, answer["take"], snapshots))
            if answer.get("id") != self._calls:  # an answer too many would shift all that come after it
                raise self.nonsense(call, f'"id" is {answer.get("id")!r} and not {self._calls}')
            if "error" in answer:
                raise EngineFailure(f"{' '.join(str(answer['error']).split())}, while asked to {call}")
            self._insist(call, answer, protocol.ANSWERS.get(call, {}))
            return answer
        except EngineFailure:
            if self._process is not None and self._process.stopped:
                self._process = None
            raise
        except BaseException:  # an exchange that was broken off leaves the two out of step
            self.stop()
            raise

    def nonsense(self, call: str, what: str) -> DriverError:
        """Stop the driver for an answer that cannot be true, and give the error to be raised."""
        error = self._process.failed(f"its answer to {call} makes no sense: {what}")
        self._process = None
        return error

    def close(self) -> None:
        """Let the driver end, and see to it that it does."""
        if self._process is None:
            return
        with suppress(EngineFailure):
            self.ask("close")
        self.stop()

    def stop(self) -> None:
        """End the process at once, if there is one."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _insist(self, call: str, answer: dict[str, Any], schema: dict[str, Any]) -> None:
        if wrong := protocol.mistake(answer, schema):
            raise self.nonsense(call, wrong)

    def _take(self, call: str, wanted: object, snapshots: _Numbered | None) -> dict[str, Any]:
        if snapshots is None:
            raise self.nonsense(call, "no pass has run of which it could take a snapshot")
        if not isinstance(wanted, dict) or protocol.mistake(wanted, protocol.TAKE):
            raise self.nonsense(call, '"take" needs "index", a number or null, and "conv_end"; or "end" alone')
        try:
            return snapshots.take(wanted)
        except IndexError as error:
            return {"error": str(error)}


class ExternalEngine(Engine):
    """One empty cache of the engine behind a driver."""

    def __init__(self, driver: Driver, states: StateBytes | None) -> None:
        """states: turns payloads into bytes, None where numbers stand for them."""
        self.name = "external"
        self._driver = driver
        self._states = states
        self._given: list[Payload] = []
        self._donations: list[Donation] = []

    def match(self, tokens: Sequence[int]) -> Match:
        answer = self._driver.ask("match", tokens=list(tokens))
        payload = self._payload(answer)
        claimed = answer.get("claimed_depth")
        if payload is None:
            claimed = None
        elif claimed is None:
            claimed = answer["cached_tokens"]
        return Match(answer["request"], answer["cached_tokens"], payload, claimed)

    def extend(self, request: RequestId, start: int, end: int, snapshots: Snapshots) -> None:
        self._pass("extend", snapshots, request=request, start=start, end=end)

    def decode(self, request: RequestId, token: int, snapshots: Snapshots) -> None:
        self._pass("decode", snapshots, request=request, token=token)

    def finish(self, request: RequestId) -> None:
        self._note(self._driver.ask("finish", request=request))

    @property
    def donations(self) -> Sequence[Donation]:
        return tuple(self._donations)

    def _pass(self, call: str, snapshots: Snapshots, **values: Any) -> None:
        self._note(self._driver.ask(call, _Numbered(snapshots, self._given, self._states), **values))

    def _note(self, answer: dict[str, Any]) -> None:
        for said in answer.get("donations", ()):
            fate = Fate(said["fate"])
            self._donations.append(Donation(said["request"], said["claimed_depth"], said["node_depth"], fate))

    def _payload(self, answer: dict[str, Any]) -> Payload | None:
        number, state = answer["snapshot"], answer.get("state")
        if number is not None and not 0 <= number < len(self._given):
            raise self._driver.nonsense("match", f"snapshot {number} was not given since the last open")
        given = None if number is None else self._given[number]
        if self._states is None:
            return given
        if state is None:
            if given is not None:
                raise self._driver.nonsense("match", 'a snapshot without its "state"')
            return None
        try:
            return self._states.payload_of(protocol.decode(state), given)
        except ValueError as error:
            raise self._driver.nonsense("match", str(error)) from None


@dataclass(frozen=True, slots=True)
class _Numbered:
    """The snapshots of one pass, numbered as they are given."""

    offered: Snapshots
    given: list[Payload]
    states: StateBytes | None

    def take(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if "end" in wanted:
            payload = self.offered.cut(wanted["end"])
        else:
            payload = self.offered.take(wanted["index"], wanted["conv_end"])
        self.given.append(payload)
        answer: dict[str, Any] = {"snapshot": len(self.given) - 1}
        if self.states is not None:
            answer["state"] = protocol.encode(self.states.bytes_of(payload))
        return answer

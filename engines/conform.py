"""Does a driver keep to the engine protocol? One small conversation per rule, for the author of a driver.

Nothing is computed here: the states are numbers that say where they were taken.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mamba_replay_check.checker.geometry import Geometry

from .base import EngineFailure, LayerState, Match, Payload, RawTensor, Snapshots, StateBytes
from .external import Driver, ExternalEngine
from .process import DriverError, JsonLines

GEOMETRY = Geometry(chunk=64, page=64, dcp=1, interval=256)
TOKENS = 2048
"""No prompt here is longer."""

PROMPT = 640
"""Tokens of the prompt that is served most often: ten kernel chunks, ten pages."""

LONGER = 705
"""Tokens of the prompt that comes back: the same, a page and one more."""


class Broken(Exception):
    """A rule is not kept; the message says what was seen and what the rule asks for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule. `wrong` says what is missing, "" if nothing is; `note` is worth knowing either way."""

    rule: str
    wrong: str = ""
    note: str = ""


class _Taken(NamedTuple):
    """A payload: where its recurrent state and its window end."""

    depth: int
    conv_end: int


class _Pass(Snapshots):
    """A pass over [start, end), and what was taken of it."""

    def __init__(self, start: int, end: int, taken: list[_Taken], refuse: bool = False) -> None:
        self._start, self._end, self._taken, self._refuse = start, end, taken, refuse

    def take(self, index: int | None, conv_end: int) -> _Taken:
        depth = self._end if index is None else self._start + index * GEOMETRY.chunk
        if self._refuse or not self._start <= depth <= self._end or not self._start <= conv_end <= self._end:
            raise IndexError(f"a pass over [{self._start}, {self._end}) has no state {index}, window {conv_end}")
        self._taken.append(_Taken(depth, conv_end))
        return self._taken[-1]

    def cut(self, end: int) -> _Taken:
        if self._refuse or not self._start < end <= self._end:
            raise IndexError(f"a pass over [{self._start}, {self._end}) cannot end at {end}")
        self._taken.append(_Taken(end, end))
        return self._taken[-1]


class _Numbers(StateBytes):
    """States whose every element is the depth at which they were taken, over `TOKENS`."""

    dtype = "float32"
    shapes = (((2, 16, 16), (3, 96)), ((2, 16, 16), (3, 96)))

    def bytes_of(self, payload: _Taken) -> list[LayerState]:
        def filled(shape: tuple[int, ...], depth: int) -> RawTensor:
            count = 1
            for size in shape:
                count *= size
            return RawTensor("float32", shape, struct.pack("<f", depth / TOKENS) * count)

        return [LayerState(filled(r, payload.depth), filled(w, payload.conv_end)) for r, w in self.shapes]

    def payload_of(self, states: Sequence[LayerState], given: Payload | None) -> _Taken:
        shapes = [(state.recurrent.shape, state.window.shape) for state in states]
        if shapes != list(self.shapes):
            raise EngineFailure(f"states of shapes {shapes} came back for {list(self.shapes)}")
        depths = {round(_first(state.recurrent) * TOKENS) for state in states}
        if len(depths) > 1:
            raise EngineFailure(f"the layers of one state came back from different depths: {sorted(depths)}")
        return _Taken(depths.pop(), round(_first(states[0].window) * TOKENS))


def _first(tensor: RawTensor) -> float:
    """The first element. A bfloat16 is the upper half of a float32."""
    if tensor.dtype == "float16":
        return struct.unpack_from("<e", tensor.data)[0]
    upper = tensor.data[:2] if tensor.dtype == "bfloat16" else tensor.data[2:4]
    lower = b"\0\0" if tensor.dtype == "bfloat16" else tensor.data[:2]
    return struct.unpack("<f", lower + upper)[0]


class _Talk:
    """One open cache, and what was taken since."""

    def __init__(self, driver: Driver, geometry: Geometry = GEOMETRY, payload: str = "tag") -> None:
        self.taken: list[_Taken] = []
        self.engine: ExternalEngine = driver.open(geometry, payload, TOKENS, _Numbers())

    def match(self, tokens: Sequence[int]) -> Match:
        found = self.engine.match(tokens)
        if found.cached_tokens >= len(tokens):
            raise Broken(f"it matched {found.cached_tokens} of {len(tokens)} tokens: one at least must be left")
        if found.cached_tokens == 0 and found.payload is not None:
            raise Broken("it handed back a state for a prompt of which it matched nothing")
        return found

    def serve(self, tokens: Sequence[int], cuts: Sequence[int] = (), decoded: Sequence[int] = ()) -> Match:
        """One request from match to finish. cuts: where prefill is split."""
        found = self.match(tokens)
        start = found.cached_tokens
        for end in [*(cut for cut in cuts if start < cut < len(tokens)), len(tokens)]:
            self.extend(found, start, end)
            start = end
        for token in decoded:
            self.engine.decode(found.request, token, _Pass(start, start + 1, self.taken))
            start += 1
        self.engine.finish(found.request)
        return found

    def extend(self, found: Match, start: int, end: int) -> None:
        self.engine.extend(found.request, start, end, _Pass(start, end, self.taken))


def _stream(name: int, length: int) -> list[int]:
    """Tokens that no other name has at any place."""
    return [name * TOKENS + place for place in range(length)]


def _is_empty(driver: Driver) -> str:
    if cached := _Talk(driver).match(_stream(1, PROMPT)).cached_tokens:
        raise Broken(f"a cache that was just opened matched {cached} tokens; it must be empty")
    return ""


def _reuses(driver: Driver) -> str:
    talk = _Talk(driver)
    talk.serve(_stream(1, PROMPT))
    found = talk.match(_stream(1, LONGER))
    if found.cached_tokens == 0 or found.payload is None:
        raise Broken(
            f"after a prompt of {PROMPT} tokens, one of {LONGER} that begins with it matched {found.cached_tokens} "
            f"tokens {'without a state' if found.cached_tokens else ''}: every cell would be vacuous"
        )
    return f"{found.cached_tokens} of {PROMPT} tokens, from a state of depth {found.payload.depth}"


def _leaves_one(driver: Driver) -> str:
    talk = _Talk(driver)
    talk.serve(_stream(1, PROMPT))
    return f"{talk.match(_stream(1, PROMPT)).cached_tokens} tokens of the same {PROMPT} matched"


def _cuts(driver: Driver) -> str:
    talk = _Talk(driver)
    talk.serve(_stream(1, PROMPT), cuts=(128, 300))
    return f"{talk.match(_stream(1, LONGER)).cached_tokens} tokens matched after passes that end at 128, 300, {PROMPT}"


def _decodes(driver: Driver) -> str:
    talk = _Talk(driver)
    whole = _stream(1, PROMPT + 300)
    talk.serve(whole[:PROMPT], decoded=whole[PROMPT:])
    return f"{talk.match(_stream(1, PROMPT + 365)).cached_tokens} tokens matched after 300 decode steps"


def _keeps_apart(driver: Driver) -> str:
    talk = _Talk(driver)
    talk.serve(_stream(1, PROMPT))
    if cached := talk.match(_stream(2, PROMPT)).cached_tokens:
        raise Broken(f"a prompt that shares no token with the one before it matched {cached} tokens")
    half = _stream(1, PROMPT // 2) + _stream(2, PROMPT // 2)
    if (cached := talk.match(half).cached_tokens) > PROMPT // 2:
        raise Broken(f"a prompt that shares {PROMPT // 2} tokens with the one before it matched {cached}")
    return ""


def _forgets(driver: Driver) -> str:
    _Talk(driver).serve(_stream(1, PROMPT))
    if cached := _Talk(driver).match(_stream(1, LONGER)).cached_tokens:
        raise Broken(f"after another open, {cached} tokens of an earlier cache were matched")
    return ""


def _repeats(driver: Driver) -> str:
    def history() -> tuple[object, ...]:
        talk = _Talk(driver)
        talk.serve(_stream(1, PROMPT), cuts=(300,))
        talk.serve(_stream(1, LONGER))
        found = talk.match(_stream(1, LONGER + 100))
        return found.cached_tokens, found.claimed_depth, found.payload, tuple(talk.taken), talk.engine.donations

    first, second = history(), history()
    if first != second:
        raise Broken(f"the same history gave {first[:3]} and then {second[:3]} (cached tokens, claimed depth, state)")
    return ""


def _serves_two(driver: Driver) -> str:
    talk = _Talk(driver)
    one, two = _stream(1, PROMPT), _stream(2, PROMPT)
    a, b = talk.match(one), talk.match(two)
    if a.request == b.request:
        raise Broken(f"two live requests have the same number {a.request}")
    talk.extend(a, 0, 300)
    talk.extend(b, 0, PROMPT)
    talk.extend(a, 300, PROMPT)
    talk.engine.finish(b.request)
    talk.engine.finish(a.request)
    found = talk.match(_stream(2, LONGER))
    return f"{found.cached_tokens} tokens of the second matched"


def _ignores_keys(driver: Driver) -> str:
    driver.ask("hello", protocol=1, no_such_key={"a": [1]})
    return ""


def _refuses_calls(driver: Driver) -> str:
    return _must_refuse(driver, "no such call", {})


def _refuses_requests(driver: Driver) -> str:
    _Talk(driver)
    return _must_refuse(driver, "finish", {"request": 10**6})


def _must_refuse(driver: Driver, call: str, values: dict[str, object]) -> str:
    try:
        driver.ask(call, **values)
    except DriverError:
        raise
    except EngineFailure as error:
        return str(error)
    raise Broken(f'{call} {values} was answered as if it could be: answer {{"error": "why"}}')


def _survives_refusal(driver: Driver) -> str:
    talk = _Talk(driver)
    found = talk.match(_stream(1, PROMPT))
    try:
        talk.engine.extend(found.request, 0, PROMPT, _Pass(0, PROMPT, talk.taken, refuse=True))
    except DriverError:
        raise
    except EngineFailure as error:
        note = str(error)
    else:
        note = "it took none, or went on without it"
    _is_empty(driver)
    return note


def _other_geometries(driver: Driver) -> str:
    refused = []
    for geometry in (Geometry(64, 16, 1, 256), Geometry(64, 64, 8, 512), Geometry(64, 128, 2, 256)):
        try:
            _Talk(driver, geometry).serve(_stream(1, TOKENS - 64))
        except DriverError:
            raise
        except EngineFailure as error:
            refused.append(f"{geometry}: {error}")
    return "it refuses " + "; ".join(refused) if refused else ""


def _moves_tensors(driver: Driver) -> str:
    talk = _Talk(driver, payload="tensors")
    talk.serve(_stream(1, PROMPT))
    found = talk.match(_stream(1, LONGER))
    if found.payload not in talk.taken:
        raise Broken(f"the state that came back reads {found.payload}, and given were {talk.taken}")
    return f"a state of {found.payload.depth} tokens came back"


_RULES: dict[str, Callable[[Driver], str]] = {
    "opens an empty cache": _is_empty,
    "reuses a prompt": _reuses,
    "leaves one token to compute": _leaves_one,
    "serves a prompt in several passes": _cuts,
    "decodes": _decodes,
    "keeps prompts apart": _keeps_apart,
    "forgets everything at the next open": _forgets,
    "does the same for the same history": _repeats,
    "serves two requests side by side": _serves_two,
    "takes other geometries": _other_geometries,
    "ignores keys that it does not know": _ignores_keys,
    "answers an unknown call with an error": _refuses_calls,
    "answers an unknown request with an error": _refuses_requests,
    "survives a snapshot that is refused": _survives_refusal,
}


def conform(command: Sequence[str], timeout: float) -> Iterator[Finding]:
    """Talk to a driver, rule by rule. Raises DriverError if it does not get through its first hello."""
    driver = Driver(command, timeout)
    try:
        hello = driver.hello()
        yield Finding("says hello", note=f"{hello.engine}; moves {', '.join(hello.payloads)}")
        rules = dict(_RULES)
        if "tensors" in hello.payloads:
            rules["moves tensors"] = _moves_tensors
        if "tag" not in hello.payloads:
            rules = {"moves tensors": _moves_tensors}
        for rule, check in rules.items():
            yield _finding(rule, lambda check=check: check(driver))
    finally:
        driver.close()
    yield _finding("ends when it is asked to close", lambda: _ends(command, timeout, ask=True))
    yield _finding("ends when its input ends", lambda: _ends(command, timeout, ask=False))


def _finding(rule: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(rule, note=check())
    except (Broken, EngineFailure) as error:
        return Finding(rule, wrong=str(error))


def _ends(command: Sequence[str], timeout: float, *, ask: bool) -> str:
    process = JsonLines(command, timeout)
    try:
        process.send({"id": 1, "call": "hello", "protocol": 1})
        process.receive()
        if ask:
            process.send({"id": 2, "call": "close"})
            process.receive()
        status = process.end()
    finally:
        process.stop()
    if status is None:
        raise Broken(f"it was still there after {timeout:g} s")
    if status:
        raise Broken(f"it ended with exit status {status}, not 0")
    return ""

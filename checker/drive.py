"""Drive an engine under test through the history of one cell, and write down what it did. No tensor is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from ..engines.base import Engine, EngineFailure, Match, Snapshots
from ..scenarios.history import Decode, Extend, steps
from ..scenarios.tokens import parted
from .cells import Cell, Replay, Taken
from .trajectory import Snapshot

Offer = Callable[[int, int], Snapshots]
"""The snapshots that a pass of the donor over tokens [start, end) leaves; passes are asked for in order."""


def drive(
    make: Callable[[], Engine], cell: Cell, tokens: Sequence[int], offer: Offer
) -> tuple[Replay, Snapshot | None]:
    """Serve the donor, then match the resuming prompt. Returns the account and the payload that was handed back.

    Whatever the engine raises becomes the account's `failure`: one broken cell does not stop the others.
    """
    engine, taken = None, []
    try:
        engine = make()
        resumed = _serve(engine, cell, tokens, lambda start, end: _Recorded(offer(start, end), start, end, taken))
        failure = _nonsense(resumed, cell.prompt.resume_length)
        return _account(engine, resumed, taken, failure), None if failure else resumed.payload
    except Exception as error:
        return _account(engine, None, taken, _words(error)), None
    finally:
        if engine is not None:
            with suppress(Exception):
                engine.close()


def _serve(engine: Engine, cell: Cell, tokens: Sequence[int], offer: Offer) -> Match:
    prompt = cell.prompt
    own = tokens if prompt.branch is None else parted(tokens, prompt.branch)
    donor = engine.match(own[: prompt.prompt_length])
    for step in steps(prompt, donor.cached_tokens):
        match step:
            case Extend(start, end):
                engine.extend(donor.request, start, end, offer(start, end))
            case Decode(position):
                engine.decode(donor.request, own[position], offer(position, position + 1))
    engine.finish(donor.request)
    return engine.match(tokens[: prompt.resume_length])


class _Recorded(Snapshots):
    """The snapshots of one pass, with a note of each that is taken."""

    def __init__(self, offered: Snapshots, start: int, end: int, taken: list[Taken]) -> None:
        self._offered, self._start, self._end, self._taken = offered, start, end, taken

    def take(self, index: int | None, conv_end: int) -> Snapshot:
        return self._note(self._offered.take(index, conv_end), self._end, index)

    def cut(self, end: int) -> Snapshot:
        return self._note(self._offered.cut(end), end, None)

    def _note(self, snapshot: Snapshot, end: int, index: int | None) -> Snapshot:
        tag = snapshot.tag
        self._taken.append(Taken(self._start, end, index, tag.depth, tag.conv_depth))
        return snapshot


def _words(error: Exception) -> str:
    """The error as one line."""
    if isinstance(error, EngineFailure):
        return " ".join(str(error).split())
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")


def _nonsense(match: Match, length: int) -> str:
    """What is wrong with the engine's answer, or "" if it can be true."""
    if match.cached_tokens >= length:
        return f"it matched {match.cached_tokens} of {length} tokens: at least one must be left to compute"
    if match.payload is not None and not isinstance(match.payload, Snapshot):
        return f"it handed back a {type(match.payload).__name__} in place of a snapshot that it was given"
    if match.payload is not None and match.cached_tokens == 0:
        return "it handed back a state for a prompt of which it matched nothing"
    return ""


def _account(engine: Engine | None, match: Match | None, taken: list[Taken], failure: str) -> Replay:
    try:
        donations = tuple(engine.donations) if engine is not None else ()
    except Exception as error:  # the engine's own books may be what broke
        donations, failure = (), failure or _words(error)
    if match is None or failure:
        return Replay(0, None, None, None, donations, tuple(taken), failure or "it gave no answer")
    tag = match.payload.tag if match.payload is not None else None
    return Replay(
        match.cached_tokens,
        match.claimed_depth,
        tag.depth if tag else None,
        tag.conv_depth if tag else None,
        donations,
        tuple(taken),
    )

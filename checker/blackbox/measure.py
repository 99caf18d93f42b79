"""One case, measured on a running server. Nothing is judged here.

Donors are sent until one of them reports a hit itself, or `sends` times: servers need not keep a state at the first
sight of a prompt (vLLM 0.32 reported 0, 0, 2816 for the same prompt of 3,000 tokens). Then the resuming prompt is
sent once, plainly: its count of cached tokens is the boundary. Behind it the same requests are made warm and cold,
one at a time; then all of them at once.

Every cold request has a space (a salt) of its own; the warm ones share one, which nobody used before. So a
measurement does not depend on what the server served earlier, and spoils nobody's cache. Where salts do not work the
cache is reset instead; then nothing can be measured under load.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ...engines.server.base import Point, Server
from ...engines.server.http import ServerError
from .cases import TAIL, Case, Stream

BEHIND = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Distances behind the boundary at which a server is asked, where every look costs a request."""

STEPS = 64
"""Decode steps for the noise between decoding and prefill."""

SPAN = 64
"""Tokens that the control leaves out or doubles: the kernel chunk of nearly all linear-attention kernels."""

AT_ONCE = 8
"""Requests under load."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is asked of the server. repeats: cold runs; sends: donors at most; salted: keep runs apart by salts."""

    repeats: int = 3
    sends: int = 4
    salted: bool = True


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a server answered in one case.

    history:  cached tokens of each donor, in order.
    boundary: cached tokens of the resuming prompt.
    warm:     log-probabilities behind the boundary, resumed; cold: the same requests, `repeats` times; both alone.
    loaded:   (warm, cold) with all of them in flight at once; None where that could not be measured.
    shapes:   the same positions out of one longer cold prompt.
    decoding: (decoded, prefilled) pairs of the same tokens.
    controls: positions behind the boundary after a real change of the prompt before it, by what the change was.
    """

    case: Case
    history: tuple[int, ...]
    boundary: int
    warm: tuple[Point, ...] = ()
    cold: tuple[tuple[Point, ...], ...] = ()
    loaded: tuple[tuple[Point, ...], tuple[Point, ...]] | None = None
    shapes: tuple[Point, ...] = ()
    decoding: tuple[tuple[float, float], ...] = ()
    controls: dict[str, tuple[Point, ...]] = field(default_factory=dict)


class Spaces:
    """Names that nobody used before: an old one would be warm from an earlier run of this very check."""

    def __init__(self, server: Server, salted: bool) -> None:
        self._server, self._salted = server, salted
        self._names = (f"mamba-replay-check-{secrets.token_hex(8)}-{number}" for number in itertools.count())

    def fresh(self) -> str:
        """A space in which nothing is cached."""
        if self._salted:
            return next(self._names)
        self._server.reset()
        return ""


def measure(
    server: Server, case: Case, stream: Stream, effort: Effort, tick: Callable[[str], None] = lambda _: None
) -> Measurement:
    """Everything of one case. Raises ServerError. `tick` is told what is being done."""
    spaces = Spaces(server, effort.salted)
    tokens = stream.tokens(case, 2 * TAIL + 1)
    target = tokens[: case.target_length]
    tick("warming up")
    warm_space, history = spaces.fresh(), []
    for donor in itertools.islice(stream.donors(case), effort.sends):
        history.append(server.cached(donor, warm_space))
        if history[-1]:
            break
    boundary = server.cached(target, warm_space)
    if not boundary:
        return Measurement(case, tuple(history), 0)

    longest = max(boundary + TAIL, case.target_length)
    ends = server.ends(boundary, BEHIND, longest)
    if case.target_length not in ends and case.target_length > boundary:
        ends = sorted([*ends, case.target_length])
    tick("warm, alone")
    warm = _alone(server, tokens, boundary, ends, lambda: warm_space)
    loaded = None
    if effort.salted:
        tick("under load")
        loaded = _loaded(server, tokens, boundary, ends, warm_space, spaces.fresh)
    cold = []
    for number in range(effort.repeats):
        tick(f"cold run {number + 1} of {effort.repeats}")
        cold.append(_checked_cold(_alone(server, tokens, boundary, ends, spaces.fresh)))
    tick("cold, in other shapes")
    shapes = _checked_cold(server.whole(tokens, boundary, spaces.fresh()))
    decoding = _decoding(server, tokens[: boundary + 1], spaces.fresh)
    tick("controls")
    controls = {}
    for name, changed, moved in _changes(tokens, boundary):
        points = _checked_cold(server.whole(changed, boundary + moved, spaces.fresh()))
        controls[name] = tuple(Point(p.end, p.position - moved, p.cached, p.logprob) for p in points)
    return Measurement(case, tuple(history), boundary, warm, tuple(cold), loaded, shapes, decoding, controls)


def _alone(
    server: Server, tokens: list[int], boundary: int, ends: Iterable[int], space: Callable[[], str]
) -> tuple[Point, ...]:
    return tuple(point for end in ends for point in server.ask(tokens, boundary, end, space()))


def _loaded(
    server: Server, tokens: list[int], boundary: int, ends: list[int], warm: str, fresh: Callable[[], str]
) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """Warm and cold requests in turn, AT_ONCE in flight; often enough that this many are."""
    asked = [(end, space) for end in ends for space in (warm, None)]
    asked *= -(-2 * AT_ONCE // len(asked))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [(space, pool.submit(server.ask, tokens, boundary, end, space or fresh())) for end, space in asked]
        answers = [(space, job.result()) for space, job in jobs]
    found = [tuple(point for s, points in answers for point in points if (s is None) == cold) for cold in (False, True)]
    return found[0], _checked_cold(found[1])


def _decoding(server: Server, tokens: list[int], fresh: Callable[[], str]) -> tuple[tuple[float, float], ...]:
    """Generated tokens against a cold prompt that ends in them. The first one came out of the prefill."""
    generated, logprobs = server.decode(tokens, STEPS, fresh())
    points = _checked_cold(server.whole([*tokens, *generated], len(tokens), fresh()))
    return tuple((decoded, point.logprob) for decoded, point in zip(logprobs[1:], points, strict=True))


def _changes(tokens: list[int], boundary: int) -> list[tuple[str, list[int], int]]:
    """(what, the changed prompt, by how much its boundary moved): a fault of the state, done to the prompt."""
    span = min(SPAN, boundary // 2) or 1
    before, behind = tokens[:boundary], tokens[boundary:]
    return [
        (f"{span} tokens left out", before[:-span] + behind, -span),
        (f"{span} tokens doubled", before + before[-span:] + behind, span),
    ]


def _checked_cold(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points, if they are cold by the server's own count. Raises ServerError."""
    points = tuple(points)
    reused = max((point.cached for point in points), default=0)
    if reused:
        raise ServerError(
            f"a cold request reused {reused} tokens by the server's own count, with a salt that nobody used before: "
            "salts are not heeded; --cold reset empties the cache instead"
        )
    missing = [point.position for point in points if not math.isfinite(point.logprob)]
    if missing:
        raise ServerError(f"a cold run gave no number as the log-probability of token {missing[0]}")
    return points

"""A measurement becomes a verdict: resumed log-probabilities against cold ones, position by position.

Nothing is averaged: the damage of a wrong state is largest right behind the boundary and fades, so a mean over the answer
can be clean where the first tokens were wrong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from ...engines.server.base import Point
from .cases import Case
from .measure import Measurement
from .noise import Noise
from .verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Difference:
    """|resumed - cold| in nats at one position; infinite where the resumed run gave no number."""

    position: int
    cached: int
    nats: float


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case, judged.

    alone, loaded: the largest difference at each position, by position.
    limit:         of requests alone; load_limit: with what load changes.
    control:       the smallest of the controls' largest differences: what a planted change would show as. None: not measured.
    """

    case: Case
    verdict: Verdict
    history: tuple[int, ...] = ()
    boundary: int = 0
    alone: tuple[Difference, ...] = ()
    loaded: tuple[Difference, ...] = ()
    noise: Noise = field(default_factory=Noise)
    limit: float = 0.0
    load_limit: float = 0.0
    control: float | None = None

    @property
    def worst(self) -> Difference | None:
        """The largest difference, alone or under load."""
        return max((*self.alone, *self.loaded), key=lambda each: each.nats, default=None)


def judge(measured: Measurement, grid: int | None) -> CaseResult:
    """The verdict on one case. grid: the server is known to reuse multiples of this many tokens; None: nothing is known."""
    case, history = measured.case, measured.history
    expected = case.most_reusable // grid * grid if grid else 0
    sent = f"donors reported {', '.join(map(str, history))} cached tokens"
    warm = [point for point in measured.warm if point.cached]
    if not warm:
        what = f"nothing was reused ({sent})"
        if measured.boundary:
            what = f"{measured.boundary} tokens were reused, but none when log-probabilities were asked for"
        elif expected:
            lost = f"nothing was reused where {expected} tokens could be ({sent})"
            return CaseResult(case, Verdict(Outcome.REUSE_LOST, lost), history)
        return CaseResult(case, Verdict(Outcome.VACUOUS, what), history, measured.boundary)

    reference = _reference(measured)
    noise = _noise(measured, reference)
    alone = _differences(warm, reference)
    loaded = _differences([p for p in measured.loaded[0] if p.cached] if measured.loaded else [], reference)
    limit, load_limit = noise.limit(len(alone)), noise.limit(len(alone) + len(loaded), with_load=True)
    controls = [max(d.nats for d in _differences(points, reference)) for points in measured.controls.values()]
    control = min(controls, default=None)
    verdict = _verdict(measured, alone, loaded, noise, limit, load_limit, control, expected)
    return CaseResult(
        case, verdict, history, measured.boundary, alone, loaded, noise, limit, load_limit, control
    )


def _verdict(
    measured: Measurement,
    alone: tuple[Difference, ...],
    loaded: tuple[Difference, ...],
    noise: Noise,
    limit: float,
    load_limit: float,
    control: float | None,
    expected: int,
) -> Verdict:
    notes = []
    if len(measured.history) > 1 and not measured.history[0]:
        notes.append(f"reuse began with request {1 + next((n for n, c in enumerate(measured.history) if c), len(measured.history))}")
    if noise.load and max(noise.load) > limit:
        notes.append(f"batching alone moves cold runs by up to {max(noise.load):.2g} nats")
    if any(not point.cached for point in measured.warm):
        notes.append("some requests for log-probabilities reused nothing")
    worst = max(alone, key=lambda each: each.nats)
    if worst.nats > load_limit:
        return Verdict(Outcome.DIFFERS, _told(alone, load_limit, measured), tuple(notes))
    if worst.nats > limit:
        notes.append(f"alone it differs by up to {worst.nats:.2g} nats, and cold runs do as much under load: scheduling explains it")
    busy = max(loaded, key=lambda each: each.nats, default=None)
    if busy and busy.nats > load_limit:
        return Verdict(Outcome.UNDER_LOAD, f"alone it is right; with others in flight {_told(loaded, load_limit, measured)}", tuple(notes))
    if control is not None and control <= load_limit:
        why = "cold runs differ as much among themselves" if noise.load_floor * 2 >= control else "log-probabilities hardly depend on the prompt"
        return Verdict(Outcome.INSENSITIVE, f"a real change of 64 tokens moves log-probabilities by {control:.2g} nats only, within the limit of {load_limit:.2g}: {why}", tuple(notes))
    if measured.boundary < expected:
        return Verdict(Outcome.REUSE_LOST, f"right, but {measured.boundary} tokens were reused where {expected} could be", tuple(notes))
    return Verdict(Outcome.OK, notes=tuple(notes))


def _told(differences: Iterable[Difference], limit: float, measured: Measurement) -> str:
    wrong = [each for each in differences if each.nats > limit]
    worst = max(wrong, key=lambda each: each.nats)
    size = "is no number" if math.isinf(worst.nats) else f"is off by {worst.nats:.2g} nats ({worst.nats / limit:.0f} times the limit)"
    return (
        f"resumed at {worst.cached}, the log-probability of token {worst.position} {size}; "
        f"{len(wrong)} of {len(list(differences))} positions are wrong, from {min(d.position for d in wrong)} to {max(d.position for d in wrong)}"
    )


def _reference(measured: Measurement) -> dict[int, float]:
    """Per position the median of all cold runs of it, each alone."""
    found = defaultdict(list)
    for point in (*(p for run in measured.cold for p in run),):
        found[point.position].append(point.logprob)
    return {position: median(values) for position, values in found.items()}


def _differences(points: Iterable[Point], reference: dict[int, float]) -> tuple[Difference, ...]:
    """The largest difference at each position that both have."""
    worst: dict[int, Difference] = {}
    for point in points:
        if point.position not in reference:
            continue
        nats = abs(point.logprob - reference[point.position])
        nats = math.inf if math.isnan(nats) else nats
        if point.position not in worst or nats > worst[point.position].nats:
            worst[point.position] = Difference(point.position, point.cached, nats)
    return tuple(worst[position] for position in sorted(worst))


def _noise(measured: Measurement, reference: dict[int, float]) -> Noise:
    alone = {
        "repeats": tuple(d for run in measured.cold for d in _apart(run, measured.cold[0])) if len(measured.cold) > 1 else (),
        "shapes": tuple(d.nats for d in _differences(measured.shapes, reference)),
        "decoding": tuple(abs(one - other) for one, other in measured.decoding),
    }
    load = tuple(d.nats for d in _differences(measured.loaded[1], reference)) if measured.loaded else ()
    return Noise(alone, load, max(abs(each) for each in reference.values()))


def _apart(run: tuple[Point, ...], first: tuple[Point, ...]) -> list[float]:
    return [] if run is first else [abs(one.logprob - other.logprob) for one, other in zip(run, first, strict=True)]

"""A measurement becomes a verdict: resumed log-probabilities against cold ones, position by position.

Nothing is averaged: the damage of a wrong state is largest right behind the boundary and fades, so a mean over the
answer can be clean where the first tokens were wrong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
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
    control:       what the least visible of the controls shows as at its worst position; None: not measured.
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
    """The verdict on one case. grid: the server reuses multiples of this many tokens; None: nobody knows."""
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
    controls = [max(d.nats for d in _differences(points, reference)) for points in measured.controls.values()]
    control = min(controls, default=None)
    noise = _noise(measured, reference, control)
    alone = _differences(warm, reference)
    loaded = _differences([p for p in measured.loaded[0] if p.cached] if measured.loaded else [], reference)
    limit, load_limit = noise.limit(len(alone)), noise.limit(len(alone) + len(loaded), with_load=True)
    verdict = _verdict(measured, alone, loaded, noise, limit, load_limit, control, expected)
    return CaseResult(case, verdict, history, measured.boundary, alone, loaded, noise, limit, load_limit, control)


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
    notes = tuple(_notes(measured, noise, limit))
    worst = max(alone, key=lambda each: each.nats)
    if worst.nats > load_limit:
        return Verdict(Outcome.DIFFERS, _told(alone, load_limit), notes)
    busy = max(loaded, key=lambda each: each.nats, default=worst)
    if busy.nats > load_limit:
        return Verdict(Outcome.UNDER_LOAD, f"right alone, but with others in flight {_told(loaded, load_limit)}", notes)
    if worst.nats > limit:
        notes += (
            f"alone it differs by up to {worst.nats:.2g} nats; load moves cold runs as far, so scheduling explains it",
        )
    if control is not None and control <= load_limit:
        why = "cold runs differ as much" if noise.load_floor else "log-probabilities hardly depend on the prompt"
        reason = f"a real change of the prompt moves them by {control:.2g} nats only, limit {load_limit:.2g}: {why}"
        return Verdict(Outcome.INSENSITIVE, reason, notes)
    if measured.boundary < expected:
        reason = f"right, but {measured.boundary} tokens were reused where {expected} could be"
        return Verdict(Outcome.REUSE_LOST, reason, notes)
    return Verdict(Outcome.OK, notes=notes)


def _notes(measured: Measurement, noise: Noise, limit: float) -> Iterable[str]:
    """What a reader should know beside the verdict."""
    first = next((number for number, cached in enumerate(measured.history, 1) if cached), len(measured.history) + 1)
    if first > 2:
        yield f"the server kept nothing at first sight: reuse began with request {first}"
    if noise.load and max(noise.load) > limit:
        yield f"batching moves cold runs by up to {max(noise.load):.2g} nats, beyond the limit of requests alone"
    if noise.set_aside:
        yield (
            f"decoding and prefill of the same cold prompt differ by up to {max(noise.set_aside):.2g} nats, as much as "
            "a real change of the prompt: that is no rounding, and was not taken for noise"
        )
    if any(not point.cached for point in measured.warm):
        yield "some of the requests for log-probabilities reused nothing"


def _told(differences: Sequence[Difference], limit: float) -> str:
    """The worst position, and how far the damage reaches."""
    wrong = [each for each in differences if each.nats > limit]
    worst = max(wrong, key=lambda each: each.nats)
    times = f"{worst.nats / limit:.0f} times the limit"
    size = "is no number" if math.isinf(worst.nats) else f"is off by {worst.nats:.2g} nats ({times})"
    return (
        f"token {worst.position}'s log-probability, resumed at {worst.cached}, {size}; "
        f"wrong at {len(wrong)} of {len(differences)} positions looked at, {wrong[0].position} to {wrong[-1].position}"
    )


def _reference(measured: Measurement) -> dict[int, float]:
    """Per position the median of all cold runs of it, each alone."""
    found = defaultdict(list)
    for point in (point for run in measured.cold for point in run):
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


def _noise(measured: Measurement, reference: dict[int, float], control: float | None) -> Noise:
    """What cold runs differ by.

    Decoding runs through other code than prefill does. Where only these two differ, and as much as by a real change of
    the prompt, one of them is wrong. It would hide what is looked for, so it is set aside and named.
    """
    first, *others = measured.cold
    repeats = tuple(abs(b.logprob - a.logprob) for run in others for a, b in zip(first, run, strict=True))
    shapes = tuple(each.nats for each in _differences(measured.shapes, reference))
    decoding = tuple(abs(one - other) for one, other in measured.decoding)
    load = tuple(d.nats for d in _differences(measured.loaded[1], reference)) if measured.loaded else ()
    wrong = control is not None and max((*repeats, *shapes, *load)) < control <= max(decoding)
    alone = {"repeats": repeats, "shapes": shapes, "decoding": () if wrong else decoding}
    return Noise(alone, load, decoding if wrong else (), max(abs(each) for each in reference.values()))

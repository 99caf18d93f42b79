"""The whole check of a running server, in order, as a stream of events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...engines.server.base import Server
from ...engines.server.http import ServerError
from .cases import Case, Stream, plan
from .judge import CaseResult, judge
from .measure import Effort, measure
from .probe import probe
from .verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Planned:
    """What will be asked. grid: the server reuses multiples of this many tokens; None: it was not seen to reuse any."""

    cases: tuple[Case, ...]
    grid: int | None
    told: bool


@dataclass(frozen=True, slots=True)
class Doing:
    """What is being done now, for a progress bar."""

    text: str


@dataclass(frozen=True, slots=True)
class Checked:
    """One case is done."""

    result: CaseResult


Event = Planned | Doing | Checked


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants checked.

    grid:  tokens of which the server should reuse multiples, if the user knows; else the server is probed.
    cases: instead of those that sit on the grid's edges.
    most:  no prompt is longer than this many tokens.
    """

    seed: int = 0
    vocab: int = 256
    grid: int | None = None
    cases: Sequence[Case] = ()
    most: int = 8192
    effort: Effort = Effort()


def check(server: Server, asked: Asked, tick: Callable[[str], None] = lambda _: None) -> Iterator[Planned | Checked]:
    """Plan, then measure and judge case by case. What the server does wrong ends a case, not the check.

    Raises ServerError where the plan itself cannot be made.
    """
    stream = Stream(asked.seed, asked.vocab)
    grid, least, cases = asked.grid, 1, tuple(asked.cases)
    if grid is None and not cases:
        if found := probe(server, stream, asked.effort, asked.most // 2, tick):
            grid, least = found.block, found.least
    if not cases:
        # Without any reuse one ordinary prompt says so in the report, and proves nothing.
        cases = tuple(plan(grid or 64, least, asked.most))
        cases = cases if grid else cases[:1]
    yield Planned(cases, grid, asked.grid is not None)
    for case in cases:
        try:
            result = judge(measure(server, case, stream, asked.effort, lambda text: tick(f"{case}: {text}")), grid)
        except ServerError as error:
            result = CaseResult(case, Verdict(Outcome.FAILURE, str(error)))
        yield Checked(result)


def grid_of(page: int | None, dcp: int | None, chunk: int | None) -> int | None:
    """The grid of a server whose sizes are known: all depths that pages, ranks and kernel chunks can name."""
    if page is None and dcp is None and chunk is None:
        return None
    return math.lcm((page or 1) * (dcp or 1), chunk or 1)

"""The whole check of a running server, in order, as a stream of events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...engines.server.base import NoCounts, Server
from ...engines.server.http import ServerError
from .cases import Case, History, Stream, plan
from .judge import CaseResult, judge
from .measure import Effort, measure
from .probe import LADDER, probe
from .verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Planned:
    """What will be asked. grid: the server reuses multiples of this many tokens; None: nobody knows."""

    cases: tuple[Case, ...]
    grid: int | None


@dataclass(frozen=True, slots=True)
class Checked:
    """One case is done."""

    result: CaseResult


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
    cases: tuple[Case, ...] = ()
    most: int = 8192
    effort: Effort = field(default_factory=Effort)


def check(server: Server, asked: Asked, tick: Callable[[str], None] = lambda _: None) -> Iterator[Planned | Checked]:
    """Plan, then measure and judge case by case. What the server does wrong ends a case, not the check.

    Raises NoCounts: without its counts nothing can be said of any case.
    """
    stream = Stream(asked.seed, asked.vocab)
    most = min(asked.most, server.longest or asked.most)
    grid, least, cases = asked.grid, 1, asked.cases
    if grid is None and not cases:
        try:
            if found := probe(server, stream, asked.effort, most // 2, tick):
                grid, least = found.block, found.least
        except NoCounts:
            raise
        except ServerError as error:
            failed = Case(History.RESEND, LADDER[0])
            yield Planned((failed,), None)
            yield Checked(CaseResult(failed, Verdict(Outcome.FAILURE, f"while it was probed: {error}")))
            return
    if not cases:
        # Without any reuse one ordinary prompt says so in the report, and proves nothing.
        cases = tuple(plan(grid or 64, least, most))
        cases = cases if grid else cases[:1]
    yield Planned(cases, grid)
    for case in cases:
        try:
            result = judge(
                measure(server, case, stream, asked.effort, lambda text, case=case: tick(f"{case}: {text}")), grid
            )
        except NoCounts:
            raise  # no other case will fare better
        except ServerError as error:
            result = CaseResult(case, Verdict(Outcome.FAILURE, str(error)))
        yield Checked(result)


def grid_of(page: int | None, dcp: int | None, chunk: int | None) -> int | None:
    """The grid of a server whose sizes are known: all depths that pages, ranks and kernel chunks can name."""
    if page is None and dcp is None and chunk is None:
        return None
    return math.lcm((page or 1) * (dcp or 1), chunk or 1)

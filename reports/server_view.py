"""A check of a running server, for people and as a document."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..checker.blackbox.check import Asked
from ..checker.blackbox.judge import CaseResult, Difference
from ..checker.blackbox.measure import BEHIND
from ..checker.blackbox.verdict import Outcome, Verdict, exit_status
from ..engines.server.base import Server
from .visible import one_line

SCHEMA = "mamba-replay-check-server/1"

STYLES = {
    Outcome.OK: "green",
    Outcome.VACUOUS: "yellow",
    Outcome.INSENSITIVE: "yellow",
    Outcome.FAILURE: "magenta",
}

_COLUMNS = 40
"""Width of the bars in the picture."""


@dataclass(slots=True)
class ServerRun:
    """What a check of a server found.

    url:       as the user wrote it.
    connected: further words of the command line that say how to talk to the server.
    grid:      in tokens; None if nobody knows.
    """

    url: str
    server: Server
    asked: Asked
    connected: tuple[str, ...] = ()
    grid: int | None = None
    results: list[CaseResult] = field(default_factory=list)
    planned: int | None = None
    seconds: float = 0.0

    @property
    def verdicts(self) -> list[Verdict]:
        return [result.verdict for result in self.results]

    @property
    def complete(self) -> bool:
        """Whether every case was asked; None planned: it was stopped while the server was probed."""
        return len(self.results) == self.planned

    @property
    def exit_status(self) -> int:
        """An unfinished run may show a discrepancy, but never that all is right."""
        status = exit_status(self.verdicts)
        return status if self.complete or status == 1 else 3

    def reproduce(self, result: CaseResult) -> str:
        """The command that asks this one case again."""
        asked, effort = self.asked, self.asked.effort
        words = [
            "mamba-replay-check",
            "server",
            "--url",
            self.url,
            "--kind",
            self.server.kind,
            "--case",
            str(result.case),
        ]
        words += self.connected
        words += ["--page", str(self.grid)] if self.grid else []
        words += ["--seed", str(asked.seed), "--vocab", str(asked.vocab)]
        words += ["--repeats", str(effort.repeats), "--sends", str(effort.sends)]
        words += [] if effort.salted else ["--cold", "reset"]
        return shlex.join(words)


def headline(run: ServerRun) -> str:
    """What is checked, on one line."""
    server = run.server
    return one_line(
        f"Server: {server.kind} {server.version} at {run.url} | model {server.model} | seed {run.asked.seed}"
    )


def show(run: ServerRun, console: Console) -> None:
    """What makes a pass meaningless first, then the findings, then every case."""
    if not run.complete:
        of = "while it was probed" if run.planned is None else f"after {len(run.results)} of {run.planned} cases"
        console.print(Text(f"Stopped {of}.", style="bold yellow"))
    for result in run.results:
        if result.verdict.outcome is not Outcome.OK:
            _finding(run, result, console)
    console.print(_table(run.results))
    tally = ", ".join(f"{n} {each}" for each, n in Counter(str(v.outcome) for v in run.verdicts).most_common())
    said, style = {
        0: ("Every case is right", "bold green"),
        1: ("Discrepancies found", "bold red"),
        3: ("Inconclusive: this run does not show that the server is right", "bold yellow"),
    }[run.exit_status]
    console.print(Text(f"{said}: {tally or 'no case was checked'}.", style=style), soft_wrap=True)


def _finding(run: ServerRun, result: CaseResult, console: Console) -> None:
    style = STYLES.get(result.verdict.outcome, "bold red")
    console.print(Text(one_line(str(result.verdict)), style=style), soft_wrap=True)
    sent = f"; donors reported {', '.join(map(str, result.history))} cached tokens" if result.history else ""
    console.print(Text(f"  {result.case}{sent}, then {result.boundary} were reused"), soft_wrap=True)
    for line in picture(result):
        console.print(Text(f"    {line}", style="dim"), soft_wrap=True)
    for note in result.verdict.notes:
        console.print(Text(f"  note: {note}", style="dim"), soft_wrap=True)
    console.print(Text(f"  reproduce: {run.reproduce(result)}", style="cyan"), soft_wrap=True)
    console.print()


def picture(result: CaseResult) -> list[str]:
    """|resumed - cold| behind the boundary as bars on a logarithmic axis, with the noise floor and the limit; ASCII."""
    if not result.alone:
        return []
    shown = _shown(result.alone, result.boundary)
    alone, loaded = ({each.position: each.nats for each in listed} for listed in (result.alone, result.loaded))
    finite = [each.nats for each in (*result.alone, *result.loaded) if math.isfinite(each.nats)]
    top = max([*finite, result.load_limit]) * 1.5
    low = min([each for each in (*finite, result.noise.floor, result.limit) if each > 0]) / 2

    def column(nats: float) -> int:
        if nats <= low or math.isinf(nats):
            return 0 if nats <= low else _COLUMNS
        return min(_COLUMNS, round(_COLUMNS * math.log(nats / low) / math.log(top / low)))

    floor, limit = column(result.noise.floor), column(result.load_limit)
    lines = ["behind   token     nats  on a logarithmic axis; : noise floor, | limit"]
    for position in shown:
        # Under load where that is worse: the bar shows the worst that was seen.
        nats, busy = alone[position], loaded.get(position, 0.0)
        bar = list(("#" * column(max(nats, busy))).ljust(_COLUMNS))
        for at, sign in ((floor, ":"), (limit, "|")):
            bar[min(at, _COLUMNS - 1)] = sign
        load = "  under load" if busy > nats and busy > result.load_limit else ""
        distance = f"+{position - result.boundary}"
        lines.append(f"{distance:>6} {position:>7} {_nats(max(nats, busy)):>8}  {''.join(bar)}{load}".rstrip())
    control = "" if result.control is None else f", a planted change of the prompt {_nats(result.control)}"
    lines.append(f"noise floor {_nats(result.noise.floor)}, limit {_nats(result.load_limit)}{control}")
    return lines


def _shown(differences: Sequence[Difference], boundary: int) -> list[int]:
    """Positions at the usual distances, and the worst of all."""
    worst = max(differences, key=lambda each: each.nats).position
    wanted = {boundary + distance for distance in BEHIND} | {worst, differences[-1].position}
    return [each.position for each in differences if each.position in wanted]


def _table(results: Sequence[CaseResult]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case", no_wrap=True)
    table.add_column("donors cached", overflow="fold", max_width=20)
    for name in ("cached", "worst", "floor", "limit", "control"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for result in results:
        measured = bool(result.alone)
        numbers = (
            (result.worst.nats, result.noise.floor, result.load_limit, result.control) if measured else (None,) * 4
        )
        table.add_row(
            str(result.case),
            ", ".join(map(str, result.history)) or "-",
            str(result.boundary),
            *("-" if each is None else _nats(each) for each in numbers),
            Text(str(result.verdict.outcome), style=STYLES.get(result.verdict.outcome, "bold red")),
        )
    return table


def _nats(value: float) -> str:
    return (
        "no number" if math.isinf(value) else "0" if value == 0 else f"{value:.1e}" if value < 0.01 else f"{value:.2f}"
    )


def document(run: ServerRun) -> dict[str, Any]:
    """The run as one plain document. Differences are in nats; null is where the resumed run gave no number."""
    server, asked = run.server, run.asked
    return {
        "schema": SCHEMA,
        "server": {"url": run.url, "kind": server.kind, "version": server.version, "model": server.model},
        "seed": asked.seed,
        "vocab": asked.vocab,
        "repeats": asked.effort.repeats,
        "sends": asked.effort.sends,
        "cold": "salt" if asked.effort.salted else "reset",
        "grid": run.grid,
        "planned": run.planned,
        "complete": run.complete,
        "seconds": round(run.seconds, 3),
        "exit_status": run.exit_status,
        "cases": [_case(run, result) for result in run.results],
    }


def _case(run: ServerRun, result: CaseResult) -> dict[str, Any]:
    noise = result.noise
    kinds = {**noise.alone, "load": noise.load, "set_aside": noise.set_aside}
    loaded = {each.position: each.nats for each in result.loaded}
    return {
        "case": str(result.case),
        "history": str(result.case.history),
        "length": result.case.length,
        "verdict": {
            "outcome": str(result.verdict.outcome),
            "reason": result.verdict.reason,
            "notes": list(result.verdict.notes),
        },
        "donors_cached": list(result.history),
        "boundary": result.boundary,
        "limit": result.limit,
        "load_limit": result.load_limit,
        "control": result.control,
        "noise": {name: {"count": len(each), "largest": max(each, default=0.0)} for name, each in kinds.items()},
        "positions": [
            {
                "position": each.position,
                "cached": each.cached,
                "alone": _finite(each.nats),
                "loaded": _finite(loaded[each.position]) if each.position in loaded else None,
            }
            for each in result.alone
        ],
        "reproduce": run.reproduce(result),
    }


def _finite(nats: float) -> float | None:
    return nats if math.isfinite(nats) else None

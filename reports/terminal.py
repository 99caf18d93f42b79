"""The run for people at a terminal: progress while it goes, then the findings first and the table behind them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ..checker.cells import CellResult, Run, UnderTest
from ..checker.events import Checked, Event, Preparing
from ..checker.verdict import Kind
from .findings import geometry, prompt
from .identifiers import rule_of
from .reproduce import reproduce
from .ruler import ruler

if TYPE_CHECKING:
    from .baseline import Comparison

STYLES = {
    Kind.OK: "green",
    Kind.VACUOUS: "yellow",
    Kind.ENGINE_FAILURE: "magenta",
    Kind.REUSE_LOST: "yellow",
    Kind.REFUSED: "yellow",
    Kind.PRECISION: "yellow",
}
"""Colours by kind; whatever is not named here is wrong output, and red."""

FINDINGS_SHOWN = 5

FILE_WIDTH = 200
"""Columns of the table where the output is no terminal."""


def headline(under: UnderTest) -> str:
    """What is under test, on what, with which seed: the first line of every run."""
    guard = " with the insert-time guard" if under.guard else ""
    sharing = "" if under.shared else ", nothing shared"
    return (
        f"Under test: {under.engine}{guard} | model {under.model}, {under.dtype} | "
        f"{under.device}{sharing} | seed {under.seed}"
    )


class Terminal:
    """Listens to the events of a check and prints. Without a terminal it prints the same, without bars and colour."""

    def __init__(self, console: Console, *, table: bool = True, everything: bool = False, bars: bool = True) -> None:
        self._console = console
        if not console.is_terminal:
            console.width = FILE_WIDTH
        self._table = table
        self._shown = sys.maxsize if everything else FINDINGS_SHOWN
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not bars,
        )
        self._cells = None
        self._step = None
        self._found = 0
        self._prepared = ""

    def start(self, cells: int) -> None:
        """Show the bars. Call `stop` whatever happens."""
        self._progress.start()
        self._cells = self._progress.add_task("cells", total=cells)
        self._step = self._progress.add_task("loading the kernels", total=None)

    def stop(self) -> None:
        """Take the bars away."""
        self._progress.stop()

    def listen(self, event: Event) -> None:
        """Move the bars on."""
        if isinstance(event, Checked):
            self._found += event.result.verdict.kind.is_discrepancy
            description = f"cells, {self._found} discrepancies" if self._found else "cells"
            self._progress.update(self._cells, advance=1, description=description)
        elif isinstance(event, Preparing):
            shown = f"{event.what} {event.detail[:40]}" if event.detail else event.what
            self._progress.update(self._step, description=escape(shown), completed=0, total=None)
            if self._progress.disable and event.what != self._prepared:
                self._console.print(event.what, soft_wrap=True, markup=False, highlight=False)
            self._prepared = event.what
        else:
            self._progress.update(self._step, description=event.what, completed=event.done, total=event.total)

    def summary(self, run: Run, document: dict[str, Any]) -> None:
        """What the run found: whatever makes a pass meaningless first, then findings, then every cell."""
        self._warn(run)
        findings = [result for result in run.results if result.verdict.kind.is_discrepancy]
        drawn = dict(zip(map(id, run.results), document["cells"], strict=True))
        for result in findings[: self._shown]:
            self._finding(run, result, drawn[id(result)])
        if len(findings) > self._shown:
            self._console.print(f"... and {len(findings) - self._shown} more findings; -v shows them all.\n")
        if self._table:
            self._print_table(cell_table(run.results))
        self._console.print(Text(_conclusion(run), style=_conclusion_style(run)))

    def _print_table(self, table: Table) -> None:
        """In a file, nothing is cut to a screen's width, and no line ends in blanks."""
        if self._console.is_terminal:
            self._console.print(table)
            return
        with self._console.capture() as captured:
            self._console.print(table)
        for line in captured.get().splitlines():
            self._console.print(Text(line.rstrip()), soft_wrap=True)

    def comparison(self, comparison: Comparison, strict: bool) -> None:
        """What the baseline says to the run, the bad news first."""
        for name, style in (
            ("new", "bold red"),
            ("worse", "bold red"),
            ("reuse_lost", "bold red"),
            ("stale", "bold red" if strict else "yellow"),
            ("better", "bold red" if strict else "green"),
            ("known", "dim"),
        ):
            found = getattr(comparison, name)
            for cell, why in found[: self._shown]:
                line = f"{name.replace('_', ' ')}: {geometry(cell)}, prompt {prompt(cell)}: {why}"
                self._console.print(Text(line, style=style), soft_wrap=True)
                if name in ("new", "worse", "reuse_lost") and "reproduce" in cell:
                    self._console.print(Text("  reproduce: " + cell["reproduce"], style="cyan"), soft_wrap=True)
            if len(found) > self._shown:
                more = f"... and {len(found) - self._shown} more {name.replace('_', ' ')}; -v shows them all."
                self._console.print(Text(more, style=style))
        for note in comparison.notes:
            self._console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)
        style = "bold red" if comparison.failed(strict) else "bold green"
        self._console.print(Text(f"Against the baseline: {comparison.conclusion}", style=style), soft_wrap=True)

    def _warn(self, run: Run) -> None:
        if not run.complete:
            self._console.print(f"[bold yellow]Stopped after {len(run.results)} of {run.planned} cells.[/]")
        for kind, what in (
            (Kind.ENGINE_FAILURE, "failed in the engine and say nothing about it"),
            (Kind.VACUOUS, "are vacuous: nothing was resumed, so they prove nothing"),
        ):
            hit = [r for r in run.results if r.verdict.kind is kind]
            if hit:
                reasons = Counter(r.verdict.reason for r in hit)
                line = f"{len(hit)} of {len(run.results)} cells {what}"
                self._console.print(Text(line, style=STYLES[kind]))
                for reason, count in reasons.most_common(3):
                    self._console.print(Text(f"  {count}x {reason}", style="dim"))

    def _finding(self, run: Run, result: CellResult, drawn: dict[str, Any]) -> None:
        cell, replay, console = result.cell, result.replay, self._console
        style = STYLES.get(result.verdict.kind, "bold red")
        identifier = rule_of(result.verdict.kind).id
        console.print(Text(f"{identifier} {result.verdict}", style=style), soft_wrap=True)
        label = f" ({cell.label})" if cell.label else ""
        console.print(f"  {escape(str(cell.geometry))}, prompt {escape(str(cell.prompt))}{escape(label)}")
        console.print(f"  {_depths(result)}", soft_wrap=True)
        for line in ruler(drawn):
            console.print(Text(f"    {line}", style="dim"), soft_wrap=True)
        for donation in replay.donations:
            console.print(
                f"  donated: claimed {donation.claimed_depth} to the node that ends at {donation.node_depth}, "
                f"{donation.fate.value}",
                style="dim",
                soft_wrap=True,
            )
        if result.location is not None:
            console.print(f"  {located(result)}", soft_wrap=True)
        if result.diff is not None:
            console.print(f"  {differing(result)}", soft_wrap=True)
        console.print(Text("  reproduce: " + reproduce(run.under_test, cell), style="cyan"), soft_wrap=True)
        console.print()


def _depths(result: CellResult) -> str:
    replay = result.replay
    parts = []
    if replay.claimed_depth is not None:
        parts.append(f"claimed depth {replay.claimed_depth}")
    if replay.state_depth is not None:
        parts.append(f"state depth {replay.state_depth}")
        if replay.conv_depth != replay.state_depth:
            parts.append(f"convolution window at {replay.conv_depth}")
    parts.append(f"cached tokens {replay.cached_tokens}, reusable {result.cell.reusable}")
    return ", ".join(parts)


def located(result: CellResult) -> str:
    """What the numbers say about the donated state, without its tag."""
    location = result.location
    if location.depth is None:
        return f"located by its numbers: {location.standing}"
    exactly = "bit for bit" if location.distance == 0 else f"relative distance {location.distance:.1e}"
    said = f"located by its numbers: depth {location.depth}, {exactly}"
    if not location.windows:
        return f"{said}; the convolution window is nowhere"
    if location.window_distance:
        return f"{said}; the convolution window is off by {location.window_distance:.1e}"
    return said


def differing(result: CellResult) -> str:
    """The hidden-state diff in one line."""
    difference = result.diff
    floor = f"noise floor {difference.noise.floor:.1e}"
    if difference.is_clean:
        return f"hidden states agree with the cold run: largest error {difference.largest:.1e}, {floor}"
    return (
        f"hidden states differ from token {difference.first_wrong} to {difference.last_wrong}: "
        f"largest error {difference.largest:.1e}, {difference.over_noise:.1e} times the {floor}"
    )


def cell_table(results: Sequence[CellResult]) -> Table:
    """One row per cell. Sizes that are the same in every cell go into the title."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    sizes = [name for name in ("chunk", "page", "dcp", "interval") if len(_values(results, name)) > 1]
    fixed = [f"{name} {next(iter(_values(results, name)))}" for name in _SIZES if name not in sizes and results]
    table.title = ", ".join(fixed)
    table.title_justify = "left"
    for name in sizes:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("prompt", overflow="fold", max_width=26)
    for name in ("claimed", "located", "cached", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for result in results:
        table.add_row(*_row(result, sizes))
    return table


_SIZES = ("chunk", "page", "dcp", "interval")


def _values(results: Sequence[CellResult], name: str) -> set[int]:
    return {getattr(result.cell.geometry, name) for result in results}


def _row(result: CellResult, sizes: list[str]) -> list[str | Text]:
    replay, verdict = result.replay, result.verdict
    shown = str(verdict) if verdict.kind.is_discrepancy and verdict.start is not None else str(verdict.kind)
    if verdict.kind in (Kind.REFUSED, Kind.REUSE_LOST):
        shown = str(verdict).partition(": a guard")[0]
    from_file = result.cell.stream if result.cell.label == "" and ":" in result.cell.stream else ""
    return [
        *(str(getattr(result.cell.geometry, name)) for name in sizes),
        escape(f"{from_file} {result.cell.prompt}".strip()),
        "-" if replay.claimed_depth is None else str(replay.claimed_depth),
        "-" if result.location is None or result.location.depth is None else str(result.location.depth),
        str(replay.cached_tokens),
        "-" if result.diff is None else f"{result.diff.largest:.1e}",
        Text(shown, style=STYLES.get(verdict.kind, "bold red")),
    ]


def _conclusion(run: Run) -> str:
    counts = Counter(str(verdict.kind) for verdict in run.verdicts)
    tally = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    said = {
        0: "Every checked cell is right",
        1: "Discrepancies found",
        3: "Inconclusive: this run does not show that the engine is right",
    }[run.exit_status]
    return f"{said}: {tally or 'no cell was checked'}."


def _conclusion_style(run: Run) -> str:
    return {0: "bold green", 1: "bold red", 3: "bold yellow"}[run.exit_status]

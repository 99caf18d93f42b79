"""One run of the program: the check's events go to the terminal and to the files, and the run gives the exit status."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from ..checker.cells import CellResult, Run
from ..checker.events import Checked, Event, Progress
from ..checker.verdict import Kind
from . import baseline
from .config import Config
from .document import run_as_dict
from .runner import prepare
from .terminal import Terminal, headline

SAVE_EVERY = 2.0
"""Seconds between two savings while cells are finished one after the other."""


class Session:
    """Runs a config and reports it."""

    def __init__(self, config: Config, terminal: Terminal, console: Console) -> None:
        self._config = config
        self._console = console
        self._terminal = terminal
        self._order = {id(cell): place for place, cell in enumerate(config.cells)}

    def run(self) -> int:
        """Check, print, write the files. Returns the exit status. Ctrl-C ends the check, not the report."""
        self._terminal.start(len(self._config.cells))
        run: Run | None = None
        with contextlib.ExitStack() as stack:
            stack.callback(self._terminal.stop)
            try:
                run, events = stack.enter_context(prepare(self._config, listen=self._terminal.listen))
                self._console.print(headline(run.under_test), soft_wrap=True, markup=False, highlight=False)
                self._follow(run, events)
                run.complete = True
            except KeyboardInterrupt:
                if run is None:
                    return 3
            except Exception:
                if run is not None:
                    self._save(run)
                raise
        run.results.sort(key=self._place)
        return self._report(run)

    def _report(self, run: Run) -> int:
        """Everything that a finished run leaves behind: files, the summary, the baseline's opinion."""
        choices, document, known = self._config.choices, run_as_dict(run), self._config.baseline
        comparison = None if known is None else baseline.compare(known, document)
        if comparison is not None:
            baseline.record(comparison, document, choices.strict)
        try:
            choices.outputs.write(document, choices.source, self._say)
        finally:
            self._terminal.summary(run, document)
            if comparison is not None:
                self._terminal.comparison(comparison, choices.strict)
        if choices.write_baseline is not None:
            return self._write_baseline(document, choices.write_baseline)
        return run.exit_status if comparison is None else document["baseline"]["exit_status"]

    def _write_baseline(self, document: dict[str, Any], path: Path) -> int:
        """Keep what was found. Raises BaselineError for a run that shows too little."""
        made = baseline.make(document)
        baseline.write(made, path)
        vacuous = sum(entry.get("finding") == Kind.VACUOUS for entry in made["cells"])
        without = f", of which {vacuous} are vacuous and hold nothing to compare with" if vacuous else ""
        self._say(f"Wrote {path}: {len(made['cells'])} cells{without}.")
        return 0

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _place(self, result: CellResult) -> int:
        """Cells are finished in the order that sharing suggests; people read them in the order of the grid."""
        return self._order[id(result.cell)]

    def _follow(self, run: Run, events: Iterator[Event]) -> None:
        saved, kept = time.monotonic(), 0
        for event in events:
            self._terminal.listen(event)
            if isinstance(event, Checked):
                run.results.append(event.result)
            # A stage that begins may take minutes: what is finished is on disk before it.
            begins = isinstance(event, Progress) and event.done == 0
            if len(run.results) > kept and (begins or time.monotonic() - saved > SAVE_EVERY):
                self._save(run)
                saved, kept = time.monotonic(), len(run.results)

    def _save(self, run: Run) -> None:
        self._config.choices.outputs.save(run_as_dict(run))

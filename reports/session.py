"""One run of the program: the check's events go to the terminal and to the files, and the run gives the exit status."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import time
from collections.abc import Iterator

from rich.console import Console

from ..checker.cells import CellResult, Run, UnderTest
from ..checker.events import Checked, Progress
from ..engines.catalog import find
from .config import Config, ConfigError
from .files import write_json, write_table
from .terminal import Terminal, headline

SAVE_EVERY = 2.0
"""Seconds between two savings while cells are finished one after the other."""


class Session:
    """Runs a config and reports it."""

    def __init__(self, config: Config, console: Console) -> None:
        self._config = config
        self._console = console
        self._terminal = Terminal(console)
        self._order = {id(cell): place for place, cell in enumerate(config.cells)}

    def run(self) -> int:
        """Check, print, write the files. Returns the exit status. Ctrl-C ends the check, not the report."""
        self._terminal.start(len(self._config.cells))
        run: Run | None = None
        with contextlib.ExitStack() as stack:
            stack.callback(self._terminal.stop)
            try:
                run, events = self._prepare()
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
        try:
            self._save(run)
        finally:
            self._terminal.summary(run)
        return run.exit_status

    def _place(self, result: CellResult) -> int:
        """Cells are finished in the order that sharing suggests; people read them in the order of the grid."""
        return self._order[id(result.cell)]

    def _prepare(self) -> tuple[Run, Iterator]:
        # torch, Triton and FLA are loaded here: seconds that a mistake on the command line should not cost.
        from ..checker.check import Workload, check
        from ..kernels.backend import BackendError, choose_backend
        from ..kernels.stack import Stack, float_type

        config = self._config
        try:
            backend = choose_backend(config.device, config.executor, config.dtype)
        except BackendError as error:
            raise ConfigError(str(error)) from error
        under_test = UnderTest(
            config.engine,
            config.guard,
            config.preset.name,
            config.dtype,
            backend.description,
            str(backend.executor),
            config.seed,
            config.share,
            versions(),
            str(config.tokenizer or ""),
        )
        run = Run(under_test, len(config.cells))
        engine = find(config.engine, config.guard)
        stacks: dict[int, Stack] = {}

        def stack(chunk: int) -> Stack:
            if chunk not in stacks:
                stacks[chunk] = Stack(config.preset, chunk, config.seed, float_type(config.dtype), backend)
            return stacks[chunk]

        return run, check(
            Workload(config.cells, self._streams(), lambda cell: engine(cell.geometry), stack, config.share)
        )

    def _streams(self) -> dict:
        from ..scenarios.tokens import seeded_stream
        from .reproduce import SEEDED

        lengths = [cell.prompt.resume_length for cell in self._config.cells if cell.stream == SEEDED]
        streams = dict(self._config.streams)
        if lengths:
            drawn = seeded_stream(self._config.seed, max(lengths), self._config.preset.vocab)
            streams[SEEDED] = drawn.tolist()
        return streams

    def _follow(self, run: Run, events: Iterator) -> None:
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
        if self._config.json is not None:
            write_json(run, self._config.json)
        if self._config.table is not None:
            write_table(run, self._config.table)


def versions() -> dict[str, str]:
    """What a report must name for its numbers to mean something."""
    names = ("mamba-replay-check", "torch", "triton", "fla-core")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}

"""`mamba-replay-check server`: the black-box check of a running server, from its options to its exit status."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..checker.blackbox.cases import FIRST_TOKEN, Case, CaseError
from ..checker.blackbox.check import Asked, Planned, check, grid_of
from ..checker.blackbox.measure import Effort
from ..engines.server.base import NoCounts
from ..engines.server.detect import Unusable, connect
from .config import ConfigError
from .files import check_writable, write_json
from .server_view import ServerRun, document, headline, show

COLD = ("salt", "reset")

PATIENCE = 60.0
"""Seconds for one answer, unless the user says otherwise."""


@dataclass(frozen=True, slots=True)
class ServerChoices:
    """The command's options, as they were written."""

    url: str
    kind: str = "auto"
    model: str | None = None
    page: int | None = None
    dcp: int | None = None
    chunk: int | None = None
    cases: tuple[str, ...] = ()
    vocab: int = 256
    longest: int = 8192
    repeats: int = 3
    sends: int = 4
    cold: str = "salt"
    seed: int = 0
    timeout: float = PATIENCE
    json: Path | None = None

    @property
    def connected(self) -> tuple[str, ...]:
        """What a command that reproduces a finding must say to reach the same model as patiently."""
        model = ("--model", self.model) if self.model else ()
        return (*model, *(("--timeout", f"{self.timeout:g}") if self.timeout != PATIENCE else ()))

    def asked(self) -> Asked:
        """What is to be checked. Raises ConfigError."""
        if self.cold not in COLD:
            raise ConfigError(f"--cold {self.cold!r} is unknown: use {' or '.join(COLD)}")
        if self.vocab <= FIRST_TOKEN:
            raise ConfigError(f"--vocab {self.vocab} leaves no tokens: ids below {FIRST_TOKEN} are not used")
        try:
            cases = tuple(dict.fromkeys(Case.parse(each) for each in self.cases))
        except CaseError as error:
            raise ConfigError(str(error)) from None
        effort = Effort(self.repeats, self.sends, self.cold == "salt")
        return Asked(self.seed, self.vocab, grid_of(self.page, self.dcp, self.chunk), cases, self.longest, effort)


def run(choices: ServerChoices, console: Console, bars: bool) -> int:
    """Check the server and report. Raises ConfigError, and OutputError for a file that cannot be written."""
    asked = choices.asked()
    if choices.json is not None:
        check_writable(choices.json)
    try:
        server = connect(choices.url, choices.kind, choices.model, choices.timeout)
    except Unusable as error:
        raise ConfigError(str(error)) from None
    try:
        return _run(ServerRun(choices.url, server, asked, choices.connected), choices.json, console, bars)
    finally:
        server.close()


def _run(found: ServerRun, json: Path | None, console: Console, bars: bool) -> int:
    console.print(headline(found), soft_wrap=True, markup=False, highlight=False)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not bars,
    )
    with progress:
        task = progress.add_task("asking the server", total=None)
        try:
            for event in check(found.server, found.asked, lambda text: progress.update(task, description=text)):
                if isinstance(event, Planned):
                    found.planned, found.grid = len(event.cases), event.grid
                else:
                    found.results.append(event.result)
                    found.seconds = time.monotonic() - began
                    if json is not None:
                        write_json(document(found), json)  # whoever stops us finds what is finished
                progress.update(task, completed=len(found.results), total=found.planned)
        except KeyboardInterrupt:
            pass  # what is finished is reported, as of a run that was stopped
        except NoCounts as error:
            raise ConfigError(f"cannot check {found.url}: {error}") from None
    if found.planned == 0:
        longest = min(found.asked.most, found.server.longest or found.asked.most)
        raise ConfigError(
            f"no case fits into {longest} tokens on a grid of {found.grid}: raise --longest, or name a --case"
        )
    found.seconds = time.monotonic() - began
    if json is not None:
        write_json(document(found), json)
    show(found, console)
    return found.exit_status

"""`mamba-replay-check engines`: environments of real engine releases, listed, made ahead of a check, and removed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .errors import say

if TYPE_CHECKING:
    from ..engines.environments import Environments

app = typer.Typer()

_Specs = typer.Argument(help="Releases, e.g. sglang==0.5.17.", metavar="RELEASE...")


@app.callback(invoke_without_command=True)
def engines(context: typer.Context) -> None:
    """List, install and remove the environments of real engine releases."""
    if context.invoked_subcommand is None:
        say("name what to do: mamba-replay-check engines list, engines install RELEASE or engines remove RELEASE")
        raise typer.Exit(2)


@app.command("list")
def list_(context: typer.Context) -> None:
    """Show the releases that can be driven, and what is in the cache."""
    from rich.filesize import decimal
    from rich.table import Table

    from ..engines.environments import State

    environments = _environments(context)
    table = Table("engine", "release", "state", "size", "path", box=None, pad_edge=False, header_style="bold")
    for listed in environments.list():
        engine, _, release = listed.spec.partition("==")
        size = "" if listed.size is None else decimal(listed.size)
        path = "" if listed.state is State.MISSING else escape(str(listed.path))
        table.add_row(engine, release, listed.state.value, size, path)
    # A path that is cut or broken cannot be copied: the table may be wider than the screen.
    Console(width=10_000).print(table)


@app.command()
def install(context: typer.Context, releases: Annotated[list[str], _Specs]) -> None:
    """Make the environments of these releases, and print their Pythons. What is already there is not made again."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    environments = _environments(context)

    def one(spec: str) -> None:
        with showing_progress() as progress:
            python = environments.ensure(spec, progress)
        print(python)

    raise typer.Exit(_each(releases, one))


@app.command()
def remove(
    context: typer.Context,
    releases: Annotated[list[str] | None, _Specs] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every environment.")] = False,
) -> None:
    """Delete the environments of these releases."""
    from ..engines.environments import State

    environments = _environments(context)
    specs = list(releases or ())
    if everything == bool(specs):
        say("name the releases to remove, e.g. sglang==0.5.17, or give --all")
        raise typer.Exit(2)
    if everything:
        specs = [listed.spec for listed in environments.list() if listed.state is not State.MISSING]

    def one(spec: str) -> None:
        print(f"{spec}: {'removed' if environments.remove(spec) else 'is not installed'}")

    raise typer.Exit(_each(specs, one))


def _environments(context: typer.Context) -> Environments:
    """Those in the user's cache, unless the caller of the app hands in others."""
    from ..engines.environments import Environments

    return context.find_object(Environments) or Environments.in_cache()


def _each(specs: list[str], do: Callable[[str], None]) -> int:
    """`do` for every release; one that fails does not keep the others from their turn."""
    from ..engines.recipes import EnvironmentFailure

    status = 0
    for spec in dict.fromkeys(specs):
        try:
            do(spec)
        except EnvironmentFailure as error:
            say(str(error))
            status = 2
    return status


@contextmanager
def showing_progress() -> Iterator[Callable[[str, str], None]]:
    """A `Progress` for `environments.ensure`, on the standard error: a line that moves at a terminal.

    Elsewhere, and where CI is set: one line when an install begins, and one with its seconds at the end. Shows nothing
    as long as it hears nothing.
    """
    console = Console(stderr=True)
    moves = console.is_terminal and not os.environ.get("CI")
    started = time.monotonic()
    steps: list[str] = []
    status = console.status("")

    def progress(step: str, line: str) -> None:
        if not steps or steps[-1] != step:
            steps.append(step)
            if not moves:
                console.print(step, soft_wrap=True, markup=False, highlight=False)
        if moves:
            seconds = time.monotonic() - started
            status.update(f"{escape(step)} [dim]{seconds:.0f} s[/]\n  [dim]{escape(line[: console.width - 4])}[/]")
            status.start()

    try:
        yield progress
    finally:
        status.stop()
    if steps:
        console.print(f"done in {time.monotonic() - started:.0f} s", highlight=False)

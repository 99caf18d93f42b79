"""`mamba-replay-check conform`: what an engine's driver still lacks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ..engines.conform import conform


def run(command: Sequence[str], timeout: float, console: Console) -> int:
    """Try every rule and print it. Returns the exit status. Raises DriverError for a driver that cannot say hello."""
    kept = broken = 0
    rules = conform(command, timeout)
    while True:
        with console.status("talking to the driver"):
            finding = next(rules, None)
        if finding is None:
            break
        kept += not finding.wrong
        broken += bool(finding.wrong)
        mark = ("no  ", "bold red") if finding.wrong else ("yes ", "green")
        console.print(Text.assemble(mark, finding.rule), soft_wrap=True)
        if said := finding.wrong or finding.note:
            console.print(Text(f"      {said}", style="red" if finding.wrong else "dim"), soft_wrap=True)
    if broken:
        console.print(Text(f"{broken} of {kept + broken} rules of the protocol are not kept.", style="bold red"))
        return 1
    console.print(Text(f"The driver keeps all {kept} rules.", style="bold green"))
    return 0

"""The whole first command, and a grid of 200 cells against one cell: wall time and peak memory, as a user meets them.

python benchmarks/command.py            # the first command, three times
python benchmarks/command.py --grid     # 200 cells against one, on the same prompt, in alternation
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

COMMAND = [sys.executable, "-m", "mamba_replay_check.reports.app"]
FIRST = ["--dcp", "8", "--page", "64"]
ONE_CELL = ["--page", "64", "--dcp", "8", "--prompt", "16384+4066"]
# 5 pages x 4 dcp sizes x 10 intervals = 200 cells
GRID = ["--page", "4..64..x2", "--dcp", "1..8..x2", "--interval", "64..640..64", "--prompt", "16384+4066"]


def measure(arguments: list[str]) -> tuple[float, float, int]:
    """(seconds, peak GiB, exit status) of one run of the program."""
    began = time.perf_counter()
    child = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    return time.perf_counter() - began, usage.ru_maxrss / 2**20, os.waitstatus_to_exitcode(status)


def main(
    grid: Annotated[bool, typer.Option("--grid", help="200 cells against one.")] = False,
    times: Annotated[int, typer.Option(help="How often each command is run.")] = 3,
) -> None:
    """Run the commands and print what they took."""
    commands = {"one cell": ONE_CELL, "200 cells": GRID} if grid else {"first command": FIRST}
    table = Table("command", "seconds", "peak GiB", "exit")
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(times):
        for name, arguments in commands.items():
            took, peak, status = measure(arguments)
            seconds[name].append(took)
            table.add_row(name, f"{took:.1f}", f"{peak:.2f}", str(status))
    console = Console()
    console.print(table)
    if grid:
        ratio = min(seconds["200 cells"]) / min(seconds["one cell"])
        console.print(f"200 cells cost {ratio:.2f} times one cell (best of {times} each).")


if __name__ == "__main__":
    typer.run(main)

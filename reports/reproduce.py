"""The command that replays exactly one cell. It stands beside every finding."""

from __future__ import annotations

import os
import shlex

from ..checker.cells import Cell, UnderTest
from ..engines.catalog import COMMAND


def reproduce(under_test: UnderTest, cell: Cell) -> str:
    """One line for a shell."""
    geometry = cell.geometry
    words = ["mamba-replay-check"]
    for name in ("chunk", "page", "dcp", "interval"):
        words += [f"--{name}", str(getattr(geometry, name))]
    # Seeded prompts are told by their sizes; prompts from a file by file and line, which is the stream's name.
    if cell.stream == SEEDED:
        words += ["--prompt", str(cell.prompt)]
    else:
        words += ["--prompts", cell.stream, *(["--tokenizer", under_test.tokenizer] if under_test.tokenizer else [])]
    words += _engine(under_test)
    words += ["--model", under_test.model, "--seed", str(under_test.seed)]
    words += ["--dtype", under_test.dtype]
    if under_test.executor != "batched":
        words += ["--executor", under_test.executor]
    if under_test.guard:
        words.append("--guard")
    if not under_test.shared:
        words.append("--no-share")
    if under_test.settings:  # its files and its baseline are not this cell's
        words += ["--config", os.devnull]
    return shlex.join(words)


def _engine(under_test: UnderTest) -> list[str]:
    command = under_test.engine.removeprefix(COMMAND)
    words = ["--engine", command] if command == under_test.engine else ["--engine-cmd", command]
    if under_test.engine_python:
        words += ["--engine-python", under_test.engine_python]
    if under_test.payload == "tensors":
        words += ["--payload", under_test.payload]
    return words


SEEDED = "seeded"
"""The name of the token stream that all prompts given by size are prefixes of."""

"""The command itself, as a shell would call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "mamba_replay_check.reports.app"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call of the command left behind. `document` is its JSON file, if it was asked for one and wrote it."""

    status: int
    out: str
    err: str
    document: dict[str, Any] | None

    @property
    def cells(self) -> list[dict[str, Any]]:
        assert self.document is not None, self.err
        return self.document["cells"]


def environment(**changes: str) -> dict[str, str]:
    """The environment without what would colour, widen or still the output."""
    loud = {"FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CI", "TERM"}
    return {k: v for k, v in os.environ.items() if k not in loud} | {"TERM": "xterm-256color"} | changes


def strictly(text: str) -> Any:
    """JSON as the standard has it: Python would also take NaN and Infinity."""

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


Call = Callable[..., Outcome]


@pytest.fixture(scope="session")
def call(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """call("--page", "64", ...): run the command in a folder of its own, with --json unless the test names outputs."""

    def run(*args: str, cwd: Path | None = None, json_too: bool = True, **env: str) -> Outcome:
        cwd = cwd or tmp_path_factory.mktemp("run")
        path = cwd / "run.json"
        command = [*COMMAND, *args, *(["--json", str(path)] if json_too else [])]
        done = subprocess.run(
            command, cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=300, check=False
        )
        document = strictly(path.read_text()) if json_too and path.exists() else None
        return Outcome(done.returncode, done.stdout, done.stderr, document)

    return run

"""`mamba-replay-check engines`: what it prints, and what it answers to mistakes."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import Call, environment

if TYPE_CHECKING:
    from ..conftest import Index

ENGINES = """
import sys
from pathlib import Path
from mamba_replay_check.engines.environments import Environments
from mamba_replay_check.engines.recipes import Recipe
from mamba_replay_check.reports.app import app

folder, url, *words = sys.argv[1:]
step = ("install", "--no-cache-dir", "--index-url", url, "tiny=={version}")
environments = Environments(Path(folder), (Recipe("tiny", ("1.0", "1.1"), (step,)),))
sys.exit(app(["engines", *words], obj=environments, standalone_mode=False))
"""

Run = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "engines"


@pytest.fixture(scope="module")
def engines(index: Index, folder: Path) -> Run:
    """engines("install", "tiny==1.0"): the real command, with a recipe for a tiny package."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", ENGINES, str(folder), index.url, *words]
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.run(command, text=True, timeout=120, check=False, env=environment(), **settings)

    return run


def test_install_list_remove(engines: Run, folder: Path) -> None:
    made = engines("install", "tiny==1.0")
    python = made.stdout.strip()
    assert (made.returncode, made.stdout) == (0, f"{python}\n")
    assert subprocess.run([python, "-I", "-c", "import tiny"], check=False).returncode == 0
    begins, ends = made.stderr.splitlines()
    assert begins == f"installing tiny==1.0 into {folder / 'tiny-1.0'}"
    assert ends.startswith("done in ")
    assert ends.endswith(" s")

    again = engines("install", "tiny==1.0")
    assert (again.returncode, again.stdout, again.stderr) == (0, made.stdout, "")

    rows = [line.split() for line in engines("list").stdout.splitlines()]
    assert rows[0] == ["engine", "release", "state", "size", "path"]
    assert rows[1][:3] == ["tiny", "1.0", "installed"]
    assert rows[1][4:] == ["MB", str(folder / "tiny-1.0")]
    assert rows[2] == ["tiny", "1.1", "not", "installed"]

    removed = engines("remove", "tiny==1.0", "tiny==1.1")
    assert removed.stdout == "tiny==1.0: removed\ntiny==1.1: is not installed\n"
    assert removed.returncode == 0
    assert not (folder / "tiny-1.0").exists()


def test_one_that_fails_does_not_stop_the_others(engines: Run, folder: Path) -> None:
    made = engines("install", "tiny==1.1", "tiny==8.8", "tinny==1.0", "tiny==1.1")
    assert made.returncode == 2
    assert Path(made.stdout.strip()).is_relative_to(folder / "tiny-1.1"), "named twice, printed once"
    errors = [line for line in made.stderr.splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: tiny==8.8 cannot be installed: No matching distribution found for tiny==8.8",
        "error: there is no engine release 'tinny==1.0'. Did you mean tiny==1.0? Accepted: tiny==VERSION (1.0, 1.1)",
    ]
    (folder / "tiny-1.7").mkdir()
    removed = engines("remove", "--all")
    assert removed.stdout == "tiny==1.1: removed\ntiny==1.7: removed\n"


def test_at_a_terminal_a_line_moves(engines: Run) -> None:
    """And it is gone afterwards, so that standard output holds nothing but the answer."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # Linux says so when the other end is closed
            while piece := os.read(ours, 65536):
                shown.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    made = engines("install", "tiny==1.2", stderr=theirs)
    os.close(theirs)
    reader.join(10)
    os.close(ours)
    screen = b"".join(shown)
    assert made.returncode == 0
    assert made.stdout.endswith("/bin/python\n")
    assert b"installing tiny==1.2" in screen
    assert b"Collecting tiny==1.2" in screen or b"Successfully installed" in screen
    assert b"\x1b[?25h" in screen, "the cursor is given back"


@pytest.mark.parametrize(
    "words, said",
    [
        (["engines"], "name what to do: mamba-replay-check engines list, engines install RELEASE or engines remove"),
        (["engines", "instal"], "No such command 'instal'"),
        (["engines", "install"], "Missing argument"),
        (["engines", "install", "sglang"], "there is no engine release 'sglang'. Did you mean sglang==VERSION?"),
        (["engines", "remove"], "name the releases to remove, e.g. sglang==0.5.17, or give --all"),
        (["engines", "remove", "--all", "sglang==0.5.17"], "name the releases to remove"),
        (["engines", "remove", "sgland==0.5.17"], "Did you mean sglang==0.5.17?"),
        (["--page", "64", "engines", "list"], "options go behind the command: mamba-replay-check engines [OPTIONS]"),
    ],
)
def test_mistakes(call: Call, tmp_path: Path, words: list[str], said: str) -> None:
    outcome = call(*words, json_too=False, MAMBA_REPLAY_CHECK_CACHE=str(tmp_path / "cache"))
    assert outcome.status == 2
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert outcome.out == ""
    assert not (tmp_path / "cache").exists()


def test_the_list_of_an_empty_cache(call: Call, tmp_path: Path) -> None:
    outcome = call("engines", "list", json_too=False, MAMBA_REPLAY_CHECK_CACHE=str(tmp_path / "cache"))
    assert outcome.status == 0
    assert [line.split()[:3] for line in outcome.out.splitlines()[1:3]] == [
        ["sglang", "0.5.17", "not"],
        ["sglang", "0.5.18", "not"],
    ]
    assert not (tmp_path / "cache").exists()


def test_other_commands_do_not_load_what_only_this_one_needs() -> None:
    code = (
        "import sys\n"
        "import mamba_replay_check.reports.app\n"
        "print(*{'filelock', 'platformdirs', 'venv', 'torch'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

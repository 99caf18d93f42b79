"""A run that is stopped: what was finished is on disk, valid, and says that it is not everything."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import COMMAND, environment, strictly

MANY = ("--model", "qwen3-next", "--no-share", *(word for n in range(200) for word in ("--prompt", f"{128 + n}n70")))
"""Without sharing each cell is a group of its own: the first is finished after seconds, the last much later."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """The command, once its JSON file is there."""
    command = [*COMMAND, *MANY, "--json", "run.json", "--table", "cells.csv"]
    child = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 240
        while not (tmp_path / "cells.csv").exists():
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield child
    finally:
        child.kill()
        child.communicate()


def document(folder: Path) -> dict[str, Any]:
    return strictly((folder / "run.json").read_text())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_asked_to_stop(running: subprocess.Popen, tmp_path: Path, how: signal.Signals) -> None:
    already = len(document(tmp_path)["cells"])
    running.send_signal(how)
    out, err = running.communicate(timeout=120)
    found = document(tmp_path)
    assert not found["complete"]
    assert found["planned"] == 200
    assert already <= len(found["cells"]) < 200
    assert {cell["verdict"]["kind"] for cell in found["cells"]} == {"ok"}
    assert running.returncode == found["exit_status"] == 3, "all that was checked is right, but not all was checked"
    assert f"Stopped after {len(found['cells'])} of 200 cells." in out
    assert err == ""
    assert len((tmp_path / "cells.csv").read_text().splitlines()) == 1 + len(found["cells"])


def test_killed(running: subprocess.Popen, tmp_path: Path) -> None:
    running.send_signal(signal.SIGKILL)
    running.wait(timeout=60)
    found = document(tmp_path)
    assert not found["complete"]
    assert 1 <= len(found["cells"]) < 200


def test_what_is_finished_is_saved_before_the_next_cell_begins(running: subprocess.Popen, tmp_path: Path) -> None:
    """The first cell is on disk as soon as it is finished, and not only when the clock says so."""
    assert len(document(tmp_path)["cells"]) == 1

"""The gate, by running the command: settings, baselines and reports of saved runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

SMALL = ["--model", "qwen3-next", "--page", "64", "--prompt", "512+400n70"]


MINE = """
from mamba_replay_check.engines.sglang_model import SGLangModel

class Mine(SGLangModel): pass
"""


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program as its own process."""
    env = {k: v for k, v in os.environ.items() if k not in ("CI", "GITHUB_STEP_SUMMARY")} | environment
    command = [sys.executable, "-m", "mamba_replay_check.reports.app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=300)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the baseline and the saved run of an engine with a known fault."""
    folder = tmp_path_factory.mktemp("gate")
    options = [*SMALL, "--dcp", "1,4", "--engine", "model:sglang-0.5.17"]
    made = run("baseline", *options, "--json", "run.json", cwd=folder)
    assert made.returncode == 0, made.stderr
    assert "Wrote mamba-replay-baseline.json: 2 cells." in made.stdout
    return folder


def test_known_findings_pass_and_new_ones_do_not(old: Path) -> None:
    options = [*SMALL, "--engine", "model:sglang-0.5.17", "--baseline", "mamba-replay-baseline.json"]
    again = run(*options, "--dcp", "1,4", cwd=old)
    assert again.returncode == 0, again.stderr
    assert "Against the baseline: 1 known." in again.stdout
    more = run(*options, "--dcp", "1,4", "--prompt", "512+384n70", cwd=old)
    assert more.returncode == 1
    assert "new: chunk 64, page 64, dcp 4" in more.stdout
    assert "--prompt 512+384n70" in more.stdout.split("Discrepancies found")[1], "the line that reproduces it"


def test_better_stale_and_strict(old: Path) -> None:
    options = [*SMALL, "--dcp", "4", "--baseline", "mamba-replay-baseline.json", "--engine", "model:sglang-0.5.23"]
    found = run(*options, cwd=old)
    assert found.returncode == 0, found.stderr
    assert "Against the baseline: 1 better, 1 stale." in found.stdout
    assert "note: the baseline was made with engine model:sglang-0.5.17" in found.stdout
    assert run(*options, "--strict", cwd=old).returncode == 1


def test_reuse_that_is_lost_fails(old: Path, tmp_path: Path) -> None:
    """The guard keeps the wrong state out of the tree: what is computed is right, from fewer cached tokens."""
    kept = json.loads((old / "mamba-replay-baseline.json").read_text())
    for cell in kept["cells"]:
        cell.pop("finding", None), cell.pop("tokens", None)
        cell["cached_tokens"] += 64
    (tmp_path / "b.json").write_text(json.dumps(kept))
    found = run(*SMALL, "--dcp", "1,4", "--baseline", "b.json", cwd=tmp_path)
    assert found.returncode == 1
    assert "2 reuse lost" in found.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--baseline", "nothing.json"], "write it with mamba-replay-check baseline"),
        (["--baseline", "broken.json"], "is not JSON"),
        (["--baseline", "mamba-replay-baseline.json", "--model", "kimi-linear"], "made with model qwen3-next"),
        (["--baseline", "mamba-replay-baseline.json", "--engine", "python:my_engine:Mine"], "made with engine model:"),
        (["--baseline", "mamba-replay-baseline.json", "--json", "mamba-replay-baseline.json"], "two files"),
        (["--config", "right.toml", "--json", "right.toml"], "--json and the settings both name right.toml"),
        (["baseline"], "options go behind the command: mamba-replay-check baseline [OPTIONS]"),
        (["report", "run.json"], "options go behind the command: mamba-replay-check report [OPTIONS]"),
        (["--strict"], "give --baseline FILE"),
        (["--config", "nothing.toml"], "cannot read nothing.toml"),
        (["--config", "wrong.toml"], "did you mean 'engine'"),
    ],
)
def test_a_mistake_is_answered_at_once(old: Path, arguments: list[str], words: str) -> None:
    (old / "broken.json").write_text('{"baseline": 1')
    (old / "wrong.toml").write_text('engin = "x"')
    (old / "right.toml").write_text("seed = 0")
    (old / "my_engine.py").write_text(MINE)
    before = files(old)
    found = run(*SMALL, *arguments, cwd=old)
    assert found.returncode == 2
    (line,) = found.stderr.splitlines()
    assert words in line
    assert files(old) == before


def test_settings_are_defaults_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.mamba-replay-check]\nmodel = "qwen3-next"\npage = [64]\ndcp = [1, 4]\nprompt = ["512+400n70"]\n'
        'engine = "model:sglang-0.5.17"\njson = "run.json"\nsarif = "run.sarif"\n'
    )
    found = run("--dcp", "4", cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    document = json.loads((tmp_path / "run.json").read_text())
    assert [cell["dcp"] for cell in document["cells"]] == [4]
    assert document["under_test"]["engine"] == "model:sglang-0.5.17"
    result = json.loads((tmp_path / "run.sarif").read_text())["runs"][0]["results"][0]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "pyproject.toml"
    assert place["region"]["startLine"] == 1, "the section that asked for the cell"


def test_reports_of_a_saved_run(old: Path, tmp_path: Path) -> None:
    saved = str(old / "run.json")
    summary = tmp_path / "summary.md"
    outputs = ["--html", "r.html", "--junit", "r.xml", "--sarif", "r.sarif", "--table", "r.csv", "--github"]
    found = run("report", saved, *outputs, cwd=tmp_path, GITHUB_STEP_SUMMARY=str(summary))
    assert found.returncode == 1, "the run's own status"
    assert found.stdout.startswith("::error ") and "MRC001" in found.stdout
    assert "double-computed" in summary.read_text()
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(list(ET.parse(tmp_path / "r.xml").iter("testcase"))) == 2
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "r.sarif").read_text())["version"] == "2.1.0"


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "cannot read run.json"),
        ("{", "is not JSON"),
        ('{"schema": 99}', "is not a run of schema 1"),
        ('{"schema": 1}', "is not a whole run"),
    ],
)
def test_a_file_that_is_no_run(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    found = run("report", "run.json", "--html", "r.html", cwd=tmp_path)
    assert found.returncode == 2
    (line,) = found.stderr.splitlines()
    assert words in line
    assert not (tmp_path / "r.html").exists()


def test_an_interrupted_or_empty_check_writes_no_baseline(tmp_path: Path) -> None:
    found = run("baseline", "--model", "qwen3-next", "--page", "64", "--prompt", "63", cwd=tmp_path)
    assert found.returncode == 3
    assert "nothing was resumed" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_in_ci_every_finding_is_told_in_full(tmp_path: Path) -> None:
    options = [*SMALL[:2], "--page", "64", "--dcp", "4", "--engine", "model:sglang-0.5.17"]
    prompts = [word for n in range(7) for word in ("--prompt", f"512+{384 + n}n70")]
    plain = run(*options, *prompts, cwd=tmp_path)
    assert plain.stdout.count("reproduce: ") == 5 and "2 more findings" in plain.stdout
    told = run(*options, *prompts, cwd=tmp_path, CI="true")
    assert told.stdout.count("reproduce: ") == 7
    quiet = run(*options, *prompts, "-q", cwd=tmp_path)
    assert "verdict" in plain.stdout and "verdict" not in quiet.stdout

"""`mamba-replay-check server`, as a shell would call it, against a server of ours."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ..engines.server.hybrid_server import Faults, serving
from .conftest import COMMAND, Call, environment, strictly

SOME = ("--case", "resend:192", "--case", "sibling:256", "--page", "64")


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_a_right_server(call: Call, dialect: str) -> None:
    with serving(dialect) as server:
        found = call("server", "--url", server.url)
    assert found.status == 0, found.out + found.err
    assert found.out.startswith(f"Server: {dialect} 0.0-ours at {server.url} | model tiny | seed 0")
    assert "Every case is right: 7 ok." in found.out
    assert found.document["grid"] == 64 and found.document["complete"]
    assert all(case["verdict"]["outcome"] == "ok" for case in found.document["cases"])


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_a_server_that_resumes_64_tokens_too_deep(call: Call, dialect: str) -> None:
    with serving(dialect, Faults(deeper=64)) as server:
        found = call("server", "--url", server.url, *SOME)
        assert found.status == 1
        (line,) = (line for line in found.out.splitlines() if "reproduce" in line and "resend:192" in line)
        again = call(*shlex.split(line.partition("reproduce: mamba-replay-check ")[2]))
    assert "differs: token 129's log-probability, resumed at 128, is off by 1.2 nats" in found.out
    assert "    +1     129     1.21  " in found.out, "the picture"
    assert "Discrepancies found: 2 differs." in found.out
    first = found.document["cases"][0]
    assert first["boundary"] == 128 and first["positions"][0] == again.document["cases"][0]["positions"][0]
    assert (again.status, len(again.document["cases"])) == (1, 1)


def test_nothing_is_reused(call: Call) -> None:
    with serving("vllm", Faults(never=True)) as server:
        found = call("server", "--url", server.url)
        known = call("server", "--url", server.url, *SOME)
    assert (found.status, known.status) == (3, 1)
    assert "vacuous: nothing was reused (donors reported 0, 0, 0, 0 cached tokens)" in found.out
    assert "reuse lost: nothing was reused where 128 tokens could be" in known.out


def test_a_server_that_breaks_down_is_inconclusive(call: Call) -> None:
    with serving("sglang", Faults(broken="status500", broken_after=8)) as server:
        found = call("server", "--url", server.url, *SOME)
    assert found.status == 3
    assert "server failure: POST /generate: status 500" in found.out
    assert found.document["exit_status"] == 3


@pytest.mark.parametrize(
    "args, said",
    [
        (["--url", "localhost:8000"], "is no address of a server: give it as http://127.0.0.1:8000"),
        (["--url", "http://127.0.0.1:1"], "cannot check http://127.0.0.1:1: GET /v1/models"),
        (
            ["--url", "http://127.0.0.1:1", "--kind", "llama"],
            "--kind 'llama' is unknown: use one of auto, ",
        ),
        (["--url", "http://127.0.0.1:1", "--cold", "x"], "--cold 'x' is unknown: use salt or reset"),
        (["--url", "http://127.0.0.1:1", "--case", "x"], "--case 'x' cannot be read"),
        (["--url", "http://127.0.0.1:1", "--vocab", "3"], "--vocab 3 leaves no tokens"),
        (["--url", "http://127.0.0.1:1", "--page", "0"], "--page"),
        (["--url", "http://127.0.0.1:1", "--repeats", "2"], "--repeats"),
        (["--url", "http://127.0.0.1:1", "--json", "none/x.json"], "there is no folder none"),
        ([], "Missing option '--url'"),
    ],
)
def test_bad_input_is_one_line(call: Call, tmp_path: Path, args: list[str], said: str) -> None:
    found = call("server", *args, cwd=tmp_path, json_too=False)
    assert (found.status, found.out) == (2, "")
    (line,) = found.err.splitlines()
    assert line.startswith("error: ") and said in line


def test_a_server_that_keeps_its_counts_to_itself(call: Call) -> None:
    with serving("vllm", Faults(broken="no_counts")) as server:
        found = call("server", "--url", server.url, json_too=False)
    assert found.status == 2
    (line,) = found.err.splitlines()
    assert "start vLLM with --enable-prompt-tokens-details" in line


def test_the_document_is_plain_json_where_a_number_is_missing(call: Call) -> None:
    with serving("vllm", Faults(nan_when_resumed=True)) as server:
        found = call("server", "--url", server.url, *SOME)
    assert found.status == 1
    assert found.document["cases"][0]["positions"][0]["alone"] is None
    assert json.dumps(found.document, allow_nan=False)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_a_run_that_is_stopped_reports_what_is_finished(tmp_path: Path, how: signal.Signals) -> None:
    # A case takes 80 requests, the last 39 of them one at a time; the server hangs in the middle of these.
    with serving("vllm", Faults(broken="hang", broken_after=140)) as server:
        command = [*COMMAND, "server", "--url", server.url, *SOME, "--case", "turn:225", "--json", "run.json"]
        child = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            deadline = time.monotonic() + 60
            while server.engine.served < 140 and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.5)
            child.send_signal(how)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
    found = strictly((tmp_path / "run.json").read_text())
    assert (found["planned"], len(found["cases"]), found["complete"]) == (3, 1, False)
    assert child.returncode == found["exit_status"] == 3, "what was checked is right, but not all was checked"
    assert "Stopped after 1 of 3 cases." in out and err == ""

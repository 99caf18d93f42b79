"""The command with an engine in a process of its own."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from .conftest import Call

DRIVERS = Path(__file__).parents[1] / "engines" / "drivers"
MODEL = shlex.join([sys.executable, str(DRIVERS / "model_driver.py")])
CACHE = f"node {shlex.quote(str(DRIVERS / 'page_cache.mjs'))}"
SMALL = ("--page", "64", "--dcp", "8", "--prompt", "600n64")

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="the driver is written in JavaScript")


def test_it_is_the_same_as_in_this_process(call: Call) -> None:
    case = ("--page", "64", "--dcp", "8", "--prompt", "64+541", "--prompt", "1900d500n64")
    outside = call(*case, "--engine-cmd", f"{MODEL} 0.5.17")
    inside = call(*case, "--engine", "model:sglang-0.5.17")
    assert outside.status == inside.status == 1
    assert outside.document["under_test"]["versions"]["a model: model"] == "0.5.17"
    for cell in (*outside.cells, *inside.cells):
        cell.pop("reproduce")
    assert outside.cells == inside.cells


@needs_node
@pytest.mark.parametrize("payload", ["tag", "tensors"])
def test_a_driver_in_another_language(call: Call, payload: str) -> None:
    clean = call(*SMALL, "--engine-cmd", CACHE, "--payload", payload)
    assert (clean.status, clean.cells[0]["verdict"]["text"]) == (0, "ok")
    faulty = call(*SMALL, "--engine-cmd", f"{CACHE} deeper", "--payload", payload)
    assert (faulty.status, faulty.cells[0]["verdict"]["text"]) == (1, "double-computed 64 [512, 576)")
    again = call(*shlex.split(faulty.cells[0]["reproduce"])[1:])
    assert again.cells == faulty.cells


@needs_node
def test_states_that_were_spoilt_on_the_way_are_seen_by_their_numbers(call: Call) -> None:
    done = call(*SMALL, "--engine-cmd", f"{CACHE} zeros", "--payload", "tensors")
    assert (done.status, done.cells[0]["verdict"]["kind"]) == (1, "unwritten state")


def test_one_broken_cell_among_others(call: Call) -> None:
    prompts = ("--prompt", "600n64", "--prompt", "1024n65")
    done = call(*SMALL[:4], *prompts, "--engine-cmd", f"{MODEL} 0.5.18 die 664")
    assert [cell["verdict"]["kind"] for cell in done.cells] == ["engine failure", "ok"]
    assert "its last words" in done.cells[0]["verdict"]["reason"]
    assert "Crash: the pool is empty" in done.out
    assert done.status == 3


@pytest.mark.parametrize(
    "args, said",
    [
        (["--engine-cmd", f"{MODEL} 0.5.18 die"], "Crash: the pool is empty"),
        (["--engine-cmd", f"{MODEL} 0.5.18 hang", "--engine-timeout", "1"], "it gave no answer for 1 s"),
        (["--engine-cmd", f"{MODEL} 0.5.18", "--payload", "tensors"], "a model cannot move that; use tag"),
        (["--engine-cmd", "no-such-program --x"], "there is no program 'no-such-program'"),
        (["--engine-cmd", "'"], "No closing quotation"),
        (["--engine-cmd", " "], "--engine-cmd is empty"),
        (["--engine-cmd", "true", "--engine", "model:sglang-0.5.18"], "give one of them"),
        (["--engine-cmd", "true", "--guard"], "--guard is a choice of the modelled engines"),
        (["--engine-cmd", "true", "--engine-timeout", "0"], "--engine-timeout 0"),
        (["--payload", "tag"], "--payload is about engines in a process of their own"),
    ],
)
def test_nothing_could_be_checked(call: Call, args: list[str], said: str) -> None:
    done = call(*SMALL, *args)
    assert done.status == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert done.document is None


@needs_node
def test_the_command_line_wins_over_the_settings(call: Call, tmp_path: Path) -> None:
    (tmp_path / "choices.toml").write_text('engine = "model:sglang-0.5.17"\nengine-timeout = 30\n')
    done = call("--config", str(tmp_path / "choices.toml"), *SMALL, "--engine-cmd", CACHE)
    assert done.status == 0
    (tmp_path / "choices.toml").write_text(f"engine-cmd = {CACHE!r}\n")
    done = call("--config", str(tmp_path / "choices.toml"), *SMALL, "--engine", "model:sglang-0.5.18")
    assert done.document["under_test"]["engine"] == "model:sglang-0.5.18"


@pytest.mark.parametrize(
    "driver, status, said",
    [
        (f"{MODEL} 0.5.18", 0, "The driver keeps all"),
        (f"{MODEL} 0.5.18 die 705", 1, "rules of the protocol are not kept"),
    ],
)
def test_conform(call: Call, driver: str, status: int, said: str) -> None:
    done = call("conform", "--engine-cmd", driver, json_too=False)
    assert done.status == status
    assert said in done.out


@pytest.mark.parametrize("engine", [(), ("--engine", "model:sglang-0.5.18")])
def test_conform_without_a_driver(call: Call, engine: tuple[str, ...]) -> None:
    done = call("conform", *engine, json_too=False)
    assert done.status == 2
    assert done.err.startswith("error: conform tries a driver: give --engine-cmd")


@pytest.mark.parametrize("driver, said", [("no-such-program", "there is no program"), (f"{MODEL} x die", "Crash")])
def test_conform_with_nothing_to_talk_to(call: Call, driver: str, said: str) -> None:
    done = call("conform", "--engine-cmd", driver, json_too=False)
    assert done.status == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1

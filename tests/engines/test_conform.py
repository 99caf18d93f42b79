"""The conformance test: a good driver keeps every rule, and for every rule there is a driver that breaks it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from mamba_replay_check.engines.conform import Finding, conform
from mamba_replay_check.engines.process import DriverError

DRIVERS = Path(__file__).parent / "drivers"
MODEL = [sys.executable, str(DRIVERS / "model_driver.py")]


def findings(*command: str, timeout: float = 20) -> dict[str, Finding]:
    return {finding.rule: finding for finding in conform(command, timeout)}


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
def test_a_driver_in_python(release: str) -> None:
    assert [finding for finding in findings(*MODEL, release).values() if finding.wrong] == []


@pytest.mark.skipif(shutil.which("node") is None, reason="the driver is written in JavaScript")
def test_a_driver_in_another_language() -> None:
    found = findings("node", str(DRIVERS / "page_cache.mjs"))
    assert [finding for finding in found.values() if finding.wrong] == []
    assert found["moves tensors"].note == "a state of 640 tokens came back"


CARELESS = """
import json, sys
habit = sys.argv[1]
cache, served, calls = {}, 0, 0
for line in sys.stdin:
    call = json.loads(line)
    kind = call.pop("call")
    answer = {"id": call.pop("id")}
    calls += 1
    if habit == "knows every key" and kind == "hello":
        assert set(call) == {"protocol"}
    if kind == "hello":
        answer |= {"protocol": 1, "engine": "careless", "versions": {}, "payloads": ["tag", "tensors"]}
    elif kind == "open":
        if habit == "one geometry" and call["geometry"]["dcp"] > 1:
            answer["error"] = "this engine has no dcp"
        tensors = call["payload"] == "tensors"
        cache = cache if habit == "remembers" else {}
    elif kind == "match":
        request = 0 if habit == "one request" else served
        served += 1
        tokens = tuple(call["tokens"])
        limit = len(tokens) if habit == "matches all" else len(tokens) - 1
        deepest = [d for d in range(64, limit + 1, 64) if habit == "never looks" or tokens[:d] in cache]
        depth = deepest[-1] if deepest and habit != "never hits" else 0
        kept = cache.get(tokens[:depth], [None, None])
        if habit == "never looks" and cache:
            kept = next(iter(cache.values()))
        answer |= {"request": request, "cached_tokens": depth, "snapshot": kept[0]}
        if kept[1] is not None:
            answer["state"] = kept[1]
            if habit == "other shapes":
                answer["state"] = kept[1][:1]
            if habit == "mixes layers":
                answer["state"] = [first[1][0] for first in list(cache.values())[:1]] + kept[1][1:]
        if habit == "counts calls" and depth:
            answer["claimed_depth"] = calls
    elif kind == "extend":
        for depth in range(call["start"] // 64 * 64 + 64, call["end"] + 1, 64):
            index, rest = divmod(depth - call["start"], 64)
            if rest or tokens[:depth] in cache:
                continue
            take = {"index": None if depth == call["end"] else index, "conv_end": depth}
            print(json.dumps({"take": take}), flush=True)
            got = json.loads(sys.stdin.readline())
            if "error" in got and habit != "trusts snapshots":
                answer["error"] = got["error"]
                break
            cache[tokens[:depth]] = [got["snapshot"], got.get("state")]
    elif kind == "close":
        if habit == "ends badly":
            sys.exit(3)
        print(json.dumps(answer), flush=True)
        if habit == "stays":
            import time
            time.sleep(1000)
        break
    elif kind not in ("decode", "finish") and habit != "agrees with everything":
        answer["error"] = "no such call"
    elif call.get("request", 0) > served and habit != "agrees with everything":
        answer["error"] = "no such request"
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "careless.py"
    path.write_text(CARELESS)
    return path


def test_the_careless_driver_without_a_bad_habit(careless: Path) -> None:
    assert [finding for finding in findings(sys.executable, str(careless), "none").values() if finding.wrong] == []


@pytest.mark.parametrize(
    "habit, rule, words",
    [
        ("remembers", "forgets everything at the next open", "was not given since the last open"),
        ("never hits", "reuses a prompt", "every cell would be vacuous"),
        ("matches all", "leaves one token to compute", "it matched 640 of 640 tokens"),
        ("never looks", "keeps prompts apart", "shares no token"),
        ("one request", "serves two requests side by side", "have the same number 0"),
        ("knows every key", "ignores keys that it does not know", "AssertionError"),
        ("agrees with everything", "answers an unknown call with an error", "answered as if it could be"),
        ("agrees with everything", "answers an unknown request with an error", "answered as if it could be"),
        ("trusts snapshots", "survives a snapshot that is refused", "KeyError: 'snapshot'"),
        ("counts calls", "does the same for the same history", "the same history gave"),
        ("other shapes", "moves tensors", "came back for"),
        ("mixes layers", "moves tensors", "from different depths"),
        ("ends badly", "ends when it is asked to close", "exit status 3"),
        ("stays", "ends when it is asked to close", "still there after"),
    ],
)
def test_bad_habits(careless: Path, habit: str, rule: str, words: str) -> None:
    assert words in findings(sys.executable, str(careless), habit, timeout=3)[rule].wrong


def test_an_engine_that_refuses_a_geometry_keeps_the_rules(careless: Path) -> None:
    found = findings(sys.executable, str(careless), "one geometry")
    assert "this engine has no dcp" in found["takes other geometries"].note
    assert not any(finding.wrong for finding in found.values())


def test_a_driver_that_cannot_say_hello() -> None:
    with pytest.raises(DriverError, match="Crash"):
        findings(*MODEL, "0.5.17", "die")

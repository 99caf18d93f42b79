"""SARIF: valid by the standard's schema, a line and a fingerprint for every result, and the doubts first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from mamba_replay_check.checker.verdict import Kind, Verdict
from mamba_replay_check.reports.document import run_as_dict
from mamba_replay_check.reports.identifiers import rule_of
from mamba_replay_check.reports.sarif import render_sarif

from .documents import HOSTILE, document, hostile_document, result, run_of

HERE = Path(__file__).parent
VALIDATOR = Draft202012Validator(
    json.loads((HERE / "schemas" / "sarif-2.1.0.json").read_text()), format_checker=FormatChecker()
)
DISCREPANCIES = [kind for kind in Kind if kind.is_discrepancy]


def _run(log: dict[str, Any]) -> dict[str, Any]:
    VALIDATOR.validate(json.loads(json.dumps(log)))
    return log["runs"][0]


def _location(stream: str, source: tuple[str, int] | None = None) -> tuple[str, str | None, int]:
    run = run_as_dict(run_of(result(Kind.SKIPPED, stream=stream)))
    place = _run(render_sarif(run, source))["results"][0]["locations"][0]["physicalLocation"]
    return place["artifactLocation"]["uri"], place["artifactLocation"].get("uriBaseId"), place["region"]["startLine"]


def test_a_result():
    shown = _run(render_sarif(document(Kind.DOUBLE_COMPUTED), ("mamba.toml", 7)))["results"]
    assert json.dumps(shown, indent=1) + "\n" == (HERE / "snapshots" / "sarif-result.json").read_text()


def test_every_discrepancy_is_a_result_of_its_rule_and_nothing_else_is():
    run = _run(render_sarif(document(*Kind)))
    rules = run["tool"]["driver"]["rules"]
    assert [each["ruleId"] for each in run["results"]] == [rule_of(kind).id for kind in DISCREPANCIES]
    assert [rules[each["ruleIndex"]]["id"] for each in run["results"]] == [each["ruleId"] for each in run["results"]]
    assert [each["level"] for each in run["results"]] == [rule_of(kind).level for kind in DISCREPANCIES]
    assert {rule["id"] for rule in rules} == {rule_of(kind).id for kind in DISCREPANCIES}


def test_rules_say_what_to_do_and_where_to_read_on():
    rule = _run(render_sarif(document(), documentation="https://example.org/verdicts"))["tool"]["driver"]["rules"][0]
    assert rule["helpUri"] == "https://example.org/verdicts#mrc001-double-computed"
    assert rule_of(Kind.DOUBLE_COMPUTED).advice in rule["help"]["markdown"]
    assert "helpUri" not in _run(render_sarif(document()))["tool"]["driver"]["rules"][0]


@pytest.mark.parametrize(
    ("kinds", "complete", "successful", "code"),
    [
        ((Kind.OK, Kind.VACUOUS), True, True, 0),
        ((Kind.OK, Kind.SKIPPED), True, True, 1),
        ((Kind.OK, Kind.SKIPPED), False, False, 1),
        ((Kind.OK,), False, False, 3),
        ((Kind.VACUOUS,), True, False, 3),
        ((Kind.OK, Kind.ENGINE_FAILURE), True, False, 3),
    ],
)
def test_an_execution_succeeds_where_the_check_was_carried_out(
    kinds: tuple[Kind, ...], complete: bool, successful: bool, code: int
):
    invocation = _run(render_sarif(document(*kinds, complete=complete)))["invocations"][0]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (successful, code)


def test_what_makes_a_pass_meaningless_is_notified_before_the_results():
    log = render_sarif(document(Kind.VACUOUS, Kind.ENGINE_FAILURE, Kind.VACUOUS, complete=False))
    run = _run(log)
    assert list(run).index("invocations") < list(run).index("results")
    notes = run["invocations"][0]["toolExecutionNotifications"]
    known = run["tool"]["driver"]["notifications"]
    named = [known[note["descriptor"]["index"]]["id"] for note in notes if "descriptor" in note]
    assert named == ["MRC009", "MRC008"]
    assert [note["level"] for note in notes] == ["error", "error", "error", "warning"]
    assert notes[0]["message"]["text"] == "The run was stopped after 3 of 4 cells."
    assert notes[3]["message"]["text"].startswith("2 of 3 cells are vacuous")


def test_the_reason_of_most_cells_is_notified_first():
    rare = Verdict(Kind.VACUOUS, reason="rare")
    run = run_as_dict(run_of(result(Kind.VACUOUS, verdict=rare), result(Kind.VACUOUS), result(Kind.VACUOUS)))
    texts = [n["message"]["text"] for n in _run(render_sarif(run))["invocations"][0]["toolExecutionNotifications"]]
    assert [text.split(" are ")[0] for text in texts[1:]] == ["2 of 3 cells", "1 of 3 cells"]


def test_a_result_points_at_the_line_that_asked_for_it():
    assert _location("data/prompts.jsonl:3") == ("data/prompts.jsonl", "%SRCROOT%", 3)
    assert _location("./a b:c/prompts.jsonl:12", ("x.toml", 4)) == ("a%20b%3Ac/prompts.jsonl", "%SRCROOT%", 12)
    assert _location("/data/prompts.jsonl:3") == ("file:///data/prompts.jsonl", None, 3)
    assert _location("seeded", ("mamba.toml", 7)) == ("mamba.toml", "%SRCROOT%", 7)
    assert _location("seeded") == ("pyproject.toml", "%SRCROOT%", 1)
    assert _location("prompts.jsonl:0") == ("pyproject.toml", "%SRCROOT%", 1)


def _fingerprints(run: dict[str, Any]) -> list[dict[str, str]]:
    return [each["partialFingerprints"] for each in _run(render_sarif(run))["results"]]


def test_a_fingerprint_is_of_the_cell_and_the_kind_alone():
    found = document(*DISCREPANCIES)
    assert len({prints["primaryLocationLineHash"] for prints in _fingerprints(found)}) == len(DISCREPANCIES)
    worse = document(*DISCREPANCIES, seed=7, device="GPU")
    for cell in worse["cells"]:
        cell["verdict"].update(tokens=cell["verdict"]["tokens"] * 2, reason="told otherwise")
    assert _fingerprints(worse) == _fingerprints(found)
    assert _fingerprints(document(*DISCREPANCIES, engine="model:sglang-0.5.18")) != _fingerprints(found)
    cells = [result(Kind.SKIPPED, dcp=8), result(Kind.SKIPPED, dcp=4), result(Kind.SKIPPED, stream="prompts.jsonl:1")]
    assert len({prints["cell/v1"] for prints in _fingerprints(run_as_dict(run_of(*cells)))}) == 3


def test_text_from_outside_neither_links_nor_is_filled_in():
    run = _run(render_sarif(hostile_document(), (HOSTILE, 3)))
    texts = [each["message"]["text"] for each in run["results"]]
    texts += [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert len(texts) == 10
    for text in texts:
        assert r"\[a\](b)" in text
        assert "{{0}}" in text
        assert not re.search(r"(?<!\\)\[", text)
    assert all(ord(char) >= 32 for char in json.dumps(run))

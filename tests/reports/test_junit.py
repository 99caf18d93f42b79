"""JUnit XML: valid by Jenkins' schema, one case per cell, and a pass that means nothing does not look like one."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import xmlschema
from mamba_replay_check.checker.verdict import Kind
from mamba_replay_check.reports.document import run_as_dict
from mamba_replay_check.reports.junit import render_junit
from mamba_replay_check.reports.ruler import ruler

from .documents import document, hostile_document, result, run_of

HERE = Path(__file__).parent
XSD = xmlschema.XMLSchema(HERE / "schemas" / "junit-10.xsd")
OUTCOME = {Kind.OK: None, Kind.VACUOUS: "skipped", Kind.ENGINE_FAILURE: "error"}


def _suite(text: str) -> ET.Element:
    XSD.validate(text)
    return ET.fromstring(text.encode())[0]


def _outcomes(suite: ET.Element) -> list[str | None]:
    return [case[0].tag if len(case) else None for case in suite.iter("testcase")]


def test_a_small_run():
    text = render_junit(document(Kind.DOUBLE_COMPUTED, Kind.OK))
    assert text == (HERE / "snapshots" / "junit.xml").read_text()


def test_every_kind_is_a_case_with_its_outcome():
    suite = _suite(render_junit(document(*Kind)))
    assert _outcomes(suite) == [OUTCOME.get(kind, "failure") for kind in Kind]
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 11, "failures": 8, "errors": 1, "skipped": 1}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.OK])
def test_what_is_not_ok_has_identifier_ruler_and_reproduce_line(kind: Kind):
    run = document(kind)
    story = next(
        case for case in _suite(render_junit(run)).iter("testcase") if case.get("classname") != "mamba-replay-check"
    )[0]
    assert story.get("message") == f"{story.get('type')} {run['cells'][0]['verdict']['text']}"
    assert "\n".join(ruler(run["cells"][0])) in story.text
    assert f"\nreproduce: {run['cells'][0]['reproduce']}\n" in story.text


def test_a_stopped_run_of_right_cells_is_an_error_first():
    suite = _suite(render_junit(document(Kind.OK, complete=False)))
    assert _outcomes(suite) == ["error", None]
    assert "stopped after 1 of 2 cells" in suite.find("testcase/error").get("message")


def test_a_run_that_resumed_nothing_is_an_error_first():
    assert _outcomes(_suite(render_junit(document(Kind.VACUOUS)))) == ["error", "skipped"]
    assert _outcomes(_suite(render_junit(document()))) == ["error"]
    assert _outcomes(_suite(render_junit(document(Kind.OK, Kind.VACUOUS)))) == [None, "skipped"]


def test_what_was_under_test_is_among_the_properties():
    suite = _suite(render_junit(document(Kind.OK, guard=True, tokenizer="tokenizer.json")))
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties["engine"] == "model:sglang-0.5.17"
    assert properties["guard"] == "true"
    assert properties["tokenizer"] == "tokenizer.json"
    assert properties["version.torch"] == "2.13.0"


def test_a_case_from_a_file_is_named_by_its_line():
    run = run_as_dict(run_of(result(Kind.OK, stream="prompts.jsonl:3"), result(Kind.OK, label="the seed's case")))
    names = [case.get("name") for case in _suite(render_junit(run)).iter("testcase")]
    assert names == ["prompts.jsonl:3 16384+4066", "16384+4066 (the seed's case)"]


def test_text_from_outside_stays_text():
    text = render_junit(hostile_document())
    suite = _suite(text)
    assert "<script>" not in text
    assert _outcomes(suite) == [OUTCOME.get(kind, "failure") for kind in Kind]
    message = suite.find("testcase/failure").get("message")
    assert "<script>alert(1)</script> ]]> ::error::x" in message
    assert r"\x00\x1b[31m\x85\u202e\ud800\uffff" in message

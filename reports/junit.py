"""The run as JUnit XML: one test case per cell, so that any CI shows findings as failed tests."""

from __future__ import annotations

import io

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from ..checker.verdict import Kind
from .findings import Cell, Document, concerns, depths, geometry, outdated, prompt, regressed
from .identifiers import rule_of
from .ruler import ruler
from .visible import lines, one_line

SUITE = "mamba-replay-check"


def render_junit(document: Document) -> str:
    """The XML text. A vacuous cell is skipped, one that failed in the engine is an error, a discrepancy is a failure.
    Against a baseline, what is known is skipped, and what regressed is a failure.

    What makes the whole run meaningless comes first, as a test case of its own that is an error.
    """
    suite = TestSuite(SUITE)
    for name, value in _properties(document):
        suite.add_property(one_line(name), one_line(value))
    said = [concern.text for concern in concerns(document) if concern.rule is None]
    cases = [_run_case(said)] if said else []
    if document["baseline"] is not None:
        cases.append(_baseline_case(outdated(document)))
    suite.add_testcases(cases + [_case(cell) for cell in document["cells"]])
    report = JUnitXml()
    report.add_testsuite(suite)
    return _text(report)


def _properties(document: Document) -> list[tuple[str, str]]:
    under_test = {name: value for name, value in document["under_test"].items() if name != "versions"}
    versions = {f"version.{name}": value for name, value in document["under_test"]["versions"].items()}
    run = {name: document[name] for name in ("complete", "planned", "exit_status", "schema")}
    return [(name, _word(value)) for name, value in {**run, **under_test, **versions}.items() if value is not None]


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _run_case(said: list[str]) -> TestCase:
    case = TestCase("the run proves something", SUITE)
    case.result = _result(Error, "; ".join(said), "inconclusive", "\n".join(said))
    return case


def _baseline_case(said: list[str]) -> TestCase:
    case = TestCase("the baseline says what is", SUITE)
    if said:
        case.result = _result(Failure, "; ".join(said), "out of date", "\n".join(said))
    return case


def _case(cell: Cell) -> TestCase:
    label = f" ({cell['label']})" if cell["label"] else ""
    case = TestCase(one_line(prompt(cell) + label), geometry(cell))
    rule = rule_of(cell["verdict"]["kind"])
    outcome = {Kind.VACUOUS: Skipped, Kind.ENGINE_FAILURE: Error}.get(rule.kind, Failure)
    message, against = f"{rule.id} {cell['verdict']['text']}", cell["against_baseline"]
    if against is not None:
        message = f"{against['standing']}: {message}"
        if regressed(cell):
            outcome = Error if outcome is Error else Failure
        elif rule.kind.is_discrepancy:
            outcome = Skipped
    if rule.kind is not Kind.OK or regressed(cell):
        case.result = _result(outcome, message, rule.id, _story(cell))
    return case


def _result(outcome: type, message: str, kind: str, text: str) -> Failure | Error | Skipped:
    made = outcome(one_line(message), kind)
    made.text = lines(text)
    return made


def _story(cell: Cell) -> str:
    """What a person reads who opens the failed test."""
    rule = rule_of(cell["verdict"]["kind"])
    head = [f"{rule.id} {cell['verdict']['text']}", rule.meaning, depths(cell)]
    if cell["against_baseline"]:
        head.append("against the baseline: {standing}: {why}".format(**cell["against_baseline"]))
    tail = [f"what to do: {rule.advice}", f"see {rule.link}", f"reproduce: {cell['reproduce']}"]
    return "\n".join(["", *head, "", *ruler(cell), "", *tail, ""])


def _text(report: JUnitXml) -> str:
    buffer = io.BytesIO()
    report.write(buffer, pretty=True)
    return buffer.getvalue().decode()

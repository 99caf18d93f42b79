"""What a baseline keeps, and what a later run is told by it. Documents are made by hand."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator
from mamba_replay_check.checker.verdict import Kind
from mamba_replay_check.reports import baseline
from mamba_replay_check.reports.baseline import SEVERITY, BaselineError, compare, exit_status, make, read, record, write
from mamba_replay_check.reports.github import annotations, job_summary
from mamba_replay_check.reports.html import render_html
from mamba_replay_check.reports.junit import render_junit
from mamba_replay_check.reports.sarif import render_sarif
from mamba_replay_check.reports.schema import schema
from mamba_replay_check.reports.terminal import Terminal
from rich.console import Console

from .documents import document

Document = dict[str, Any]


@pytest.fixture
def before() -> Document:
    made = document(Kind.OK, Kind.DOUBLE_COMPUTED, Kind.VACUOUS)
    for place, cell in enumerate(made["cells"]):
        cell["page"] = 64 << place
    return made


def changed(run: Document, place: int, kind: Kind | None = None, tokens: int = 0, **fields: Any) -> Document:
    """The run with one cell's verdict or fields replaced."""
    run = copy.deepcopy(run)
    cell = run["cells"][place]
    cell.update(fields)
    if kind is not None:
        cell["verdict"] |= {"kind": str(kind), "tokens": tokens, "text": f"{kind} {tokens}".removesuffix(" 0")}
    return run


def counts(found: baseline.Comparison) -> dict[str, int]:
    names = ("new", "worse", "reuse_lost", "better", "known", "stale")
    return {name: len(getattr(found, name)) for name in names if getattr(found, name)}


def test_the_same_run_again_is_known_and_no_failure(before: Document) -> None:
    found = compare(make(before), before)
    assert counts(found) == {"known": 1}
    assert not found.failed(strict=True)
    assert exit_status(found, before, strict=True) == 0, "known findings do not fail a run"


def test_a_finding_in_a_right_cell_is_new(before: Document) -> None:
    found = compare(make(before), changed(before, 0, Kind.SKIPPED, 64))
    assert counts(found) == {"new": 1, "known": 1}
    assert found.failed(strict=False)


def test_a_finding_in_a_cell_that_was_not_there_is_new(before: Document) -> None:
    small = copy.deepcopy(before)
    small["cells"] = small["cells"][:1]
    found = compare(make(small), before)
    assert counts(found) == {"new": 1}
    assert exit_status(found, before, strict=False) == 1


@pytest.mark.parametrize(
    "kind, tokens",
    [(Kind.DOUBLE_COMPUTED, 449), (Kind.SKIPPED, 449), (Kind.FOREIGN, 0), (Kind.DISAGREEMENT, 0)],
)
def test_more_tokens_or_a_worse_kind_is_worse(before: Document, kind: Kind, tokens: int) -> None:
    found = compare(make(before), changed(before, 1, kind, tokens))
    assert counts(found) == {"worse": 1}
    assert found.failed(strict=False)


@pytest.mark.parametrize("kind, tokens", [(Kind.OK, 0), (Kind.DOUBLE_COMPUTED, 447), (Kind.SKIPPED, 448)])
def test_less_bad_is_better_and_fails_only_strictly(before: Document, kind: Kind, tokens: int) -> None:
    after = changed(before, 1, kind, tokens)
    found = compare(make(before), after)
    assert counts(found) == {"better": 1}
    assert (exit_status(found, after, False), exit_status(found, after, True)) == (0, 1)


def test_lost_tokens_are_not_counted_against_wrong_ones(before: Document) -> None:
    """A guard that refuses the wrong state trades wrong tokens for slow ones; it fails only for what is cached less."""
    after = changed(before, 1, Kind.REFUSED, 10**6)
    assert counts(compare(make(before), after)) == {"better": 1}
    fewer = changed(before, 1, Kind.REFUSED, 10**6, cached_tokens=before["cells"][1]["cached_tokens"] - 512)
    assert counts(compare(make(before), fewer)) == {"reuse_lost": 1}


def test_a_cell_that_is_right_for_fewer_tokens_than_before_and_less_wrong_is_reuse_lost(before: Document) -> None:
    after = changed(before, 1, Kind.OK, cached_tokens=before["cells"][1]["cached_tokens"] - 512)
    found = compare(make(before), after)
    assert counts(found) == {"reuse_lost": 1} and found.failed(strict=False)


def test_fewer_cached_tokens_are_a_regression_though_all_is_right(before: Document) -> None:
    cached = before["cells"][0]["cached_tokens"]
    assert cached > 1
    found = compare(make(before), changed(before, 0, cached_tokens=cached - 1))
    assert counts(found) == {"reuse_lost": 1, "known": 1}
    assert found.failed(strict=False)
    more = compare(make(before), changed(before, 0, cached_tokens=cached + 1))
    assert counts(more) == {"better": 1, "known": 1}


@pytest.mark.parametrize("kind", [Kind.VACUOUS, Kind.ENGINE_FAILURE])
@pytest.mark.parametrize("place", [0, 1])
def test_what_was_checked_and_now_proves_nothing_fails(before: Document, kind: Kind, place: int) -> None:
    found = compare(make(before), changed(before, place, kind, cached_tokens=0))
    assert len(found.new) == 1
    assert found.failed(strict=False)


def test_what_was_vacuous_may_stay_so_and_may_prove_something(before: Document) -> None:
    assert not compare(make(before), before).new
    found = compare(make(before), changed(before, 2, Kind.DOUBLE_COMPUTED, 64, cached_tokens=512))
    assert len(found.new) == 1, "a vacuous cell that goes wrong is a finding that was not known"


def test_cells_that_are_no_longer_run_are_stale(before: Document) -> None:
    fewer = copy.deepcopy(before)
    fewer["cells"] = fewer["cells"][:1]
    found = compare(make(before), fewer)
    assert counts(found) == {"stale": 2}
    assert (found.failed(strict=False), found.failed(strict=True)) == (False, True)


def test_an_inconclusive_run_stays_so(before: Document) -> None:
    found = compare(make(before), before)
    assert exit_status(found, {**before, "exit_status": 3}, strict=False) == 3
    assert exit_status(found, {**before, "complete": False}, strict=False) == 3


def test_known_findings_do_not_hide_that_a_new_cell_failed_in_the_engine(before: Document) -> None:
    """The run's own status is 1, for what is known: that must not become a pass."""
    after = document(Kind.OK, Kind.DOUBLE_COMPUTED, Kind.VACUOUS, Kind.ENGINE_FAILURE)
    for place, cell in enumerate(after["cells"]):
        cell["page"] = 64 << place
    found = compare(make(before), after)
    assert counts(found) == {"known": 1}
    assert after["exit_status"] == 1 and exit_status(found, after, strict=False) == 3


def test_nothing_is_stale_after_a_run_that_was_stopped(before: Document) -> None:
    stopped = {**copy.deepcopy(before), "complete": False}
    del stopped["cells"][1:]
    found = compare(make(before), stopped)
    assert counts(found) == {}
    assert exit_status(found, stopped, strict=True) == 3


def test_like_is_compared_with_like(before: Document) -> None:
    other = copy.deepcopy(before)
    other["under_test"]["dtype"] = "bfloat16"
    with pytest.raises(BaselineError, match="dtype"):
        compare(make(before), other)
    other = copy.deepcopy(before)
    other["under_test"]["engine"] = "model:sglang-9"
    other["under_test"]["versions"]["torch"] = "9.9"
    notes = compare(make(before), other).notes
    assert len(notes) == 2 and "model:sglang-9" in notes[0] and "9.9" in notes[1]


@pytest.mark.parametrize(
    "one, another, same",
    [
        ("sglang==0.5.17", "sglang==0.5.18", True),
        ("sglang==0.5.17", "sglang", True),
        ("vllm==0.32.0 --raised", "vllm==0.33.0rc1 --raised", True),
        ("vllm==0.32.0 --raised", "vllm==0.32.0", False),
        ("sglang==0.5.17", "model:sglang-0.5.17", False),
    ],
)
def test_releases_of_one_engine_are_compared(before: Document, one: str, another: str, same: bool) -> None:
    before, other = copy.deepcopy(before), copy.deepcopy(before)
    before["under_test"]["engine"], other["under_test"]["engine"] = one, another
    with contextlib.nullcontext() if same else pytest.raises(BaselineError, match="made with engine"):
        assert len(compare(make(before), other).notes) == 1


@pytest.mark.parametrize("engine", ["python:my_engine:MyEngine", "model:vllm-0.5.17", "model:sglang-"])
def test_another_engine_is_no_upgrade(before: Document, engine: str) -> None:
    other = copy.deepcopy(before)
    other["under_test"]["engine"] = engine
    with pytest.raises(BaselineError, match=f"made with engine model:sglang-0.5.17, and this run has {engine}"):
        compare(make(before), other)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda run: run | {"complete": False}, "stopped before it was complete"),
        (lambda run: run | {"exit_status": 3}, "nothing was resumed"),
        (lambda run: changed(run, 0, Kind.ENGINE_FAILURE), "failed in the engine"),
    ],
)
def test_no_baseline_is_made_of_a_run_that_shows_nothing(before: Document, spoil: Any, words: str) -> None:
    with pytest.raises(BaselineError, match=words):
        make(spoil(before))


def test_the_file_is_stable_and_a_cell_is_a_line(before: Document, tmp_path: Path) -> None:
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    write(make(before), path)
    assert read(path) == make(before)
    shuffled = copy.deepcopy(before)
    shuffled["cells"].reverse()
    write(make(shuffled), other)
    assert other.read_bytes() == path.read_bytes()
    write(make(changed(before, 1, Kind.DOUBLE_COMPUTED, 7)), other)
    lines = zip(path.read_text().splitlines(), other.read_text().splitlines(), strict=True)
    assert sum(a != b for a, b in lines) == 1


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda text: "", "is not JSON"),
        (lambda text: "[" * 200_000 + "]" * 200_000, "is not JSON"),
        (lambda text: text.replace('"model:sglang-0.5.17"', "3"), "what was under test"),
        (lambda text: text[:-20], "is not JSON"),
        (lambda text: "[]", "is not a baseline of format 1"),
        (lambda text: text.replace('"baseline": 1', '"baseline": 2'), "is not a baseline of format 1"),
        (lambda text: text.replace('"cached_tokens"', '"cashed_tokens"', 1), "has not the fields"),
        (lambda text: text.replace('"double-computed"', '"double-computer"'), "no finding that there is"),
        (lambda text: text.replace('"page": 64', '"page": "64"', 1), "has page '64'"),
        (lambda text: text.replace('"made_with"', '"mode_with"'), "what was under test"),
        (lambda text: _edited(text, lambda cells: cells.reverse()), "not sorted"),
        (lambda text: _edited(text, lambda cells: cells.append(cells[-1])), "not sorted, or one stands there twice"),
    ],
)
def test_a_damaged_file_is_named_and_left_alone(before: Document, tmp_path: Path, spoil: Any, words: str) -> None:
    path = tmp_path / "baseline.json"
    write(make(before), path)
    damaged = spoil(path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged)
    with pytest.raises(BaselineError, match=words):
        read(path)
    assert path.read_text() == damaged


def _edited(text: str, change: Any) -> str:
    content = json.loads(text)
    change(content["cells"])
    return json.dumps(content)


def test_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="write it with mamba-replay-check baseline"):
        read(tmp_path / "nothing.json")


def test_every_discrepancy_has_a_severity() -> None:
    assert set(SEVERITY) == {Kind.OK, *(kind for kind in Kind if kind.is_discrepancy)}


# ---- what reports say of a comparison -------------------------------------------------------------------------------


@pytest.fixture
def after(before: Document) -> Document:
    """A run with one cell that reuses less than before, and one whose finding is known."""
    return against(make(before), changed(before, 0, cached_tokens=before["cells"][0]["cached_tokens"] - 64))


def against(made: dict[str, Any], run: Document, strict: bool = False) -> Document:
    record(compare(made, run), run, strict)
    wrong = [error.json_path for error in Draft202012Validator(schema()).iter_errors(run)]
    assert not any("baseline" in path for path in wrong), wrong
    return run


def test_annotations_are_errors_for_regressions_only(after: Document, before: Document) -> None:
    """What is known does not fail the run, so it does not look as if it did."""
    lines = annotations(after)
    (error,) = (line for line in lines if line.startswith("::error"))
    assert "title=reuse lost::reuse lost: 19968 cached tokens before, now 19904%0A" in error and "reproduce: " in error
    (known,) = (line for line in lines if "MRC001" in line)
    assert known.startswith("::warning")
    assert "**Against the baseline:** 1 reuse lost, 1 known." in job_summary(after)
    assert "baseline" not in job_summary(before)


def test_junit_fails_for_regressions_only(after: Document) -> None:
    lost, known, vacuous = junit_cases(after)
    assert (outcome(lost), outcome(known), outcome(vacuous)) == ("failure", "skipped", "skipped")
    assert lost[0].get("message") == "reuse lost: MRC000 ok"
    assert "against the baseline: reuse lost: 19968 cached tokens before, now 19904" in lost[0].text
    assert known[0].get("message").startswith("known: MRC001 double-computed 448")


def test_sarif_tells_known_from_new(after: Document) -> None:
    log = render_sarif(after)["runs"][0]
    lost, known = log["results"]
    assert (lost["ruleId"], lost["baselineState"], "suppressions" in lost) == ("MRC007", "updated", False)
    assert (known["ruleId"], known["baselineState"], "suppressions" in known) == ("MRC001", "unchanged", True)
    assert log["invocations"][0]["exitCode"] == 1


def test_the_page_tells_known_from_new(after: Document) -> None:
    html = render_html(after)
    assert "<dt>Against the baseline</dt><dd>1 reuse lost, 1 known.</dd>" in html
    assert html.count('<span class="note">known</span>') == html.count('<span class="note">reuse lost</span>') == 1


def test_strict_failures_are_told_everywhere(before: Document) -> None:
    """A stale entry and a finding that is gone have no cell that is wrong."""
    made = make(before)
    run = changed(before, 1, Kind.OK)
    run["cells"].pop(0)
    lenient, strict = against(made, copy.deepcopy(run)), against(made, copy.deepcopy(run), strict=True)
    assert (lenient["baseline"]["exit_status"], strict["baseline"]["exit_status"]) == (0, 1)
    assert not any("out of date" in line for line in annotations(lenient))
    better, stale = (line for line in annotations(strict) if "out of date" in line)
    assert better.startswith("::error") and "double-computed 448 before, now ok" in better
    assert stale.startswith("::error") and "was not checked" in stale
    assert outcome(junit_cases(lenient, "the baseline says what is")[0]) == ""
    assert outcome(junit_cases(strict, "the baseline says what is")[0]) == "failure"


def junit_cases(run: Document, name: str | None = None) -> list[ElementTree.Element]:
    cases = ElementTree.fromstring(render_junit(run)).iter("testcase")
    return [case for case in cases if (case.get("name") == "the baseline says what is") == (name is not None)]


def outcome(case: ElementTree.Element) -> str:
    return case[0].tag if len(case) else ""


@pytest.mark.parametrize("everything, shown", [(False, 5), (True, 9)])
def test_long_lists_are_cut_on_a_screen(before: Document, everything: bool, shown: int) -> None:
    many, after = copy.deepcopy(before), copy.deepcopy(before)
    for place in range(9):
        many["cells"].append({**before["cells"][0], "dcp": 100 + place})
        after["cells"].append({**before["cells"][1], "dcp": 200 + place})
    screen = io.StringIO()
    found = compare(make(many), after)
    Terminal(Console(file=screen, width=100), everything=everything, bars=False).comparison(found, strict=False)
    lines = screen.getvalue().splitlines()
    assert sum(line.startswith("new: ") for line in lines) == shown
    assert sum(line.startswith("stale: ") for line in lines) == shown
    assert sum(line.startswith("  reproduce: mamba-replay-check ") for line in lines) == shown
    assert ("... and 4 more stale; -v shows them all." in lines) == (not everything)
    assert lines[-1] == "Against the baseline: 9 new, 1 known, 9 stale."

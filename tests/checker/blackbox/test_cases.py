"""Which prompts a server is asked."""

from __future__ import annotations

from itertools import islice

import pytest
from mamba_replay_check.checker.blackbox.cases import FIRST_TOKEN, TAIL, Case, CaseError, History, Stream, plan


@pytest.mark.parametrize("history", History)
def test_donors_and_the_resuming_prompt(history: History) -> None:
    case, stream = Case(history, 300), Stream(1, 200)
    target, donors = stream.tokens(case, 0), list(islice(stream.donors(case), 3))
    assert len(target) == case.target_length and all(len(each) == 300 for each in donors)
    assert all(each[: case.shared] == target[: case.shared] for each in donors)
    assert all(FIRST_TOKEN <= token < 200 for token in target)
    assert stream.tokens(case, 50)[: len(target)] == target
    assert Stream(2, 200).tokens(case, 0) != target
    if history is History.SIBLING:
        assert len({tuple(each) for each in donors}) == 3
        assert all(each[case.shared] != target[case.shared] or each != target for each in donors)
    else:
        assert len({tuple(each) for each in donors}) == 1


@pytest.mark.parametrize("text", ["resend:3000", "turn:1", f"sibling:{TAIL + 1}"])
def test_cases_are_read_as_they_are_written(text: str) -> None:
    assert str(Case.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "resend", "resend:", "resend:0", "resend:-1", "resend: 3", f"sibling:{TAIL}", "x:5", "resend:" + "9" * 99],
)
def test_cases_that_cannot_be_read(text: str) -> None:
    with pytest.raises(CaseError, match="resend:3000, turn:3000, sibling:3000"):
        Case.parse(text)


@pytest.mark.parametrize("block", [1, 16, 64, 256, 1152])
def test_the_plan_sits_on_the_edges(block: int) -> None:
    cases = plan(block, 1, 8192)
    assert cases and len(set(cases)) == len(cases)
    assert all(case.length > TAIL and case.target_length + 2 * TAIL <= 8192 for case in cases)
    if block > TAIL:
        assert {case.most_reusable % block for case in cases} >= {0, block - 1}
    assert {case.history for case in cases} == set(History)
    assert plan(block, 1, 100) == []


def test_prompts_are_as_long_as_the_server_needs_them() -> None:
    assert min(case.length for case in plan(64, 2000, 8192)) >= 2000

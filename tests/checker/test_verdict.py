"""A verdict cannot contradict itself, and the exit status cannot say more than the verdicts do."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest
from mamba_replay_check.checker.verdict import Kind, Part, Verdict, exit_status

SPANS = {Kind.DOUBLE_COMPUTED, Kind.SKIPPED, Kind.REFUSED, Kind.REUSE_LOST}
REASONS = {Kind.UNWRITTEN, Kind.FOREIGN, Kind.PRECISION, Kind.VACUOUS, Kind.ENGINE_FAILURE, Kind.DISAGREEMENT}


def verdict_of(kind: Kind) -> Verdict:
    return Verdict(kind, 64, 128) if kind in SPANS else Verdict(kind, reason="so it is")


@pytest.mark.parametrize("kind", Kind)
def test_a_span_belongs_to_the_kinds_that_have_one(kind: Kind) -> None:
    verdict = verdict_of(kind)
    assert verdict.tokens == (64 if kind in SPANS else 0)
    with pytest.raises(AssertionError):
        Verdict(kind, reason="so it is") if kind in SPANS else Verdict(kind, 64, 128, "so it is")


@pytest.mark.parametrize("kind", sorted(SPANS))
@pytest.mark.parametrize("span", [(64, 64), (128, 64), (-1, 64), (64, None), (None, 64)])
def test_a_span_holds_tokens(kind: Kind, span: tuple) -> None:
    with pytest.raises(AssertionError):
        Verdict(kind, *span)


@pytest.mark.parametrize("kind", Kind)
def test_reasons_where_the_kind_does_not_say_it_all(kind: Kind) -> None:
    if kind in REASONS:
        with pytest.raises(AssertionError):
            Verdict(kind)
    else:
        assert Verdict(kind, *((64, 128) if kind in SPANS else ())).reason == ""


@pytest.mark.parametrize("kind", Kind)
def test_only_depths_are_measured_on_the_window(kind: Kind) -> None:
    span = (64, 128) if kind in SPANS else (None, None)
    if kind in (Kind.DOUBLE_COMPUTED, Kind.SKIPPED):
        assert Verdict(kind, *span, part=Part.WINDOW).part is Part.WINDOW
    else:
        with pytest.raises(AssertionError):
            Verdict(kind, *span, "so it is", Part.WINDOW)


@pytest.mark.parametrize(
    "verdict, text",
    [
        (Verdict(Kind.OK), "ok"),
        (Verdict(Kind.DOUBLE_COMPUTED, 19968, 20416), "double-computed 448 [19968, 20416)"),
        (Verdict(Kind.SKIPPED, 0, 3, part=Part.WINDOW), "skipped 3 [0, 3) by the convolution window"),
        (Verdict(Kind.REFUSED, 0, 512, "a guard"), "refused: reuse lost 512 [0, 512): a guard"),
        (Verdict(Kind.REUSE_LOST, 512, 768), "reuse lost 256 [512, 768)"),
        (Verdict(Kind.FOREIGN, reason="no depth"), "foreign state: no depth"),
    ],
)
def test_as_text(verdict: Verdict, text: str) -> None:
    assert str(verdict) == text


@pytest.mark.parametrize(
    "kinds", [(), *combinations_with_replacement(Kind, 1), *combinations_with_replacement(Kind, 2)]
)
def test_exit_status(kinds: tuple[Kind, ...]) -> None:
    """1 as soon as one cell is wrong; 0 only if a cell was proved right and none failed; 3 for all that is left."""
    says_nothing = {Kind.VACUOUS, Kind.ENGINE_FAILURE}
    if set(kinds) - {Kind.OK} - says_nothing:
        expected = 1
    elif Kind.OK in kinds and Kind.ENGINE_FAILURE not in kinds:
        expected = 0
    else:
        expected = 3
    assert exit_status([verdict_of(kind) for kind in kinds]) == expected

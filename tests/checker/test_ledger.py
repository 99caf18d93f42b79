"""The account per token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mamba_replay_check.checker.ledger import Ledger


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    length = draw(st.integers(1, 400))
    return Ledger(draw(st.integers(0, length)), draw(st.integers(0, length - 1)), length)


@given(ledgers())
def test_stretches_cover_the_prompt_and_say_what_times_says(ledger: Ledger) -> None:
    told = [piece.times for piece in ledger.stretches for _ in range(piece.start, piece.end)]
    assert told == [ledger.times(token) for token in range(ledger.length)]
    assert ledger.stretches[0].start == 0 and ledger.stretches[-1].end == ledger.length
    for before, after in zip(ledger.stretches, ledger.stretches[1:], strict=False):
        assert before.end == after.start and before.times != after.times


@given(ledgers())
def test_times_add_up(ledger: Ledger) -> None:
    times = [ledger.times(token) for token in range(ledger.length)]
    assert sum(times) == ledger.state_depth + ledger.length - ledger.cached_tokens
    assert times.count(2) == ledger.double_computed
    assert times.count(0) == ledger.skipped


@given(ledgers())
def test_tokens_are_double_computed_or_skipped_and_never_both(ledger: Ledger) -> None:
    assert not (ledger.double_computed and ledger.skipped)
    assert (ledger.double_computed == ledger.skipped == 0) == (ledger.state_depth == ledger.cached_tokens)


@pytest.mark.parametrize("fields", [(-1, 0, 5), (6, 0, 5), (0, -1, 5), (0, 5, 5), (0, 0, 0)])
def test_accounts_that_cannot_be(fields: tuple[int, int, int]) -> None:
    with pytest.raises(AssertionError):
        Ledger(*fields)

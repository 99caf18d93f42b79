"""Every fault that the black-box check claims to see, planted in a server that computes, beside its clean twin."""

from __future__ import annotations

import pytest
from mamba_replay_check.checker.blackbox.cases import Case
from mamba_replay_check.checker.blackbox.check import Asked, Planned, check
from mamba_replay_check.checker.blackbox.judge import CaseResult
from mamba_replay_check.checker.blackbox.measure import Effort
from mamba_replay_check.checker.blackbox.verdict import Outcome
from mamba_replay_check.engines.server.detect import connect

from ...engines.server.hybrid_server import Faults, serving

DIALECTS = ("sglang", "vllm")
RESEND = (Case.parse("resend:192"),)
"""Resumes at 128, and its donor went 64 tokens beyond."""
ALL = tuple(map(Case.parse, ("resend:192", "turn:225", "sibling:256")))


def results(
    dialect: str, faults: Faults, cases: tuple[Case, ...], seed: int = 0, salted: bool = True, timeout: float = 10
) -> list[CaseResult]:
    with serving(dialect, faults, seed=seed) as server:
        client = connect(server.url, timeout=timeout)
        try:
            events = list(check(client, Asked(seed, grid=64, cases=cases, effort=Effort(salted=salted))))
        finally:
            client.close()
    assert isinstance(events[0], Planned)
    return [event.result for event in events[1:]]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("seed", range(4))
def test_a_right_server_passes(dialect: str, seed: int) -> None:
    found = results(dialect, Faults(), ALL, seed)
    assert [each.verdict.outcome for each in found] == [Outcome.OK] * 3, found
    assert [each.boundary for each in found] == [128, 192, 192]
    assert all(each.worst.nats <= each.load_limit < each.control / 100 for each in found)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "faults",
    [
        Faults(deeper=64),
        Faults(shallower=64),
        Faults(deeper=1),
        Faults(shallower=1),
        Faults(foreign=True),
        Faults(deeper=64, noise=0.002),
    ],
    ids=["64 too deep", "64 too shallow", "1 too deep", "1 too shallow", "foreign", "64 too deep, noisy"],
)
def test_a_wrong_state_differs(dialect: str, faults: Faults) -> None:
    (found,) = results(dialect, faults, RESEND)
    assert found.verdict.outcome is Outcome.DIFFERS, found.verdict
    assert found.worst.nats > 3 * found.limit
    # What is looked at begins right behind the boundary, where the damage is.
    assert found.boundary == 128 and found.alone[0].position == 129
    assert "resumed at 128" in found.verdict.reason


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_shows_only_in_company_is_named(dialect: str) -> None:
    (found,) = results(dialect, Faults(deeper=64, only_busy=True), RESEND)
    assert found.verdict.outcome is Outcome.UNDER_LOAD, found.verdict
    assert max(each.nats for each in found.alone) <= found.limit


@pytest.mark.parametrize("dialect", DIALECTS)
def test_batch_effects_are_no_fault_of_the_cache(dialect: str) -> None:
    (found,) = results(dialect, Faults(busy_noise=0.005), RESEND)
    assert found.verdict.outcome is Outcome.OK, found.verdict
    assert any("batching moves cold runs" in note for note in found.verdict.notes)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("seed", range(3))
def test_noise_raises_the_floor_and_not_the_alarm(dialect: str, seed: int) -> None:
    found = results(dialect, Faults(noise=0.002), ALL, seed)
    assert [each.verdict.outcome for each in found] == [Outcome.OK] * 3, found
    assert all(each.noise.floor > 0.001 for each in found)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("faults", [Faults(noise=1.0), Faults(flat=True)], ids=["unstable", "dummy weights"])
def test_a_server_that_shows_nothing_proves_nothing(dialect: str, faults: Faults) -> None:
    (found,) = results(dialect, faults, RESEND)
    assert found.verdict.outcome is Outcome.INSENSITIVE, found.verdict


@pytest.mark.parametrize("dialect", DIALECTS)
def test_wrong_decoding_does_not_raise_the_floor(dialect: str) -> None:
    (found,) = results(dialect, Faults(wrong_decode=True, deeper=64), RESEND)
    assert found.verdict.outcome is Outcome.DIFFERS
    assert any(note.startswith("decoding and prefill") for note in found.verdict.notes)
    (clean,) = results(dialect, Faults(), RESEND)
    assert not clean.verdict.notes


@pytest.mark.parametrize("dialect", DIALECTS)
def test_reuse_that_the_grid_allows_and_does_not_happen(dialect: str) -> None:
    (never,) = results(dialect, Faults(never=True), RESEND)
    assert never.verdict.outcome is Outcome.REUSE_LOST
    assert "128 tokens could be" in never.verdict.reason
    ragged, straight = results(dialect, Faults(not_behind=20), tuple(map(Case.parse, ("resend:230", "resend:192"))))
    assert (ragged.verdict.outcome, straight.verdict.outcome) == (Outcome.REUSE_LOST, Outcome.OK)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_that_keeps_nothing_at_first_sight(dialect: str) -> None:
    (found,) = results(dialect, Faults(late=1), RESEND)
    assert found.history == (0, 0, 128)
    assert found.verdict.outcome is Outcome.OK
    assert found.verdict.notes == ("the server kept nothing at first sight: reuse began with request 3",)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_salts_that_are_not_heeded(dialect: str) -> None:
    (salted,) = results(dialect, Faults(salts_ignored=True), RESEND)
    assert salted.verdict.outcome is Outcome.FAILURE and "--cold reset" in salted.verdict.reason
    (reset,) = results(dialect, Faults(salts_ignored=True), RESEND, salted=False)
    assert reset.verdict.outcome is Outcome.OK
    (wrong,) = results(dialect, Faults(salts_ignored=True, deeper=64), RESEND, salted=False)
    assert wrong.verdict.outcome is Outcome.DIFFERS


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "broken, said",
    [
        ("status500", 'status 500: {"error": "the engine died'),
        ("hang", "no answer within 0.5 s"),
        ("garbage", "the answer is not JSON: <html>"),
        ("nothing", "the answer has no"),
    ],
)
@pytest.mark.parametrize("after", [0, 5], ids=["at once", "later"])
def test_a_server_that_breaks(dialect: str, broken: str, said: str, after: int) -> None:
    (found,) = results(dialect, Faults(broken=broken, broken_after=after), RESEND, timeout=0.5)
    assert found.verdict.outcome is Outcome.FAILURE
    assert said in found.verdict.reason


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_resumed_run_that_gives_no_number(dialect: str) -> None:
    (found,) = results(dialect, Faults(nan_when_resumed=True), RESEND)
    assert found.verdict.outcome is Outcome.DIFFERS
    assert "is no number" in found.verdict.reason
    (cold,) = results(dialect, Faults(broken="nan"), RESEND)
    assert cold.verdict.outcome is Outcome.FAILURE
    assert "a cold run gave no number" in cold.verdict.reason

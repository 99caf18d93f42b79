"""What can be said of a server from outside: a closed set of kinds.

Double-computed and skipped tokens, a foreign state and an unwritten one all look alike from here: the
log-probabilities behind the boundary differ. So there is one word for them, and the white-box check has the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What a case was found to be."""

    OK = "ok"
    """The resumed run says what cold runs say, as far as rounding lets one tell."""
    DIFFERS = "differs"
    """It does not, and neither repeats, nor other shapes, nor load move cold runs as far."""
    UNDER_LOAD = "differs under load"
    """It does not, but only while other requests run; cold runs do not move as far then."""
    REUSE_LOST = "reuse lost"
    """Nothing, or less than the server's own grid allows, was reused."""
    INSENSITIVE = "insensitive"
    """A planted change of the prompt would not be seen either, so that nothing is seen proves nothing."""
    VACUOUS = "vacuous"
    """Nothing was reused, and nothing says that it should have been."""
    FAILURE = "server failure"
    """The server did not answer, or not with what was asked for."""

    @property
    def is_discrepancy(self) -> bool:
        return self in (Outcome.DIFFERS, Outcome.UNDER_LOAD, Outcome.REUSE_LOST)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding. `reason` is one sentence, for all but ok; `notes` are what a reader should know beside it."""

    outcome: Outcome
    reason: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.outcome is Outcome.OK or self.reason, f"{self.outcome} needs a reason"

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}" if self.reason else str(self.outcome)


def exit_status(verdicts: list[Verdict]) -> int:
    """0 every case is right, 1 discrepancies, 3 inconclusive: a case failed, or none proves anything."""
    outcomes = [verdict.outcome for verdict in verdicts]
    if any(outcome.is_discrepancy for outcome in outcomes):
        return 1
    return 3 if Outcome.FAILURE in outcomes or Outcome.OK not in outcomes else 0

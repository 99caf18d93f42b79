"""What a cell was found to be: a closed set of kinds, each with exactly the fields that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of verdict, worst news first in `severity`."""

    OK = "ok"
    DOUBLE_COMPUTED = "double-computed"
    SKIPPED = "skipped"
    UNWRITTEN = "unwritten state"
    FOREIGN = "foreign state"
    PRECISION = "precision"
    REFUSED = "refused"
    REUSE_LOST = "reuse lost"
    VACUOUS = "vacuous"
    ENGINE_FAILURE = "engine failure"
    DISAGREEMENT = "disagreement"

    @property
    def is_discrepancy(self) -> bool:
        """The cell was checked, and what the engine did is not what it should have done."""
        return self not in (Kind.OK, Kind.VACUOUS, Kind.ENGINE_FAILURE)

    @property
    def proves_something(self) -> bool:
        """A vacuous or failed cell says nothing about the engine's reuse."""
        return self not in (Kind.VACUOUS, Kind.ENGINE_FAILURE)


_WITH_SPAN = {Kind.DOUBLE_COMPUTED, Kind.SKIPPED, Kind.REFUSED, Kind.REUSE_LOST}
_WITH_REASON = {
    Kind.UNWRITTEN,
    Kind.FOREIGN,
    Kind.PRECISION,
    Kind.VACUOUS,
    Kind.ENGINE_FAILURE,
    Kind.DISAGREEMENT,
}


class Part(StrEnum):
    """Which half of a mixer's state a verdict speaks of."""

    STATE = "recurrent state"
    WINDOW = "convolution window"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding about one cell.

    start, end: the tokens that were double-computed or skipped, or whose reuse was lost; only for those kinds.
    reason:     one sentence, for kinds whose name does not say it all; optional for the others.
    part:       whose depth a double-computed or skipped span was measured on.
    """

    kind: Kind
    start: int | None = None
    end: int | None = None
    reason: str = ""
    part: Part = Part.STATE

    def __post_init__(self) -> None:
        if self.kind in _WITH_SPAN:
            assert self.start is not None and self.end is not None and 0 <= self.start < self.end, self
        else:
            assert self.start is None and self.end is None, f"{self.kind} has no span"
        assert self.kind not in _WITH_REASON or self.reason, f"{self.kind} needs a reason"
        assert self.part is Part.STATE or self.kind in (Kind.DOUBLE_COMPUTED, Kind.SKIPPED), self

    @property
    def tokens(self) -> int:
        """How many tokens the verdict is about; 0 for kinds without a span."""
        return 0 if self.start is None or self.end is None else self.end - self.start

    def __str__(self) -> str:
        if self.start is None:
            return f"{self.kind}: {self.reason}" if self.reason else str(self.kind)
        text = f"{self.kind} {self.tokens} [{self.start}, {self.end})"
        if self.kind is Kind.REFUSED:
            text = f"{self.kind}: reuse lost {self.tokens} [{self.start}, {self.end})"
        if self.part is Part.WINDOW:
            text += f" by the {self.part}"
        return f"{text}: {self.reason}" if self.reason else text


def exit_status(verdicts: list[Verdict]) -> int:
    """0 every checked cell is right, 1 discrepancies, 3 inconclusive: no cell proved anything.

    A cell that failed in the engine is not a discrepancy, but next to it a pass would be a claim too many: with
    failures and no discrepancy the run is inconclusive.
    """
    kinds = [verdict.kind for verdict in verdicts]
    if any(kind.is_discrepancy for kind in kinds):
        return 1
    if Kind.ENGINE_FAILURE in kinds or not any(kind.proves_something for kind in kinds):
        return 3
    return 0

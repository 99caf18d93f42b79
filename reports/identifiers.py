"""Verdicts by their stable identifiers: what reports for machines call them, and where people can read on.

An identifier is never given to another kind and never renumbered: baselines, dashboards and suppressions hold on to it.
docs/verdicts.md has a section for each; a test keeps page, identifiers and `Kind` in agreement.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..checker.verdict import Kind

PAGE = "docs/verdicts.md"
"""Where each identifier is explained, from the root of the repository."""


class Level(StrEnum):
    """How loud a kind is, in the words that SARIF and GitHub share."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of verdict as reports know it.

    meaning: one line, the same that stands under its heading in the page.
    advice:  what to do first, one line.
    """

    id: str
    kind: Kind
    level: Level
    meaning: str
    advice: str

    @property
    def title(self) -> str:
        """Identifier and kind: `MRC001 double-computed`. The heading of its section."""
        return f"{self.id} {self.kind}"

    @property
    def name(self) -> str:
        """The kind as one word: `DoubleComputed`."""
        return "".join(word.capitalize() for word in self.kind.replace("-", " ").split())

    @property
    def anchor(self) -> str:
        """The heading's anchor, as GitHub makes it."""
        return self.title.lower().replace(" ", "-")

    @property
    def link(self) -> str:
        """The section, from the root of the repository."""
        return f"{PAGE}#{self.anchor}"


RULES = (
    Rule(
        "MRC000",
        Kind.OK,
        Level.NOTE,
        "The resumed run computes what the cold run does, from the deepest state that the history allows.",
        "Nothing.",
    ),
    Rule(
        "MRC001",
        Kind.DOUBLE_COMPUTED,
        Level.ERROR,
        "The state had absorbed these tokens, and they were computed again.",
        "Make the engine hand a state only to the tree node that ends at the state's own depth.",
    ),
    Rule(
        "MRC002",
        Kind.SKIPPED,
        Level.ERROR,
        "The recurrent layers never saw these tokens.",
        "Resume from the depth that the state really has, or restore the state that belongs to the matched prefix.",
    ),
    Rule(
        "MRC003",
        Kind.UNWRITTEN,
        Level.ERROR,
        "The state is empty: nothing was ever written to the slot that it came from.",
        "Find the forward pass that should have filled the slot, and donate only what a kernel has written.",
    ),
    Rule(
        "MRC004",
        Kind.FOREIGN,
        Level.ERROR,
        "The state belongs to no depth of this prompt.",
        "Follow the slot's index from the forward pass to the restore: it is stale, shared, or read off by a row.",
    ),
    Rule(
        "MRC005",
        Kind.PRECISION,
        Level.WARNING,
        "The right state, rounded by more than the noise of the kernels explains, or beside a window that is.",
        "Keep snapshots in the number format in which the kernel carries the state.",
    ),
    Rule(
        "MRC006",
        Kind.REFUSED,
        Level.WARNING,
        "A guard rejected the donated state, and the tokens it would have saved were computed again from further back.",
        "Keep the guard; mend the depth at which the engine takes its snapshots, so that there is nothing to reject.",
    ),
    Rule(
        "MRC007",
        Kind.REUSE_LOST,
        Level.WARNING,
        "Right, but resumed from a shallower state than the history allows.",
        "Look for the snapshot that was not taken, not attached, or not found by the match.",
    ),
    Rule(
        "MRC008",
        Kind.VACUOUS,
        Level.WARNING,
        "Nothing was resumed, so the cell proves nothing.",
        "Give a prompt that fills at least one tree page, and a donor's history that leaves a state.",
    ),
    Rule(
        "MRC009",
        Kind.ENGINE_FAILURE,
        Level.ERROR,
        "The engine raised, or gave an answer that cannot be true; the cell proves nothing about its reuse.",
        "Mend what the engine died of, and run the cell again.",
    ),
    Rule(
        "MRC010",
        Kind.DISAGREEMENT,
        Level.ERROR,
        "Bookkeeping and numbers do not tell the same story.",
        "Trust neither account: reproduce the cell, and find out which of the two is mistaken.",
    ),
)

_BY_KIND = {rule.kind: rule for rule in RULES}


def rule_of(kind: Kind | str) -> Rule:
    """The rule for a kind, also as the document spells it. Raises ValueError for what is none."""
    return _BY_KIND[Kind(kind)]

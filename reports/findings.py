"""What every report for machines says about a document: what makes a pass meaningless, and cells in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..checker.verdict import Kind
from .baseline import REGRESSIONS
from .identifiers import Level, Rule, rule_of
from .reproduce import SEEDED

Document = dict[str, Any]
Cell = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Concern:
    """A reason not to trust a pass. rule: the kind of verdict that it comes from; None where it is the run itself."""

    level: Level
    text: str
    rule: Rule | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file that a cell was asked for in."""

    path: str
    line: int


def concerns(document: Document) -> list[Concern]:
    """Whatever makes a pass meaningless, the worst first. Every report begins with them."""
    cells = document["cells"]
    found = []
    if not document["complete"]:
        found.append(Concern(Level.ERROR, f"the run was stopped after {len(cells)} of {document['planned']} cells"))
    if document["exit_status"] == 3:
        found.append(Concern(Level.ERROR, "the run is inconclusive: it does not show that the engine is right"))
    for kind, what in (
        (Kind.ENGINE_FAILURE, "failed in the engine and say nothing about it"),
        (Kind.VACUOUS, "are vacuous: nothing was resumed, so they prove nothing"),
    ):
        rule = rule_of(kind)
        reasons = Counter(cell["verdict"]["reason"] for cell in cells if cell["verdict"]["kind"] == kind)
        for reason, count in reasons.most_common():
            found.append(Concern(rule.level, f"{count} of {len(cells)} cells {what}: {reason}", rule))
    return found


def discrepancies(document: Document) -> Iterator[tuple[Rule, Cell]]:
    """The cells that make a run fail, in the order of the document."""
    for cell in document["cells"]:
        rule = rule_of(cell["verdict"]["kind"])
        if rule.kind.is_discrepancy:
            yield rule, cell


def regressed(cell: Cell) -> bool:
    """Does this cell fail the run? Without a baseline every discrepancy does, with one only what is new or worse."""
    against = cell["against_baseline"]
    return against is not None and against["standing"] in REGRESSIONS


def outdated(document: Document) -> list[str]:
    """What fails a run under `--strict`: entries of the baseline that no longer say what is."""
    baseline = document["baseline"]
    if baseline is None or not baseline["strict"]:
        return []
    better = [
        f"better: {geometry(cell)}, prompt {prompt(cell)}: {cell['against_baseline']['why']}"
        for cell in document["cells"]
        if cell["against_baseline"] and cell["against_baseline"]["standing"] == "better"
    ]
    stale = [f"stale: {geometry(entry)}, prompt {prompt(entry)} was not checked" for entry in baseline["stale"]]
    return [*better, *stale]


def conclusion(document: Document) -> str:
    """The exit status in words."""
    return {
        0: "Every checked cell is right",
        1: "Discrepancies found",
        3: "Inconclusive: this run does not show that the engine is right",
    }[document["exit_status"]]


def geometry(cell: Cell) -> str:
    """The four sizes."""
    return ", ".join(f"{name} {cell[name]}" for name in ("chunk", "page", "dcp", "interval"))


def prompt(cell: Cell) -> str:
    """The prompt by its sizes, and by its line where it comes from a file."""
    return cell["prompt"] if cell["stream"] == SEEDED else f"{cell['stream']} {cell['prompt']}"


def depths(cell: Cell) -> str:
    """The depths of a cell in one line, as they were measured."""
    said = []
    if cell["claimed_depth"] is not None:
        said.append(f"claimed depth {cell['claimed_depth']}")
    if cell["state_depth"] is not None:
        said.append(f"state depth {cell['state_depth']} by its tag")
    if cell["located"] is not None:
        depth = cell["located"]["depth"]
        said.append("no depth by its numbers" if depth is None else f"{depth} by its numbers")
    return ", ".join([*said, f"cached tokens {cell['cached_tokens']}", f"reusable {cell['reusable_tokens']}"])


def finding(cell: Cell) -> str:
    """The verdict in words, without the brackets that some formats take for a link."""
    verdict = cell["verdict"]
    text = verdict["kind"]
    if verdict["start"] is not None:
        text += f": {verdict['tokens']} tokens, {verdict['start']} to {verdict['end'] - 1}"
        text += f" by the {verdict['part']}" if verdict["part"] != "recurrent state" else ""
    return f"{text}: {verdict['reason']}" if verdict["reason"] else text


def place(cell: Cell, source: tuple[str, int] | None) -> Place | None:
    """The line that a cell comes from: that of its prompts file, else `source`, the line of the configuration."""
    path, colon, line = cell["stream"].rpartition(":")
    if cell["stream"] != SEEDED and colon and path and line.isdecimal() and int(line):
        return Place(path, int(line))
    return Place(*source) if source else None

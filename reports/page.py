"""What the HTML page says, as plain values: head, warnings, kinds of verdict, grids. The templates only place it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..checker.verdict import Kind
from .identifiers import rule_of
from .reproduce import SEEDED

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """How a kind of verdict is shown. The mark tells kinds apart without colour."""

    kind: str
    mark: str
    id: str
    meaning: str
    advice: str

    @property
    def slug(self) -> str:
        """Its name in style sheets."""
        return self.kind.replace(" ", "-")


_MARKS = {
    Kind.DISAGREEMENT: "?!",
    Kind.DOUBLE_COMPUTED: "2\N{MULTIPLICATION SIGN}",
    Kind.SKIPPED: "0\N{MULTIPLICATION SIGN}",
    Kind.FOREIGN: "≠",
    Kind.UNWRITTEN: "∅",
    Kind.PRECISION: "≈",
    Kind.REFUSED: "⊘",
    Kind.REUSE_LOST: "↓",
    Kind.ENGINE_FAILURE: "✕",
    Kind.VACUOUS: "\N{EN DASH}",
    Kind.OK: "✓",
}


def _look(kind: Kind, mark: str) -> Look:
    rule = rule_of(kind)
    return Look(str(kind), mark, rule.id, rule.meaning, "" if kind is Kind.OK else rule.advice)


LOOKS = {str(kind): _look(kind, mark) for kind, mark in _MARKS.items()}
"""Worst first: the order in which verdicts are counted."""

_UNKNOWN = Look("unknown", "?", "", "A verdict that this version of the program does not know.", "")
_RANK = {kind: rank for rank, kind in enumerate(LOOKS)}
_LAST = len(LOOKS)


def look(kind: str) -> Look:
    """The look of a kind as the document spells it."""
    return LOOKS.get(kind, _UNKNOWN)


@dataclass(frozen=True, slots=True)
class Square:
    """One cell in a heat map. number: its place in the document, from 1; the page's anchor is `cell-<number>`."""

    number: int
    look: Look
    tokens: int
    prompt: str
    choice: int
    name: str


@dataclass(frozen=True, slots=True)
class Facet:
    """A heat map of one (chunk, interval). squares: by (page, dcp), the worst prompt first."""

    chunk: int
    interval: int
    pages: list[int]
    dcps: list[int]
    squares: dict[tuple[int, int], list[Square]]


def headline(document: Document) -> tuple[str, str]:
    """The verdict on the run: one phrase and one sentence."""
    cells = document["cells"]
    kinds = Counter(cell["verdict"]["kind"] for cell in cells)
    right = kinds[Kind.OK]
    silent = kinds[Kind.VACUOUS] + kinds[Kind.ENGINE_FAILURE]
    found = len(cells) - right - silent
    phrase = {0: "Every checked cell is right", 1: "Discrepancies found"}.get(document["exit_status"], "Inconclusive")
    parts = [
        f"{found} of {_count(len(cells), 'cell')} {'is a discrepancy' if found == 1 else 'are discrepancies'}",
        f"{right} {'is' if right == 1 else 'are'} right",
    ]
    if silent:
        parts.append(f"{silent} {'proves' if silent == 1 else 'prove'} nothing")
    return phrase, ", ".join(parts) + "."


def warnings(document: Document) -> list[tuple[str, list[tuple[int, str]]]]:
    """What makes a pass mean less than it seems, each with its reasons and how often each was given."""
    cells = document["cells"]
    found: list[tuple[str, list[tuple[int, str]]]] = []
    if not document["complete"]:
        found.append((f"The run was stopped after {len(cells)} of {document['planned']} cells.", []))
    elif not cells:
        found.append(("No cell was checked.", []))
    for kind, what in (
        (Kind.ENGINE_FAILURE, "failed in the engine and say nothing about its reuse"),
        (Kind.VACUOUS, "are vacuous: nothing was resumed, so they prove nothing"),
    ):
        reasons = Counter(cell["verdict"]["reason"] for cell in cells if cell["verdict"]["kind"] == kind)
        if reasons:
            shown = [(times, reason) for reason, times in reasons.most_common(4)]
            if len(reasons) > len(shown):
                shown.append((reasons.total() - sum(times for times, _ in shown), "for other reasons"))
            found.append((f"{reasons.total()} of {_count(len(cells), 'cell')} {what}.", shown))
    return found


def under_test(document: Document) -> list[tuple[str, str]]:
    """Names and values of what a run checked, and with what."""
    under = document["under_test"]
    versions = ", ".join(f"{name} {version}" for name, version in under["versions"].items())
    return [
        ("Engine", under["engine"] + (", with the insert-time guard" if under["guard"] else "")),
        ("Model", f"{under['model']}, {under['dtype']}"),
        ("Ran on", f"{under['device']} (executor: {under['executor']})"),
        ("Seed", str(under["seed"]) + ("" if under["shared"] else ", nothing shared between cells")),
        ("Versions", versions),
        *([("Against the baseline", document["baseline"]["conclusion"])] if document["baseline"] else []),
    ]


def counts(document: Document) -> list[tuple[Look, int]]:
    """How many cells of each kind, worst first; also the legend of the heat maps."""
    kinds = Counter(look(cell["verdict"]["kind"]) for cell in document["cells"])
    return sorted(kinds.items(), key=lambda item: _RANK.get(item[0].kind, -1))


def choices(document: Document) -> list[str]:
    """The prompts that a heat map can be drawn for, in the order of the run."""
    return list(dict.fromkeys(_choice(cell) for cell in document["cells"]))


def facets(document: Document) -> list[Facet]:
    """One heat map for each kernel chunk and track interval."""
    places = {choice: place for place, choice in enumerate(choices(document))}
    groups: dict[tuple[int, int], dict[tuple[int, int], list[tuple[tuple, Square]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for number, cell in enumerate(document["cells"], 1):
        at = groups[cell["chunk"], cell["interval"]][cell["page"], cell["dcp"]]
        at.append((_badness(cell), _square(number, cell, places[_choice(cell)])))
    made = []
    for (chunk, interval), grid in sorted(groups.items()):
        squares = {place: [s for _, s in sorted(found, key=lambda f: f[0])] for place, found in grid.items()}
        pages, dcps = (sorted({place[axis] for place in grid}) for axis in (0, 1))
        made.append(Facet(chunk, interval, pages, dcps, squares))
    return made


def kept_details(document: Document) -> tuple[int, int]:
    """(cells with curves, cells that were measured)."""
    measured = [cell for cell in document["cells"] if cell["diff"] is not None]
    return sum(cell["details"] is not None for cell in measured), len(measured)


def varying_sizes(document: Document) -> list[str]:
    """The sizes that are not the same in every cell."""
    sizes = ("chunk", "page", "dcp", "interval")
    return [size for size in sizes if len({cell[size] for cell in document["cells"]}) > 1]


def prompt_name(cell: Document) -> str:
    """A prompt as people refer to it: its sizes, and where it comes from or why it is there."""
    source = "" if cell["stream"] == SEEDED else f"{cell['stream']}: "
    return source + cell["prompt"] + (f" ({cell['label']})" if cell["label"] else "")


def _choice(cell: Document) -> str:
    # The same label stands for other sizes in another geometry, and is what people compare.
    return cell["label"] or prompt_name(cell)


def _badness(cell: Document) -> tuple[int, int]:
    # Nearly every geometry has a prompt too short for it: a vacuous cell speaks only where nothing else does.
    kind, tokens = cell["verdict"]["kind"], cell["verdict"]["tokens"]
    return _LAST if kind == Kind.VACUOUS else _RANK.get(kind, -1), -tokens


def _square(number: int, cell: Document, choice: int) -> Square:
    verdict, prompt = cell["verdict"], prompt_name(cell)
    name = f"page {cell['page']}, dcp {cell['dcp']}: {verdict['text']}; prompt {prompt}"
    return Square(number, look(verdict["kind"]), verdict["tokens"], prompt, choice, name)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def slugs(looks: Iterable[Look]) -> Sequence[dict[str, str]]:
    """The looks as the page's script needs them."""
    return [{**asdict(each), "slug": each.slug} for each in looks]

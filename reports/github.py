"""The run for GitHub Actions: workflow commands that become annotations, and the Markdown of a job summary."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..checker.verdict import Kind
from .findings import (
    Cell,
    Document,
    Place,
    concerns,
    conclusion,
    depths,
    discrepancies,
    finding,
    geometry,
    outdated,
    place,
    prompt,
    regressed,
)
from .identifiers import Level, Rule, rule_of
from .visible import lines, one_line

MOST_ANNOTATIONS = 10
"""GitHub shows that many errors and that many warnings of a step, and silently drops the rest."""

SUMMARY_LIMIT = 2**20
"""Bytes; GitHub drops a longer summary as a whole."""

_SPENT_ON_FINDINGS = SUMMARY_LIMIT * 3 // 4
_MOST_CONCERNS = 20
_LONGEST = 300
"""Characters of a text from outside in the summary; longer ones are cut, and end in an ellipsis."""


def annotations(document: Document, source: tuple[str, int] | None = None) -> list[str]:
    """Workflow commands to be printed one a line: what makes a pass meaningless first, then findings.

    No more of a level than GitHub shows; the last of them then counts what was left out. source: as in `render_sarif`.
    Against a baseline, regressions are the errors, and what is known or got better only warns.
    """
    notes = list(_notes(document, source))
    return [line for level in (Level.ERROR, Level.WARNING) for line in _capped(level, notes)]


@dataclass(frozen=True, slots=True)
class _Note:
    level: Level
    title: str
    text: str
    where: Place | None = None

    def __str__(self) -> str:
        about = {"file": self.where.path, "line": str(self.where.line)} if self.where else {}
        said = ",".join(f"{name}={_property(value)}" for name, value in {**about, "title": self.title}.items())
        return f"::{self.level} {said}::{_data(self.text)}"


def _notes(document: Document, source: tuple[str, int] | None) -> Iterator[_Note]:
    for concern in concerns(document):
        yield _Note(concern.level, concern.rule.title if concern.rule else "mamba-replay-check", concern.text)
    if document["baseline"] is None:
        for rule, cell in discrepancies(document):
            yield _note(rule.level, rule, finding(cell), cell, source)
        return
    for cell in document["cells"]:
        if (against := cell["against_baseline"]) is None:
            continue
        rule = rule_of(cell["verdict"]["kind"])
        if regressed(cell) or rule.kind.is_discrepancy:
            level = Level.ERROR if regressed(cell) else Level.WARNING
            yield _note(level, rule, f"{against['standing']}: {against['why']}", cell, source)
    for text in outdated(document):
        yield _Note(Level.ERROR, "the baseline is out of date", text, Place(*source) if source else None)


def _note(level: Level, rule: Rule, what: str, cell: Cell, source: tuple[str, int] | None) -> _Note:
    text = f"{what}\n{geometry(cell)}, prompt {prompt(cell)}\n{depths(cell)}\nreproduce: {cell['reproduce']}"
    title = "reuse lost" if rule.kind is Kind.OK else rule.title  # a right cell is noted for its cached tokens alone
    return _Note(level, f"{title} {cell['verdict']['tokens'] or ''}".strip(), text, place(cell, source))


def _capped(level: Level, notes: Iterable[_Note]) -> list[str]:
    own = [note for note in notes if note.level is level]
    if len(own) <= MOST_ANNOTATIONS:
        return [str(note) for note in own]
    shown, rest = own[: MOST_ANNOTATIONS - 1], own[MOST_ANNOTATIONS - 1 :]
    kinds = Counter(" ".join(note.title.split()[:1]) for note in rest)
    counted = ", ".join(f"{count} {title}" for title, count in kinds.most_common())
    more = _Note(level, f"{len(rest)} more", f"{len(rest)} more of this level are not shown: {counted}")
    return [str(note) for note in (*shown, more)]


def _data(text: str) -> str:
    """The text of a workflow command, which ends at a line's end."""
    return lines(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A property of a workflow command, which also ends at a comma or a colon."""
    return _data(one_line(text)).replace(":", "%3A").replace(",", "%2C")


def job_summary(document: Document) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY, below GitHub's limit however much was found."""
    under_test = document["under_test"]
    baseline = document["baseline"]
    tested = [under_test[name] for name in ("engine", "model", "dtype", "device")]
    guard = " with the insert-time guard" if under_test["guard"] else ""
    parts = [
        f"## mamba-replay-check: {conclusion(document)}",
        *_warnings(document),
        "Under test: " + ", ".join(map(_text, tested)) + f"{guard}, seed {under_test['seed']}.",
        f"**Against the baseline:** {baseline['conclusion']}" if baseline else "",
        _counts(document),
        *_findings(document),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _warnings(document: Document) -> list[str]:
    found = concerns(document)
    shown = [f"> **{concern.level}:** {_text(concern.text)}" for concern in found[:_MOST_CONCERNS]]
    if len(found) > len(shown):
        shown.append(f"> ... and {len(found) - len(shown)} more reasons")
    return ["\n>\n".join(shown)] if shown else []


def _counts(document: Document) -> str:
    counts = Counter(rule_of(cell["verdict"]["kind"]).title for cell in document["cells"])
    if not counts:
        return "No cell was checked."
    return "\n".join(
        ["| verdict | cells |", "|---|---:|", *(f"| {title} | {n} |" for title, n in sorted(counts.items()))]
    )


def _findings(document: Document) -> list[str]:
    """The table of findings, and the commands that reproduce them by their numbers in it."""
    found = list(discrepancies(document))
    rows, commands, spent = [], [], 0
    for number, (rule, cell) in enumerate(found, 1):
        row, command = _row(number, rule, cell), f"# {number}: {rule.title}\n{one_line(cell['reproduce'])}"
        spent += len(f"{row}\n{command}\n".encode())
        if spent > _SPENT_ON_FINDINGS:
            break
        rows.append(row)
        commands.append(command)
    if not rows:
        return [f"{len(found)} findings are too long to be shown here."] if found else []
    left = len(found) - len(rows)
    head = ["| # | verdict | chunk | page | dcp | interval | prompt | claimed | located | cached |"]
    table = "\n".join([*head, "|---:|---|" + "---:|" * 4 + "---|" + "---:|" * 3, *rows])
    more = f"... and {left} more findings, which the JSON and HTML reports hold." if left else ""
    return ["### Findings", table, more, "### Reproduce", _block("\n".join(commands))]


def _row(number: int, rule: Rule, cell: Cell) -> str:
    located = cell["located"]["depth"] if cell["located"] else None
    sizes = [str(cell[name]) for name in ("chunk", "page", "dcp", "interval")]
    numbers = ["-" if n is None else str(n) for n in (cell["claimed_depth"], located, cell["cached_tokens"])]
    verdict = f"{rule.id} {_text(finding(cell))}"
    return "| " + " | ".join([str(number), verdict, *sizes, _text(prompt(cell)), *numbers]) + " |"


def _text(text: str) -> str:
    """Text from outside as Markdown that shows it and does nothing else."""
    cut = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    escaped = html.escape(one_line(cut), quote=False)
    return re.sub(r"[\\`*_{}\[\]()#|~@]|:(?=//)|(?<=www)\.", lambda match: f"&#{ord(match[0])};", escaped)


def _block(text: str) -> str:
    """A code block whose fence is longer than any run of backticks in it."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{fence}sh\n{text}\n{fence}"

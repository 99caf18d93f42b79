"""The ruler of a cell as plain text: where the donated state stands, where the engine resumes, and what lies between.

    0                19968                                                   20450
    |-//-------:-------+-------:------:-------:------:-------:-------:------:----|
                       ######### 448 double-computed [19968, 20416) ########
                       ^ 19968 cached tokens, node
                                    20416 claimed, state by tag and numbers ^
    | donor passes end at 16384, 20450   + tree page of 512   : kernel chunk of 64

One axis in tokens, zoomed to where the depths differ: `-//-` stands for tokens left out, lest 448 of 20450 be a dot.
Below it the span that the verdict is about, then one row per depth, shallowest first. Depths are written out: the
columns show order and proportion, the numbers are exact.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..checker.verdict import Kind
from .visible import one_line

LEAST_WIDTH = 40
"""Below this no number has a place beside its mark."""

_BREAK = "|-//--"
_SPARSE = 3
"""Columns between two ticks of a kind, at least."""

_FILL = {Kind.DOUBLE_COMPUTED: "#", Kind.SKIPPED: ".", Kind.REFUSED: "~", Kind.REUSE_LOST: "~"}
_PASSES_NAMED = 4
_EMPTY = "nothing was resumed: every token is computed from an empty state"
_NOT_RESUMED = {Kind.ENGINE_FAILURE: "nothing was resumed: the engine failed"}

Cell = dict[str, Any]


def ruler(cell: Cell, width: int = 78) -> list[str]:
    """The lines of the ruler for one cell of the run's document: ASCII, none wider than `width`."""
    if width < LEAST_WIDTH:
        raise ValueError(f"a ruler is at least {LEAST_WIDTH} columns wide, not {width}")
    marks = _marks(cell)
    axis = _zoom(cell, marks, width)
    lines = [] if cell["cached_tokens"] else [_NOT_RESUMED.get(cell["verdict"]["kind"], _EMPTY)]
    lines += axis.drawn()
    lines += _span(cell["verdict"], axis)
    for depth in sorted(marks):
        lines += axis.placed(axis.column(depth), axis.column(depth) + 1, "^", f"{depth} {', '.join(marks[depth])}")
    if cell["located"] is not None and cell["located"]["depth"] is None:
        lines.append("the state's numbers stand at no depth of this prompt")
    return [part.rstrip() for line in lines + axis.legend() for part in _fitting(line, width)]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Tokens [0, total] on `width` columns. [start, end] is drawn to scale, what lies outside is broken off."""

    width: int
    start: int
    end: int
    total: int
    chunk: int
    tree_page: int
    passes: tuple[int, ...]

    @property
    def _left(self) -> int:
        return len(_BREAK) if self.start else 0

    @property
    def _right(self) -> int:
        return self.width - 1 - (len(_BREAK) if self.end < self.total else 0)

    def column(self, depth: int) -> int:
        """Never decreases with the depth. Outside of what is drawn to scale there are only the axis's ends."""
        if depth < self.start:
            return 0
        if depth > self.end:
            return self.width - 1
        return self._left + (depth - self.start) * (self._right - self._left) // (self.end - self.start)

    def drawn(self) -> list[str]:
        """The numbers that find a place, and the axis with its ticks below them."""
        line = ["-"] * self.width
        if self.start:
            line[: len(_BREAK)] = _BREAK
        if self.end < self.total:
            line[-len(_BREAK) :] = reversed(_BREAK)
        for sign, depths in ((":", self._chunks()), ("+", self._tree_pages()), ("|", (0, *self._passes(), self.total))):
            for depth in depths:
                line[self.column(depth)] = sign
        return [self._numbers([0, self.total, *self._passes(), *self._tree_pages()]), "".join(line)]

    def legend(self) -> list[str]:
        """What the ticks stand for."""
        first, more = self.passes[:_PASSES_NAMED], len(self.passes) - _PASSES_NAMED
        said = [f"| donor passes end at {', '.join(map(str, first))}" + (f" and {more} more" if more > 0 else "")]
        if self._tree_pages():
            each = self._page_step // self.tree_page
            said.append(f"+ {f'every {each} tree pages' if each > 1 else 'tree page'} of {self.tree_page}")
        if self._chunks():
            said.append(f": kernel chunk of {self.chunk}")
        whole = "   ".join(said)
        return [whole] if len(whole) <= self.width else said

    def placed(self, start: int, end: int, sign: str, text: str) -> list[str]:
        """A sign over columns [start, end), and the text in it or beside it, else on lines of its own."""
        drawn = sign * (end - start)
        if len(text) + 4 <= len(drawn):
            return [" " * start + f" {text} ".center(len(drawn), sign)]
        if end + 1 + len(text) <= self.width:
            return [" " * start + f"{drawn} {text}"]
        if len(text) + 1 <= start:
            return [f"{text} ".rjust(start) + drawn]
        return [" " * start + drawn, text]

    @property
    def _page_step(self) -> int:
        """Every tree page, or every second, fourth, ... where they would crowd."""
        step = self.tree_page
        while not self._is_sparse(step):
            step *= 2
        return step

    def _is_sparse(self, step: int) -> bool:
        return step * (self._right - self._left) >= _SPARSE * (self.end - self.start)

    def _tree_pages(self) -> list[int]:
        return self._multiples(self._page_step)

    def _chunks(self) -> list[int]:
        return self._multiples(self.chunk) if self.chunk != self.tree_page and self._is_sparse(self.chunk) else []

    def _multiples(self, step: int) -> list[int]:
        return [depth for depth in range(-(-self.start // step) * step, self.end + 1, step) if depth]

    def _passes(self) -> list[int]:
        return [depth for depth in self.passes if self.start <= depth <= self.end]

    def _numbers(self, depths: Iterable[int]) -> str:
        """Numbers centred over their depths; where two would touch, the earlier of `depths` is written."""
        line = " " * self.width
        for depth in depths:
            text = str(depth)
            at = min(max(0, self.column(depth) - len(text) // 2), self.width - len(text))
            if not line[max(0, at - 1) : at + len(text) + 1].strip():
                line = line[:at] + text + line[at + len(text) :]
        return line


def _zoom(cell: Cell, marks: dict[int, list[str]], width: int) -> _Axis:
    """The axis around all marks, with a margin; whole where little would be left out."""
    passes = list(accumulate(cell["prefill"]))
    if cell["decode"]:
        passes.append(passes[-1] + cell["decode"])
    low, high = min(marks), max(marks)
    total = max(cell["length"], high)
    margin = (high - low) // 4 or cell["tree_page"]
    start, end = max(0, low - margin), min(total, high + margin)
    visible = end - start
    if start <= visible // 2:
        start = 0
    if total - end <= visible // 2:
        end = total
    return _Axis(width, start, end, total, cell["chunk"], cell["tree_page"], tuple(passes))


def _marks(cell: Cell) -> dict[int, list[str]]:
    """What stands at each depth. There is always one: the cached tokens."""
    marks: defaultdict[int, list[str]] = defaultdict(list)
    marks[cell["cached_tokens"]].append("cached tokens")
    donation = _donation(cell)
    if donation:
        marks[donation["node_depth"]].append("node")
        refused = "" if donation["fate"] == "attached" else f" ({_plain(donation['fate'])})"
        marks[donation["claimed_depth"]].append(f"claimed{refused}")
    if cell["claimed_depth"] is not None and (not donation or donation["claimed_depth"] != cell["claimed_depth"]):
        marks[cell["claimed_depth"]].append("claimed")
    located = cell["located"] or {"depth": None, "windows": []}
    windows = located["windows"]
    window = min(windows, key=lambda depth: abs(depth - cell["cached_tokens"])) if windows else None
    _measured(marks, "state", cell["state_depth"], located["depth"])
    if (cell["conv_depth"], window) != (cell["state_depth"], located["depth"]):
        _measured(marks, "window", cell["conv_depth"], window)
    if cell["reusable_tokens"] > cell["cached_tokens"]:
        marks[cell["reusable_tokens"]].append("reusable")
    for depth in (cell["verdict"]["start"], cell["verdict"]["end"]):
        if depth is not None and depth not in marks:
            marks[depth].append("end of the span")
    if max(marks) > cell["length"]:
        marks[cell["length"]].append("end of the prompt")
    return marks


def _measured(marks: dict[int, list[str]], what: str, tag: int | None, numbers: int | None) -> None:
    """The two accounts of one thing: its tag, and its numbers."""
    if tag is not None and tag == numbers:
        marks[tag].append(f"{what} by tag and numbers")
        return
    if tag is not None:
        marks[tag].append(f"{what} by tag")
    if numbers is not None:
        marks[numbers].append(f"{what} by numbers")


def _donation(cell: Cell) -> dict[str, Any] | None:
    """The donation that matters: the one that was resumed from, unless a later one was not taken."""
    donations = cell["donations"]
    if not donations or donations[-1]["fate"] != "attached":
        return donations[-1] if donations else None
    own = [each for each in donations if each["claimed_depth"] == cell["claimed_depth"] and each["fate"] == "attached"]
    return (own or donations)[-1]


def _span(verdict: dict[str, Any], axis: _Axis) -> list[str]:
    """The tokens that the verdict is about."""
    if verdict["start"] is None:
        return []
    start, end = axis.column(verdict["start"]), axis.column(verdict["end"])
    text = f"{verdict['tokens']} {_plain(verdict['kind'])} [{verdict['start']}, {verdict['end']})"
    return axis.placed(start, max(start + 1, end), _FILL.get(verdict["kind"], "="), text)


def _plain(text: str) -> str:
    """Names of kinds and fates are ours, but a document is a file that anyone may have written."""
    return one_line(text).encode("ascii", "backslashreplace").decode()


def _fitting(line: str, width: int) -> list[str]:
    return [line] if len(line) <= width else textwrap.wrap(line, width)

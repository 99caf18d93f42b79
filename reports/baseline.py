"""What an earlier run found, kept in a small file, so that a later run fails on what is new and not on what is known.

Two things regress: findings (a cell that was right goes wrong, or a wrong one gets worse) and reuse (fewer cached
tokens than before, even where what is computed is right: a cache that silently stops hitting).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checker.verdict import Kind
from . import files

FORMAT = 1
"""Raised when a field changes its meaning."""

KEY = ("chunk", "page", "dcp", "interval", "prompt", "stream")
"""What tells cells apart, and the order in which they stand in the file."""

COMPARED = ("model", "dtype")
"""What a baseline and a run must have in common to be compared; the engine, too, but for its release."""

NOTED = ("engine", "guard", "seed")
"""What may differ and is said: an upgrade of the engine is what a baseline is there for."""

SEVERITY = (
    Kind.OK,
    Kind.REUSE_LOST,
    Kind.REFUSED,
    Kind.PRECISION,
    Kind.SKIPPED,
    Kind.DOUBLE_COMPUTED,
    Kind.UNWRITTEN,
    Kind.FOREIGN,
    Kind.DISAGREEMENT,
)
"""Kinds from bad to worse: lost speed, then rounding, then some tokens wrong, then a state that is nobody's."""

COUNTED_ALIKE = (frozenset({Kind.REUSE_LOST, Kind.REFUSED}), frozenset({Kind.SKIPPED, Kind.DOUBLE_COMPUTED}))
"""Kinds that count the same: tokens of lost speed, and wrong tokens. More of them is worse, whichever the kind."""

STANDINGS = ("new", "worse", "reuse lost", "better", "known")
"""What a cell can be to a baseline, if it is anything."""

REGRESSIONS = STANDINGS[:3]
"""What fails a run, strict or not."""

Document = dict[str, Any]
Entry = dict[str, Any]


class BaselineError(ValueError):
    """A baseline that cannot be made, read or compared with; the message says why and how to mend it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run against a baseline. Each list holds (cell, why); a stale one holds the baseline's entry."""

    new: list[tuple[Entry, str]] = field(default_factory=list)
    worse: list[tuple[Entry, str]] = field(default_factory=list)
    reuse_lost: list[tuple[Entry, str]] = field(default_factory=list)
    better: list[tuple[Entry, str]] = field(default_factory=list)
    known: list[tuple[Entry, str]] = field(default_factory=list)
    stale: list[tuple[Entry, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def failed(self, strict: bool) -> bool:
        """Is there a regression? With `strict`, an entry that no longer says what is, counts as one."""
        return bool(self.regressions or (strict and (self.stale or self.better)))

    @property
    def regressions(self) -> list[tuple[Entry, str]]:
        """What fails a run, strict or not."""
        return self.new + self.worse + self.reuse_lost

    @property
    def conclusion(self) -> str:
        """The counts in one line."""
        names = ("new", "worse", "reuse_lost", "better", "known", "stale")
        counts = {name: len(getattr(self, name)) for name in names}
        said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
        return f"{said}." if said else "nothing changed."


def make(document: Document) -> dict[str, Any]:
    """The baseline of a run. Raises BaselineError for a run that shows nothing, or not all of it."""
    cells = document["cells"]
    failed = [cell for cell in cells if cell["verdict"]["kind"] == Kind.ENGINE_FAILURE]
    if not document["complete"]:
        raise BaselineError("the run was stopped before it was complete: no baseline was written; run it to its end")
    if failed:
        reason = failed[0]["verdict"]["reason"]
        raise BaselineError(f"{len(failed)} cells failed in the engine ({reason}): no baseline was written")
    if document["exit_status"] == 3:
        raise BaselineError("nothing was resumed anywhere: no baseline was written; choose longer prompts")
    under = document["under_test"]
    return {
        "baseline": FORMAT,
        "made_with": dict(sorted(under["versions"].items())),
        "under_test": {name: under[name] for name in (*NOTED, *COMPARED)},
        "cells": sorted((_entry(cell) for cell in cells), key=_key),
    }


def write(baseline: dict[str, Any], path: Path) -> None:
    """Write it with one cell a line, so that a change of one cell is a change of one line."""
    head = {name: value for name, value in baseline.items() if name != "cells"}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    cells = ",\n".join(f"  {json.dumps(entry)}" for entry in baseline["cells"])
    files.write_text("\n".join(["{", *lines, ' "cells": [', cells, " ]", "}"]) + "\n", path)


def read(path: Path) -> dict[str, Any]:
    """Read a baseline. Raises BaselineError; the file is never touched."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BaselineError(f"there is no baseline {path}: write it with mamba-replay-check baseline") from None
    except OSError as error:
        raise BaselineError(f"cannot read the baseline {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"the baseline {path} is not JSON ({error}): write it anew") from None
    version = content.get("baseline") if isinstance(content, dict) else None
    if version != FORMAT:
        raise BaselineError(f"{path} is not a baseline of format {FORMAT} (it says {version!r}): write it anew")
    wrong = _wrong(content)
    if wrong:
        raise BaselineError(f"the baseline {path} was damaged: {wrong}; write it anew")
    return content


def check_comparable(baseline: dict[str, Any], under_test: Mapping[str, Any]) -> None:
    """Raise BaselineError unless the two can be compared; this much is known before a run."""
    made_with = baseline["under_test"]
    differing = [name for name in COMPARED if made_with[name] != under_test[name]]
    if _without_release(made_with["engine"]) != _without_release(under_test["engine"]):
        differing.insert(0, "engine")
    if differing:
        name = differing[0]
        raise BaselineError(
            f"the baseline was made with {name} {made_with[name]}, and this run has {under_test[name]}: "
            "compare like with like, or write a baseline of its own"
        )


def compare(baseline: dict[str, Any], document: Document) -> Comparison:
    """What is new, worse, better, known or gone. Raises BaselineError if the two are not of the same model."""
    before, under = baseline["under_test"], document["under_test"]
    check_comparable(baseline, under)
    found = Comparison()
    for name in NOTED:
        if before[name] != under[name]:
            found.notes.append(f"the baseline was made with {name} {before[name]}, this run with {under[name]}")
    for name, version in baseline["made_with"].items():
        if (now := under["versions"].get(name)) != version:
            found.notes.append(f"the baseline was made with {name} {version}, this run with {now}")
    left = {_key(entry): entry for entry in baseline["cells"]}
    for cell in document["cells"]:
        _compare(left.pop(_key(cell), None), cell, found)
    if document["complete"]:  # of a run that was stopped nobody knows what else it would have checked
        found.stale.extend((entry, "this run did not check it") for entry in left.values())
    return found


def record(comparison: Comparison, document: Document, strict: bool) -> None:
    """Write the comparison into the document that it was made with, so that every report can tell known from new."""
    for standing in STANDINGS:
        for cell, why in getattr(comparison, standing.replace(" ", "_")):
            cell["against_baseline"] = {"standing": standing, "why": why}
    document["baseline"] = {
        "conclusion": comparison.conclusion,
        "exit_status": exit_status(comparison, document, strict),
        "strict": strict,
        "notes": list(comparison.notes),
        "stale": [{name: entry[name] for name in KEY} for entry, _ in comparison.stale],
    }


def exit_status(comparison: Comparison, document: Document, strict: bool) -> int:
    """1 for a regression; what is inconclusive stays so, also beside known findings; else 0, whatever is known."""
    if comparison.failed(strict):
        return 1
    engine_failed = any(cell["verdict"]["kind"] == Kind.ENGINE_FAILURE for cell in document["cells"])
    return 3 if document["exit_status"] == 3 or engine_failed or not document["complete"] else 0


def _compare(before: Entry | None, cell: Entry, found: Comparison) -> None:
    now, text = _entry(cell), cell["verdict"]["text"]
    kind = Kind(cell["verdict"]["kind"])
    if before is None:
        if kind.is_discrepancy:
            found.new.append((cell, text))
        return
    if not kind.proves_something:
        if before.get("finding") != Kind.VACUOUS:
            found.new.append((cell, f"it was checked before, and now proves nothing: {text}"))
        return
    was, is_now = _rank(before), _rank(now)
    if is_now > was or _counts_more(before, now):
        (found.worse if was > (0, 0) else found.new).append((cell, f"{_said(before)} before, now {text}"))
    elif now["cached_tokens"] < before["cached_tokens"]:
        found.reuse_lost.append((cell, f"{before['cached_tokens']} cached tokens before, now {now['cached_tokens']}"))
    elif is_now < was or now["cached_tokens"] > before["cached_tokens"]:
        cached = f"{before['cached_tokens']} cached tokens before, now {now['cached_tokens']}"
        found.better.append((cell, f"{_said(before)} before, now {text}" if is_now < was else cached))
    elif kind.is_discrepancy:
        found.known.append((cell, text))


def _entry(cell: Entry) -> Entry:
    kind = cell["verdict"]["kind"]
    finding = {} if kind == Kind.OK else {"finding": kind, "tokens": cell["verdict"]["tokens"]}
    return {name: cell[name] for name in KEY} | {"cached_tokens": cell["cached_tokens"]} | finding


def _key(cell: Entry) -> tuple:
    return tuple(cell[name] for name in KEY)


def _rank(entry: Entry) -> tuple[int, int]:
    """How bad an entry is: its kind, then its tokens. A vacuous one says nothing bad."""
    kind = Kind(entry.get("finding", Kind.OK))
    return (SEVERITY.index(kind), entry["tokens"]) if kind in SEVERITY[1:] else (0, 0)


def _counts_more(before: Entry, now: Entry) -> bool:
    kinds = {entry.get("finding", Kind.OK) for entry in (before, now)}
    return any(kinds <= alike for alike in COUNTED_ALIKE) and now["tokens"] > before["tokens"]


def _without_release(engine: str) -> str:
    """model:sglang-0.5.17 and model:sglang-0.5.23 are one engine in two releases; sglang==0.5.17 and sglang another."""
    return re.sub(r"(-|==)[0-9][0-9a-z.]*(?=$| )", "", engine)


def _said(entry: Entry) -> str:
    tokens = f" {entry['tokens']}" if entry.get("tokens") else ""
    return f"{entry.get('finding', Kind.OK)}{tokens}"


def _wrong(content: dict[str, Any]) -> str:
    """What is wrong with the fields of a baseline, or ""."""
    under, made, cells = (content.get(name) for name in ("under_test", "made_with", "cells"))
    known = isinstance(under, dict) and set(under) == {*COMPARED, *NOTED} and isinstance(under["engine"], str)
    if not known or not isinstance(made, dict):
        return "it does not say what was under test, and with what"
    if not isinstance(cells, list):
        return "it has no list of cells"
    needed = {*KEY, "cached_tokens"}
    for number, entry in enumerate(cells, 1):
        if not isinstance(entry, dict) or set(entry) - {"finding", "tokens"} != needed:
            return f"cell {number} has not the fields {', '.join(sorted(needed))}"
        if ("finding" in entry) != ("tokens" in entry) or entry.get("finding", "ok") not in list(Kind):
            return f"cell {number} has no finding that there is"
        for name, value in entry.items():
            if type(value) is not (str if name in ("prompt", "stream", "finding") else int):
                return f"cell {number} has {name} {value!r}"
    keys = [_key(entry) for entry in cells]
    if keys != sorted(set(keys)):
        return "its cells are not sorted, or one stands there twice"
    return ""

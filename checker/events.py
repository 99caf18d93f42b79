"""What a check tells its listeners while it runs. Terminal, files and reports are listeners; none reaches into it."""

from __future__ import annotations

from dataclasses import dataclass

from .cells import CellResult


@dataclass(frozen=True, slots=True)
class Progress:
    """What the check is doing: `done` of `total` steps of this kind."""

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A cell is finished."""

    result: CellResult


@dataclass(frozen=True, slots=True)
class Preparing:
    """Something is done before the check that may take long, such as installing an engine.

    detail: the last that was heard of it.
    """

    what: str
    detail: str = ""


Event = Progress | Preparing | Checked

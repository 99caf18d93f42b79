"""The check as one Python call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checker.cells import Run
from ..checker.events import Checked
from ..checker.geometry import Geometry
from ..engines.base import Engine
from .config import Choices, load
from .document import run_as_dict
from .findings import concerns, discrepancies, geometry, prompt
from .ruler import ruler
from .runner import prepare

_SIZES = ("chunk", "page", "dcp", "interval")
_OTHERS = ("model", "seed", "dtype", "guard", "share", "device", "executor")

SHOWN = 3
"""Findings that are told in full when a replay fails."""


class ReplayError(AssertionError):
    """The engine is not right, or nothing showed that it is. The message tells it, with rulers and reproduce lines."""


def replay(engine: str | Callable[[Geometry], Engine], **choices: Any) -> Run:
    """Check an engine, a name or what makes one from a Geometry, and return the run if all that was checked is right.

    choices: as on the command line: chunk, page, dcp, interval (a number, a list or text), prompt (text or a list of
    texts), model, seed, dtype, guard, share, device, executor. Raises ReplayError, ConfigError for a choice that cannot
    be, or TypeError for one that there is not.
    """
    own = None if isinstance(engine, str) else engine
    name = engine if own is None else f"python:{engine.__module__}:{engine.__qualname__}"
    config = load(_choices(name, choices), engine_is_given=own is not None)
    run, events = prepare(config, own)
    run.results += [event.result for event in events if isinstance(event, Checked)]
    order = {id(cell): place for place, cell in enumerate(config.cells)}
    run.results.sort(key=lambda result: order[id(result.cell)])
    run.complete = True
    if run.exit_status:
        raise ReplayError(_story(run_as_dict(run)))
    return run


def _choices(engine: str, given: dict[str, Any]) -> Choices:
    unknown = set(given) - {*_SIZES, *_OTHERS, "prompt"}
    if unknown:
        accepted = ", ".join((*_SIZES, "prompt", *_OTHERS))
        raise TypeError(f"replay has no choice {min(unknown)!r}: it takes {accepted}")
    sizes = {name: ",".join(map(str, _listed(given[name]))) for name in _SIZES if name in given}
    others = {name: given[name] for name in _OTHERS if name in given}
    return Choices(engine=engine, prompts=tuple(map(str, _listed(given.get("prompt", ())))), **sizes, **others)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, range)) else [value]


def _story(document: dict[str, Any]) -> str:
    """What a failing test prints: what makes a pass meaningless, then the findings."""
    lines = [concern.text for concern in concerns(document)]
    found = list(discrepancies(document))
    for rule, cell in found[:SHOWN]:
        lines += ["", f"{rule.id} {cell['verdict']['text']}", f"  {geometry(cell)}, prompt {prompt(cell)}"]
        lines += [f"  {line}" for line in ruler(cell)]
        lines += [f"  reproduce: {cell['reproduce']}"]
    if len(found) > SHOWN:
        lines += ["", f"... and {len(found) - SHOWN} more findings"]
    return "\n".join(lines).strip()

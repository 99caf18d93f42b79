"""The check as one Python call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checker.cells import Run
from ..checker.events import Checked
from ..checker.geometry import Geometry
from ..checker.verdict import Kind
from ..engines.base import Engine
from .config import Choices, ConfigError, load
from .document import run_as_dict
from .findings import concerns, discrepancies, geometry, prompt
from .ruler import ruler
from .runner import prepare

_SIZES = ("chunk", "page", "dcp", "interval")
_OTHERS = (
    "engine_python",
    "payload",
    "engine_timeout",
    "model",
    "seed",
    "dtype",
    "guard",
    "share",
    "device",
    "executor",
)

SHOWN = 3
"""Findings that are told in full when a replay fails."""


_BY_TEST = "run this test again (a command line can only name engines that are classes at the top of a module)"


class ReplayError(AssertionError):
    """The engine is not right, or nothing showed that it is. The message tells it, with rulers and reproduce lines."""


def replay(engine: str | Callable[[Geometry], Engine], **choices: Any) -> Run:
    """Check an engine, a name or what makes one from a Geometry, and return the run if all that was checked is right.

    choices: as on the command line: chunk, page, dcp, interval (a number, a list or text), prompt (text or a list of
    texts), engine_python, engine_timeout, payload, model, seed, dtype, guard, share, device, executor. Raises
    ReplayError, ConfigError for a choice that cannot be, or TypeError for one that there is not. Whoever names prompts
    wants them resumed: one that cannot be is an error here, while the default prompts hold some that cannot on purpose.
    """
    own = None if isinstance(engine, str) else engine
    if own is not None and (isinstance(own, Engine) or not callable(own)):
        raise TypeError(f"{own!r} makes no engines: give a class, or what makes a fresh engine from a Geometry")
    if own is not None and choices.get("guard"):
        raise ConfigError("guard is a choice of the modelled engines; an engine of one's own has its own rules")
    config = load(_choices(_name(engine), choices), engine_is_given=own is not None)
    with prepare(config, own) as (run, events):
        run.results += [event.result for event in events if isinstance(event, Checked)]
    order = {id(cell): place for place, cell in enumerate(config.cells)}
    run.results.sort(key=lambda result: order[id(result.cell)])
    run.complete = True
    vacuous = any(verdict.kind is Kind.VACUOUS for verdict in run.verdicts)
    if run.exit_status or (vacuous and config.choices.prompts):
        raise ReplayError(_story(run_as_dict(run), reachable=own is None or _is_reachable(own)))
    return run


def _name(engine: str | Callable[[Geometry], Engine]) -> str:
    """What a report calls it: as the command line would, where that can reach it."""
    if isinstance(engine, str):
        return engine
    kind = engine if hasattr(engine, "__qualname__") else type(engine)
    return f"python:{kind.__module__}:{kind.__qualname__}"


def _is_reachable(engine: Callable[[Geometry], Engine]) -> bool:
    """Can `python:MODULE:CLASS` name it? Not a class within a function, nor a function."""
    return isinstance(engine, type) and "." not in engine.__qualname__


def _choices(engine: str, given: dict[str, Any]) -> Choices:
    unknown = set(given) - {*_SIZES, *_OTHERS, "prompt"}
    if unknown:
        accepted = ", ".join((*_SIZES, "prompt", *_OTHERS))
        raise TypeError(f"replay has no choice {min(unknown)!r}: it takes {accepted}")
    sizes = {name: ",".join(map(str, _listed(given[name]))) for name in _SIZES if name in given}
    others = {name: given[name] for name in _OTHERS if name in given}
    for name in ("model", "dtype", "device", "executor"):
        if not isinstance(others.get(name, ""), str):
            raise TypeError(f"{name}={others[name]!r} cannot be used: give a name")
    return Choices(engine=engine, prompts=tuple(map(str, _listed(given.get("prompt", ())))), **sizes, **others)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, range)) else [value]


def _story(document: dict[str, Any], reachable: bool) -> str:
    """What a failing test prints: what makes a pass meaningless, then the findings.

    reachable: a command line can name the engine.
    """
    lines = [concern.text for concern in concerns(document)]
    found = list(discrepancies(document))
    for rule, cell in found[:SHOWN]:
        lines += ["", f"{rule.id} {cell['verdict']['text']}", f"  {geometry(cell)}, prompt {prompt(cell)}"]
        lines += [f"  {line}" for line in ruler(cell)]
        lines += [f"  reproduce: {cell['reproduce'] if reachable else _BY_TEST}"]
    if len(found) > SHOWN:
        lines += ["", f"... and {len(found) - SHOWN} more findings"]
    return "\n".join(lines).strip()

"""Which engines there are, by the names that the command line uses."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines.base import Engine
from mamba_replay_check.engines.recipes import RECIPES, EnvironmentFailure
from mamba_replay_check.engines.recipes import find as find_release
from mamba_replay_check.engines.sglang_model import SGLangModel
from mamba_replay_check.engines.sglang_rules import RELEASES, Rules

Maker = Callable[[Geometry, bool], Engine]


class UnknownEngine(ValueError):
    """A name that no engine has; the message gives the nearest ones, and all of them."""

    def __init__(self, name: str) -> None:
        known = [*available(), *(f"{recipe.engine}=={release}" for recipe in RECIPES for release in recipe.tried)]
        nearest = get_close_matches(name, known, n=2, cutoff=0.5)
        hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
        super().__init__(f"there is no engine {name!r}.{hint} Available: {', '.join(known)}")
        self.name = name


def _model_of(rules: Rules) -> Maker:
    def make(geometry: Geometry, guard: bool) -> Engine:
        return SGLangModel(geometry, rules, guard)

    return make


_MAKERS: dict[str, Maker] = {f"model:sglang-{rules.release}": _model_of(rules) for rules in RELEASES}

NEWEST = f"model:sglang-{RELEASES[-1].release}"
"""The engine that is checked when nobody names one."""


COMMAND = "cmd:"
"""A name `cmd:COMMAND` is an engine behind a driver that this command line starts (`--engine-cmd`)."""

DRIVERS = Path(__file__).with_name("drivers")
"""The drivers of real engines, each a folder of scripts that the engine's own Python runs."""

OWN = "python:"
"""A name `python:MODULE:CLASS` is a subclass of `Engine` of the user's, made with a Geometry alone."""


class EngineError(ValueError):
    """An engine of the user's that cannot be had; the message says what is missing."""


def _own(name: str) -> Callable[[Geometry], Engine]:
    """The user's class behind `python:MODULE:CLASS`. Modules are also looked for in the current folder."""
    module_name, _, class_name = name.removeprefix(OWN).partition(":")
    if not module_name or not class_name:
        raise EngineError(f"engine {name!r}: write python:MODULE:CLASS, e.g. python:my_engine:MyEngine")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise EngineError(
            f"engine {name!r}: importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    made = getattr(module, class_name, None)
    if not (isinstance(made, type) and issubclass(made, Engine)):
        raise EngineError(f"engine {name!r}: {module_name} has no class {class_name} that is an engines.base.Engine")

    return made


def is_external(name: str) -> bool:
    """Does this engine run in a process of its own?"""
    return name.startswith(COMMAND) or bool(_real(name))


def _real(name: str) -> str:
    """The engine of a name such as sglang==0.5.18 or sglang, "" if it is none of these."""
    return next((r.engine for r in RECIPES if re.match(rf"{r.engine}(?![a-z0-9_-])", name)), "")


def check_external(name: str, python: Path | None) -> None:
    """Raise EngineError for an external engine that cannot be started; nothing is started or installed for it."""
    if name.startswith(COMMAND):
        _words(name)
        if python is not None:
            raise EngineError("--engine-python is about --engine sglang or vllm; a driver's command names its own")
        return
    engine, (release, *_) = _real(name), _split(name)
    if release != engine:
        try:
            find_release(release)
        except EnvironmentFailure as error:
            raise EngineError(str(error)) from None
        if python is not None:
            raise EngineError(f"--engine-python holds a release of its own: write --engine {engine}, not {release}")
    if python is not None and shutil.which(python) is None:
        raise EngineError(f"--engine-python {python}: there is no such program")


def driver_command(
    name: str, python: Path | None = None, progress: Callable[[str, str], None] = lambda step, line: None
) -> list[str]:
    """What to start for an external engine; a named release is installed first, if it is not yet.

    python: the interpreter that has the engine, by default the one that runs this. progress: told what is being
    installed. Raises EngineError.
    """
    check_external(name, python)
    if name.startswith(COMMAND):
        return _words(name)
    engine, (release, *options) = _real(name), _split(name)
    driver = [str(DRIVERS / engine), *options]
    if release == engine:
        return [str(python or sys.executable), *driver]
    from mamba_replay_check.engines.environments import ensure  # what it loads is needed for nothing else

    try:
        # -E and -s: what the caller's environment adds to Python stays out of ours.
        return [str(ensure(release, progress)), "-E", "-s", *driver]
    except EnvironmentFailure as error:
        raise EngineError(str(error)) from None


def _split(name: str) -> list[str]:
    """A real engine and the options of its driver: `vllm==0.32.0 --raised`."""
    return _as_a_shell(name, "--engine")


def _as_a_shell(text: str, option: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise EngineError(f"{option}: {error}: quote it as for a shell") from None


def _words(name: str) -> list[str]:
    command = _as_a_shell(name.removeprefix(COMMAND), "--engine-cmd")
    if not command:
        raise EngineError("--engine-cmd is empty: give the command line that starts the driver")
    if shutil.which(command[0]) is None:
        raise EngineError(f"--engine-cmd: there is no program {command[0]!r} that could be started")
    return command


def available() -> list[str]:
    """Every name that `create` accepts, oldest release first."""
    return list(_MAKERS)


def find(name: str, guard: bool = False) -> Callable[[Geometry], Engine]:
    """What makes engines of this name. Raises UnknownEngine, or EngineError for one of the user's.

    guard: have the insert refuse a state that does not stand where its node ends.
    """
    if name.startswith(OWN):
        if guard:
            raise EngineError(f"--guard is a choice of the modelled engines; {name} has its own rules")
        return _own(name)
    if name not in _MAKERS:
        raise UnknownEngine(name)
    return partial(_MAKERS[name], guard=guard)


def create(name: str, geometry: Geometry, guard: bool = False) -> Engine:
    """A fresh engine with an empty cache; see `find`."""
    return find(name, guard)(geometry)

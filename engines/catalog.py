"""Which engines there are, by the names that the command line uses."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines.base import Engine
from mamba_replay_check.engines.sglang_model import SGLangModel
from mamba_replay_check.engines.sglang_rules import RELEASES, Rules

Maker = Callable[[Geometry, bool], Engine]


class UnknownEngine(ValueError):
    """A name that no engine has; the message gives the nearest ones, and all of them."""

    def __init__(self, name: str) -> None:
        nearest = get_close_matches(name, available(), n=2, cutoff=0.5)
        hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
        super().__init__(f"there is no engine {name!r}.{hint} Available: {', '.join(available())}")
        self.name = name


def _model_of(rules: Rules) -> Maker:
    def make(geometry: Geometry, guard: bool) -> Engine:
        return SGLangModel(geometry, rules, guard)

    return make


_MAKERS: dict[str, Maker] = {f"model:sglang-{rules.release}": _model_of(rules) for rules in RELEASES}

NEWEST = f"model:sglang-{RELEASES[-1].release}"
"""The engine that is checked when nobody names one."""


def available() -> list[str]:
    """Every name that `create` accepts, oldest release first."""
    return list(_MAKERS)


def create(name: str, geometry: Geometry, guard: bool = False) -> Engine:
    """A fresh engine with an empty cache. Raises UnknownEngine.

    guard: have the insert refuse a state that does not stand where its node ends.
    """
    if name not in _MAKERS:
        raise UnknownEngine(name)
    return _MAKERS[name](geometry, guard)

"""Random request histories, played on two engines at once to find where they part."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines.base import Engine, EngineFailure, Snapshots
from mamba_replay_check.engines.process import DriverError
from mamba_replay_check.engines.sglang_rules import EngineStopped

LONGEST = 16_000
"""No prompt of a history is longer, decoded tokens included."""


@dataclass(frozen=True, slots=True)
class Noted(Snapshots):
    """A pass over [start, end) whose payloads are what was asked for: (start, end, index, conv_end)."""

    start: int
    end: int
    chunk: int
    taken: list[tuple]

    def take(self, index: int | None, conv_end: int) -> tuple:
        if index is not None and not 0 <= index * self.chunk < self.end - self.start:
            raise IndexError(f"a pass over [{self.start}, {self.end}) has no h[{index}]")
        self.taken.append((self.start, self.end, index, conv_end))
        return self.taken[-1]


@dataclass
class Told:
    """One engine, and all that it said and took."""

    engine: Engine
    chunk: int
    taken: list[tuple] = field(default_factory=list)
    stopped: str = ""

    def call(self, name: str, **values: Any) -> Any:
        """What is to be compared of the answer, or None once the engine has stopped."""
        if name in ("extend", "decode"):
            start, end = values.pop("span")
            values |= {"snapshots": Noted(start, end, self.chunk, self.taken)}
            values |= {"start": start, "end": end} if name == "extend" else {}
        try:
            answer = getattr(self.engine, name)(**values)
        except DriverError:
            raise  # a driver that breaks is nobody's rule
        except (EngineFailure, EngineStopped) as stopped:
            self.stopped = str(stopped)
            return None
        return answer if name == "match" else None


class Parted(Exception):
    """Where the two do not say the same: (what, the one's, the other's)."""


@dataclass
class Both:
    """Two engines that are asked the same."""

    one: Told
    other: Told
    log: list[str] = field(default_factory=list)

    def call(self, name: str, **values: Any) -> Any:
        """The answer of both. Raises Parted, or StopIteration where both have stopped."""
        shown = {**values, "tokens": len(values["tokens"])} if "tokens" in values else values
        self.log.append(f"{name} {shown}")
        said, answer = self.one.call(name, **values), self.other.call(name, **values)
        if self.one.stopped or self.other.stopped:
            if bool(self.one.stopped) != bool(self.other.stopped):
                raise Parted("stops", self.one.stopped, self.other.stopped)
            raise StopIteration
        for what, a, b in (
            (name, said, answer),
            ("takes", self.one.taken[-1:], self.other.taken[-1:]),
            ("donates", self.one.engine.donations[-1:], self.other.engine.donations[-1:]),
        ):
            if a != b:
                raise Parted(what, a, b)
        return said


def random_geometry(rng: random.Random) -> Geometry:
    """Pages of 1 to 128 tokens over 1 to 8 ranks."""
    chunk = rng.choice([64, 64, 64, 128])
    return Geometry.with_default_interval(chunk, rng.choice([1, 16, 32, 64, 64, 128]), rng.choice([1, 2, 4, 8]))


def play(rng: random.Random, both: Both, geometry: Geometry, on_pages: bool = False) -> None:
    """A random history: turns that continue, fork or repeat earlier prompts; prefill cut on and off the page.

    on_pages: cut prefill at whole pages only, as a scheduler does.
    """
    grid, page = geometry.checkpoint_grid, geometry.page
    lengths = [1, 2, 63, 64, 65, grid - 1, grid, grid + 1, grid + page]
    known: list[list[int]] = [[]]
    for turn in range(rng.randint(2, 5)):
        stem = rng.choice(known)
        keep = rng.choice([len(stem), rng.randint(0, len(stem)), len(stem) // grid * grid])
        grown = rng.choice([rng.choice(lengths), rng.randint(1, 3 * grid)])
        prompt = stem[: min(keep, 6_000)] + [1_000_000 * (turn + 1) + n for n in range(grown)]
        found = both.call("match", tokens=prompt)
        start = found.cached_tokens
        while start < len(prompt):
            step = rng.choice([len(prompt) - start, rng.choice(lengths), rng.randint(1, len(prompt) - start)])
            end = min(start + step, len(prompt))
            if on_pages and end < len(prompt):
                end = min(max(end // page * page, start + page), len(prompt))
            both.call("extend", request=found.request, span=(start, end))
            start = end
        steps = rng.choice([0, 0, 0, 1, rng.randint(2, 300)])
        decoded = [10_000_000 + 1_000 * turn + n for n in range(steps)]
        for token in decoded:
            both.call("decode", request=found.request, token=token, span=(start, start + 1))
            start += 1
        both.call("finish", request=found.request)
        known.append(prompt + decoded)

"""Random request histories, played on two engines at once to find where they part."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from mamba_replay_check.checker.geometry import Geometry, floor_to
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

    def cut(self, end: int) -> tuple:
        if not self.start < end <= self.end:
            raise IndexError(f"a pass over [{self.start}, {self.end}) cannot end at {end}")
        self.taken.append((self.start, end, None, end))
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
            self.log.append("= both stopped")
            raise StopIteration
        for what, a, b in (
            (name, said, answer),
            ("takes", self.one.taken[-1:], self.other.taken[-1:]),
            ("donates", self.one.engine.donations[-1:], self.other.engine.donations[-1:]),
        ):
            if a != b:
                raise Parted(what, a, b)
        if name == "match" and said.cached_tokens:
            self.log.append("= resumed right" if said.cached_tokens == said.claimed_depth else "= resumed wrong")
        return said


def random_geometry(rng: random.Random) -> Geometry:
    """Kernel chunks of 64 to 256, pages of 1 to 256 tokens over 1 to 8 ranks, decode intervals from the least legal."""
    chunk = rng.choice([64, 64, 64, 128, 256])
    page = rng.choice([1, 16, 32, 64, 64, 128, 256])
    interval = max(chunk, page) * rng.choice([1, 1, 2, 4])
    return Geometry(chunk, page, rng.choice([1, 2, 4, 8]), interval)


@dataclass
class Running:
    """A request of a random history: what of its prompt has run, and the decode steps that are to come."""

    number: int
    prompt: list[int]
    absorbed: int
    decoded: list[int]


def play(rng: random.Random, both: Both, geometry: Geometry) -> None:
    """A random history: turns that continue, fork or repeat earlier prompts, now and then two at a time; prefill is
    cut on and off the page."""
    known: list[list[int]] = [[]]
    running: list[Running] = []
    for turn in range(rng.randint(2, 6)):
        if running and rng.random() < 0.8:
            while running:
                step(rng, both, geometry, running, known)
        running.append(admit(rng, both, geometry, known, turn))
        for _ in range(rng.randint(0, 4)):
            if running:
                step(rng, both, geometry, running, known)
    while running:
        step(rng, both, geometry, running, known)


def admit(rng: random.Random, both: Both, geometry: Geometry, known: list[list[int]], turn: int) -> Running:
    """One more request, which shares a beginning with an earlier one."""
    stem = rng.choice(known)
    keep = rng.choice([len(stem), rng.randint(0, len(stem)), floor_to(len(stem), geometry.tree_page)])
    stem = stem[: min(keep, 6_000)]
    # A decode step of a real engine costs most: cross an interval or two, but only from a prompt that ends near one.
    near = -len(stem) % geometry.interval + geometry.interval - rng.randint(0, 40)
    grown = rng.choice([rng.choice(lengths(geometry)), rng.randint(1, 3 * geometry.checkpoint_grid), near])
    prompt = stem + [1_000_000 * (turn + 1) + n for n in range(grown)]
    crossing = -len(prompt) % geometry.interval + rng.choice([-1, 0, 1, geometry.interval])
    steps = rng.choice([0, rng.randint(0, 3), crossing if 0 <= crossing < 130 else 1])
    found = both.call("match", tokens=prompt)
    decoded = [10_000_000 + 1_000 * turn + n for n in range(steps)]
    return Running(found.request, prompt, found.cached_tokens, decoded)


def step(rng: random.Random, both: Both, geometry: Geometry, running: list[Running], known: list[list[int]]) -> None:
    """One prefill pass of a running request, or all its decode steps and its end."""
    one = rng.choice(running)
    left = len(one.prompt) - one.absorbed
    if left:
        length = min(left, rng.choice([left, left, rng.choice(lengths(geometry)), rng.randint(1, left)]))
        both.call("extend", request=one.number, span=(one.absorbed, one.absorbed + length))
        one.absorbed += length
        return
    for token in one.decoded:
        both.call("decode", request=one.number, token=token, span=(one.absorbed, one.absorbed + 1))
        one.absorbed += 1
    both.call("finish", request=one.number)
    running.remove(one)
    known.append(one.prompt + one.decoded)


def lengths(geometry: Geometry) -> list[int]:
    """Lengths on and beside what matters."""
    sizes = {1, geometry.chunk, geometry.cache_chunk, geometry.tree_page, geometry.checkpoint_grid}
    return [size + more for size in sorted(sizes) for more in (0, 1, -1) if size + more > 0]

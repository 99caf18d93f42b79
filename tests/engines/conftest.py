"""A kernel that only keeps count: its states are tags that say how many tokens they have absorbed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines.base import Engine, Match, Snapshots


@dataclass(frozen=True, slots=True)
class Tag:
    """A payload: the tokens that its recurrent state and its convolution window have absorbed."""

    state_depth: int
    conv_depth: int


@dataclass(frozen=True, slots=True)
class CountingSnapshots(Snapshots):
    """The states of a pass over [start, end): h[m] at start + m * chunk, and the final one. Decode steps have no h."""

    chunk: int
    start: int
    end: int
    has_h: bool = True

    def take(self, index: int | None, conv_end: int) -> Tag:
        if index is None:
            return Tag(self.end, conv_end)
        depth = self.start + index * self.chunk
        if not self.has_h or not self.start <= depth < self.end:
            raise IndexError(f"no h[{index}] in a pass over [{self.start}, {self.end})")
        return Tag(depth, conv_end)


Serve = Callable[..., Match]


def serve_request(
    engine: Engine, geometry: Geometry, prompt: Sequence[int], cuts: Iterable[int] = (), decoded: Sequence[int] = ()
) -> Match:
    """Serve one request from match to finish; returns its match.

    cuts: depths at which prefill is split into passes; those the cache already covers do not apply.
    """
    match = engine.match(prompt)
    start = match.cached_tokens
    for end in [*sorted({cut for cut in cuts if start < cut < len(prompt)}), len(prompt)]:
        engine.extend(match.request, start, end, CountingSnapshots(geometry.chunk, start, end))
        start = end
    for token in decoded:
        engine.decode(match.request, token, CountingSnapshots(geometry.chunk, start, start + 1, has_h=False))
        start += 1
    engine.finish(match.request)
    return match


@pytest.fixture(scope="session")
def serve() -> Serve:
    """serve(engine, geometry, prompt, cuts, decoded): one request from match to finish."""
    return serve_request

"""The donor's passes, really made one after the other: what `--no-share` replaces the shared trajectory with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..engines.base import Snapshots
from ..kernels.stack import Span, StackState, Trace
from .trajectory import Snapshot, Tag, Trajectory


class DonorPasses:
    """Runs each pass of one donor from the state that the pass before it left, on the donor's own KV."""

    def __init__(self, trajectory: Trajectory) -> None:
        """trajectory: the donor's own; only its tokens are used."""
        self._trajectory = trajectory
        self._last: Trace | None = None

    def offer(self, start: int, end: int) -> Snapshots:
        """Run the pass over tokens [start, end) and offer what it leaves."""
        last = self._last
        assert (last.end if last else 0) == start, "an engine under test serves its first donor from an empty cache"
        self._last = self._run(last, start, end)
        return _PassSnapshots(self._trajectory, self._last, partial(self._run, last, start))

    def _run(self, last: Trace | None, start: int, end: int) -> Trace:
        """The pass over tokens [start, end) behind `last`."""
        tokens = self._trajectory.tokens[start:end]
        span = Span(tokens) if last is None else Span(tokens, start, last.state(None, start), last.caches)
        return self._trajectory.stack.run([span])[0]


class _PassSnapshots(Snapshots):
    """The states of one pass, straight from its kernels."""

    def __init__(self, trajectory: Trajectory, trace: Trace, run: Callable[[int], Trace]) -> None:
        """run: makes the same pass, ended sooner."""
        self._trajectory, self._trace, self._run = trajectory, trace, run

    def take(self, index: int | None, conv_end: int) -> Snapshot:
        trace, chunk = self._trace, self._trajectory.stack.chunk
        depth = trace.end if index is None else trace.start + index * chunk
        return self._snapshot(depth, conv_end, trace.state(index, conv_end))

    def cut(self, end: int) -> Snapshot:
        if not self._trace.start < end <= self._trace.end:
            raise IndexError(f"a pass over [{self._trace.start}, {self._trace.end}) cannot end at {end}")
        trace = self._trace if end == self._trace.end else self._run(end)
        return self._snapshot(end, end, trace.state(None, end))

    def _snapshot(self, depth: int, conv_end: int, state: StackState) -> Snapshot:
        return Snapshot(Tag(self._trajectory.name, depth, conv_end), partial(_same, state))


def _same(state: StackState) -> StackState:
    return state

"""The donor's passes, really made one after the other: what `--no-share` replaces the shared trajectory with."""

from __future__ import annotations

from functools import partial

from ..engines.base import Snapshots
from ..kernels.stack import Span, StackState, Trace
from .trajectory import Snapshot, Tag, Trajectory


class DonorPasses:
    """Runs each pass of one donor from the state that the pass before it left, on the donor's own KV."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._last: Trace | None = None

    def offer(self, start: int, end: int) -> Snapshots:
        """Run the pass over tokens [start, end) and offer what it leaves."""
        last = self._last
        assert (last.end if last else 0) == start, "an engine under test serves its first donor from an empty cache"
        tokens = self._trajectory.tokens[start:end]
        span = Span(tokens) if last is None else Span(tokens, start, last.state(None, start), last.caches)
        self._last = self._trajectory.stack.run([span])[0]
        return _PassSnapshots(self._trajectory, self._last)


class _PassSnapshots(Snapshots):
    """The states of one pass, straight from its kernels."""

    def __init__(self, trajectory: Trajectory, trace: Trace) -> None:
        self._trajectory, self._trace = trajectory, trace

    def take(self, index: int | None, conv_end: int) -> Snapshot:
        trace, chunk = self._trace, self._trajectory.stack.chunk
        depth = trace.end if index is None else trace.start + index * chunk
        state: StackState = trace.state(index, conv_end)
        return Snapshot(Tag(self._trajectory.name, depth, conv_end), partial(_same, state))


def _same(state: StackState) -> StackState:
    return state

"""The check: every cell of the grid driven, computed, measured and judged, in a stream of events.

What cells share is computed once. Cells of one token stream and one kernel chunk share a cold pass, as long as the
longest prompt among them; resumed runs that start from the same state bytes, over the same cached and computed tokens,
are one run; runs go through the model in packed batches. With `share=False` every cell has its own cold run and its
donor's passes are really made, one after the other, so that a test can hold the two ways equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..engines.base import Engine, Snapshots
from ..kernels.mixers import RecurrentState
from ..kernels.stack import Span, Stack, StackState, Trace
from .cells import Cell, CellResult, Replay
from .diff import REFERENCE_TOKENS, Diff, Noise, diff, measure_noise, reference_window
from .donor import DonorPasses
from .drive import drive
from .events import Checked, Event, Progress
from .judge import judge, judge_unresumed
from .ledger import Ledger
from .locate import Location, boundary_distances, locate
from .trajectory import Donor, OfferedSnapshots, Snapshot, Trajectory

BATCH_TOKENS = 8192
"""Tokens per packed forward pass of resumed runs; bounds the memory of a grid whatever its size."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What to check: cells, the tokens of each stream, a fresh engine per cell, and a model per kernel chunk."""

    cells: Sequence[Cell]
    streams: dict[str, Sequence[int]]
    engine: Callable[[Cell], Engine]
    stack: Callable[[int], Stack]
    share: bool = True


@dataclass(slots=True, eq=False)
class _Driven:
    """A cell whose engine has answered."""

    cell: Cell
    replay: Replay
    payload: Snapshot | None
    trajectory: Trajectory
    state: StackState | None = None


def check(work: Workload) -> Iterator[Event]:
    """Check the cells, group by group of those that share a cold run. Each cell yields one `Checked`."""
    for cells in _groups(work):
        driven = []
        trajectory = _trajectory(work, cells)
        for n, cell in enumerate(cells):
            yield Progress("driving the engine", n, len(cells))
            driven.append(_drive(work, cell, trajectory))
        resumed = [d for d in driven if d.replay.cached_tokens]
        for d in driven:
            if not d.replay.cached_tokens:
                yield Checked(CellResult(d.cell, d.replay, judge_unresumed(d.cell, d.replay)))
        if resumed:
            yield from _measure(trajectory, resumed)


def _groups(work: Workload) -> list[list[Cell]]:
    if not work.share:
        return [[cell] for cell in work.cells]
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in work.cells:
        groups.setdefault((cell.stream, cell.geometry.chunk), []).append(cell)
    return list(groups.values())


def _trajectory(work: Workload, cells: list[Cell]) -> Trajectory:
    length = max(cell.prompt.resume_length for cell in cells)
    stream = cells[0].stream
    return Trajectory(stream, work.streams[stream], length, work.stack(cells[0].geometry.chunk))


def _drive(work: Workload, cell: Cell, trajectory: Trajectory) -> _Driven:
    tokens = work.streams[cell.stream]
    donor = Donor(trajectory, tokens, cell.prompt)

    def shared(start: int, end: int) -> Snapshots:
        return OfferedSnapshots(donor, start, end)

    offer = shared if work.share else DonorPasses(donor.own).offer
    replay, payload = drive(lambda: work.engine(cell), cell, tokens, offer)
    return _Driven(cell, replay, payload, trajectory)


# ---- numbers --------------------------------------------------------------------------------------------------------

_Key = tuple[bytes, int, int]
"""(digest of the state, cached tokens, end): resumed runs with the same key compute the same."""


def _measure(trajectory: Trajectory, cells: list[_Driven]) -> Iterator[Event]:
    """Run what the cells need, each distinct thing once, then judge them."""
    yield Progress("cold run", 0, 1)
    _ = trajectory.cold
    yield Progress("cold run", 1, 1)
    jobs: dict[_Key, Span] = {}
    keys: list[tuple[_Key, _Key]] = []
    for d in cells:
        d.state = d.payload.read() if d.payload else trajectory.empty()
        cached, end = d.replay.cached_tokens, d.cell.prompt.resume_length
        own, clean = _digest(d.state), _digest(trajectory.state(cached))
        keys.append(((own, cached, end), (clean, cached, end)))
        jobs.setdefault(keys[-1][0], trajectory.resume(d.state, cached, end))
        jobs.setdefault(keys[-1][1], trajectory.resume(trajectory.state(cached), cached, end))
    traces: dict[_Key, Trace] = {}
    for batch in _batches(jobs):
        yield Progress("resumed runs", len(traces), len(jobs))
        run = trajectory.stack.run([jobs[key] for key in batch])
        # Only hidden states are compared; a grid of KV caches would not fit.
        traces |= {key: replace(trace, caches={}, recurrent={}) for key, trace in zip(batch, run, strict=True)}
    yield Progress("resumed runs", len(jobs), len(jobs))

    locations: dict[bytes, Location] = {}
    distances: dict[bytes, np.ndarray] = {}
    references: dict[tuple[int, int], torch.Tensor] = {}
    noises: dict[_Key, Noise] = {}
    diffs: dict[tuple[_Key, _Key], Diff] = {}
    for n, (d, (own, clean)) in enumerate(zip(cells, keys, strict=True)):
        yield Progress("judging", n, len(cells))
        cached, end = d.replay.cached_tokens, d.cell.prompt.resume_length
        window = (cached, min(end, cached + REFERENCE_TOKENS))
        if window not in references:
            references[window] = reference_window(trajectory, *window)
        if clean not in noises:
            noises[clean] = measure_noise(trajectory, traces[clean], references[window])
        if (own, clean) not in diffs:
            diffs[own, clean] = diff(trajectory, traces[own], noises[clean], references[window])
        if d.payload and own[0] not in locations:
            locations[own[0]] = locate(d.state, trajectory)
            distances[own[0]] = boundary_distances(d.state, trajectory)
        yield Checked(_result(d, locations.get(own[0]), diffs[own, clean], distances.get(own[0])))


def _result(d: _Driven, location: Location | None, difference: Diff, distances: np.ndarray | None) -> CellResult:
    if location is None:  # resumed without any state: the empty one is the state at depth 0
        location = Location.of_nothing(d.state)
    location = location.meant(d.replay.state_depth)
    verdict = judge(d.cell, d.replay, location, difference)
    end = d.cell.prompt.resume_length
    known = location.depth is not None and location.depth <= end
    ledger = Ledger(location.depth, d.replay.cached_tokens, end) if known else None
    return CellResult(d.cell, d.replay, verdict, ledger, location, difference, distances)


def _batches(jobs: dict[_Key, Span]) -> Iterator[list[_Key]]:
    """Runs in batches of about BATCH_TOKENS, like lengths together."""
    batch: list[_Key] = []
    tokens = 0
    for key in sorted(jobs, key=lambda k: len(jobs[k].tokens)):
        if batch and tokens + len(jobs[key].tokens) > BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(key)
        tokens += len(jobs[key].tokens)
    if batch:
        yield batch


def _digest(state: StackState) -> bytes:
    """A name for the bytes of a state, so that nobody's word is taken for two states being the same."""
    digest = hashlib.blake2b(digest_size=16)
    for layer, own in sorted(state.items()):
        digest.update(str(layer).encode())
        for tensor in _tensors(own):
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _tensors(state: RecurrentState) -> tuple[torch.Tensor, torch.Tensor]:
    return state.recurrent, state.window

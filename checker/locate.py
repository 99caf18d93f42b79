"""The state locator: at which depth does a donated state really stand?

It looks at the tensors alone, never at the tag, and compares them with the cold trajectory.

**Recurrent state.** First with the states at kernel-chunk boundaries, which the cold pass has kept: an honest snapshot
taken there is equal bit for bit. Otherwise the float64 reference recomputes the state after every single token, chunk
by chunk from the kernel's own boundary states, and the depth whose state is nearest is the candidate. It is accepted if
the payload is less than half as far from it as the nearest neighbouring depths are: by the triangle inequality, it is
then closer to this depth than to its neighbours, whatever rounding did to it. No threshold is tuned. A payload that is
nowhere accepted belongs to none of the stream's depths: a foreign state.

**Repetition.** Where a prompt repeats itself the state settles, and comes back to the same bytes at many depths.
Nothing can tell these apart, and resuming from any of them is the same, so all of them are found. Off the boundaries
the kernel's state is only known up to its rounding, which is measured: how far its own state at the end of that chunk
is from the reference's. Depths within it are one as good as another. A payload that lies beyond the rounding of the
depth it is nearest to is sought to the end of the trajectory, unless the window names that same depth.

**Convolution window.** It holds the last raw inputs, and is compared with the trajectory's at every depth. Repeated
tokens give equal windows at several depths, so this finds a set too.

Both are searched layer by layer, since an engine can get one layer wrong; `Location` says when layers disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from ..kernels.mixers import RecurrentState
from ..kernels.stack import StackState
from ..reference.mixers import RecurrentState as ReferenceState
from ..reference.mixers import run_mixer
from .trajectory import Trajectory


class Standing(StrEnum):
    """How a payload relates to the cold trajectory."""

    AT = "at a depth"
    UNWRITTEN = "unwritten"
    NOWHERE = "nowhere"
    LAYERS_DISAGREE = "layers disagree"


@dataclass(frozen=True, slots=True)
class Location:
    """Where a payload stands.

    depths:     every depth that it may stand at, by its recurrent states in all layers; more than one where the prompt
                repeats itself, and none unless standing is AT.
    depth:      one of them: the first, or the one that was `meant`.
    distance:   the largest relative distance over layers, |payload - cold| / |cold|, at that depth; 0 is bit-identical.
    windows:    the depths at which all layers' convolution windows match; empty when none does.
    by_layer:   each recurrent layer's own depth, None where it matches nowhere.
    window_distance: as `distance`, of the windows; infinite when they match nowhere.
    """

    standing: Standing
    depth: int | None
    depths: tuple[int, ...]
    distance: float
    windows: tuple[int, ...]
    by_layer: dict[int, int | None]
    window_distance: float = 0.0

    def __post_init__(self) -> None:
        assert (self.depth is not None) == bool(self.depths) == (self.standing is Standing.AT)
        assert self.depth is None or self.depth in self.depths

    @classmethod
    def of_nothing(cls, state: StackState) -> Location:
        """Where a run that was given no state stands: at the beginning, by definition."""
        return cls(Standing.AT, 0, (0,), 0.0, (0,), dict.fromkeys(state, 0))

    def meant(self, depth: int | None) -> Location:
        """The same payload read as one taken at `depth`, if it may be that."""
        if depth not in self.depths:
            return self
        return replace(self, depth=depth, by_layer=dict.fromkeys(self.by_layer, depth))


def locate(payload: StackState, trajectory: Trajectory) -> Location:
    """Find the payload on the trajectory. Reads `trajectory.cold`; changes nothing."""
    windows, window_distance = _windows(payload, trajectory)
    nowhere: dict[int, int | None] = dict.fromkeys(payload)
    if any(_is_unwritten(state.recurrent) for state in payload.values()):
        return Location(Standing.UNWRITTEN, None, (), float("inf"), windows, nowhere, window_distance)
    found: dict[int, dict[int, float]] = {}
    guesses = list(windows)
    for layer, state in payload.items():
        found[layer] = _depths(layer, state.recurrent, trajectory, guesses)
        if not found[layer]:  # the deeper layers cannot save it
            return Location(Standing.NOWHERE, None, (), float("inf"), windows, nowhere, window_distance)
        guesses = list(found[layer])
    common = tuple(sorted(set.intersection(*(set(depths) for depths in found.values()))))
    if not common:
        nearest = {layer: min(depths, key=depths.__getitem__) for layer, depths in found.items()}
        distance = max(found[layer][depth] for layer, depth in nearest.items())
        return Location(Standing.LAYERS_DISAGREE, None, (), distance, windows, nearest, window_distance)
    distance = max(depths[common[0]] for depths in found.values())
    here = dict.fromkeys(payload, common[0])
    return Location(Standing.AT, common[0], common, distance, windows, here, window_distance)


def boundary_distances(payload: StackState, trajectory: Trajectory) -> np.ndarray:
    """[chunks] float64: the payload's distance from the cold state at each kernel-chunk boundary, relative to that one.

    In the first recurrent layer, where it is about the tokens alone. At depth 0 the cold state is nothing: NaN.
    """
    layer = min(payload)
    cold = trajectory.cold.recurrent[layer].chunks.flatten(1).double()
    own = payload[layer].recurrent.double().flatten()
    return ((cold - own).norm(dim=1) / cold.norm(dim=1)).where(cold.any(dim=1), torch.nan).cpu().numpy()


def _is_unwritten(state: Tensor) -> bool:
    """Nothing was ever copied into this slot, or nothing that is a number."""
    return not bool(state.any()) or not bool(state.isfinite().all())


def _depths(layer: int, state: Tensor, trajectory: Trajectory, guesses: list[int]) -> dict[int, float]:
    """The depths that one layer's state may stand at, each with its relative distance from the cold state there."""
    chunk = trajectory.stack.chunk
    trace = trajectory.cold.recurrent[layer]
    same = (trace.chunks.float() == state).flatten(1).all(dim=1).nonzero().flatten().tolist()
    depths = [m * chunk for m in same]
    if torch.equal(trace.final, state):
        depths.append(trajectory.length)
    if depths:
        return dict.fromkeys(depths, 0.0)
    best, accepted = (float("inf"), 0, 0.0), False
    alike: dict[int, float] = {}
    for depth, states, rounding in _token_by_token(layer, trajectory, guesses):
        apart = (states - state.double().cpu()).flatten(1).norm(dim=1)
        relative = apart / states.flatten(1).norm(dim=1).clamp_min(1e-300)
        within = (apart <= rounding).nonzero().flatten().tolist()
        alike |= {depth + i: float(relative[i]) for i in within}
        i = int(apart.argmin())
        if float(apart[i]) >= best[0]:
            continue
        best, accepted = (float(apart[i]), depth + i, float(relative[i])), float(apart[i]) < _gap(states, i) / 2
        # Repeated tokens may have a better match further on. There is none where bytes or window have only this one.
        if accepted and (len(within) == 1 or guesses == [best[1]]):
            break
    if accepted:
        alike.setdefault(*best[1:])
    return dict(sorted(alike.items()))


def _gap(states: Tensor, i: int) -> float:
    """How far states[i] is from the nearer of its neighbours."""
    steps = (states[1:] - states[:-1]).flatten(1).norm(dim=1)
    return float(steps[max(0, i - 1) : i + 1].min())


def _token_by_token(layer: int, trajectory: Trajectory, guesses: list[int]) -> Iterator[tuple[int, Tensor, float]]:
    """(d, [n, HV, K, V], e): the states at depths d, d + 1, ... in float64, one kernel chunk at a time, guesses first.

    Each chunk starts from the kernel's own state at its boundary, so nothing but the chunk's tokens is computed anew;
    e is how far the kernel's state at the chunk's end is from the last of these.
    """
    stack, cold = trajectory.stack, trajectory.cold
    chunk, length = stack.chunk, trajectory.length
    x = cold.inputs if layer == 0 else cold.hidden[layer - 1]
    first = [g // chunk for g in guesses]
    order = dict.fromkeys([*first, *range(-(-length // chunk))])
    weights = {name: w.cpu() for name, w in stack.weights.items() if name.startswith(f"layers.{layer}.")}
    for m in order:
        start, end = m * chunk, min((m + 1) * chunk, length)
        if start >= end:
            continue
        trace = cold.recurrent[layer]
        before = ReferenceState(trace.chunks[m].double().cpu(), trace.window(start).double().T.cpu())
        rows = x[start:end].double().cpu()
        run = run_mixer(weights, layer, stack.preset.layers[layer], rows, before, keep=range(end - start + 1))
        states = torch.stack([run.kept[d].recurrent for d in range(end - start + 1)])
        kernel = trace.chunks[m + 1] if m + 1 < len(trace.chunks) else trace.final
        yield start, states, float((states[-1] - kernel.double().cpu()).norm())


def _windows(payload: StackState, trajectory: Trajectory) -> tuple[tuple[int, ...], float]:
    """The depths at which every layer's convolution window is the payload's, and how far from it at the most."""
    common: set[int] | None = None
    farthest = 0.0
    for layer, state in payload.items():
        here, distance = _window_depths(state, trajectory.cold.recurrent[layer].raw)
        common = here if common is None else common & here
        farthest = max(farthest, distance)
    return (tuple(sorted(common)), farthest) if common else ((), float("inf"))


def _window_depths(state: RecurrentState, raw: Tensor) -> tuple[set[int], float]:
    """Depths whose window is the payload's, or else the nearest one, if it is nearer than half way to the next; and the
    distance to it, relative to it."""
    window = state.window.to(raw.dtype)
    starts = len(raw) - len(window) + 1
    # One channel of one row tells nearly all depths apart, and costs next to nothing.
    likely = (raw[:starts, 0] == window[0, 0]).nonzero().flatten().tolist()
    same = {i for i in likely if torch.equal(raw[i : i + len(window)], window)}
    if same:
        return same, 0.0
    apart = _window_distances(raw, window)
    nearest = int(apart.argmin())
    cold = raw[nearest : nearest + len(window)]
    steps = _window_distances(raw, cold)
    size = float(cold.double().norm())
    gap = float(steps[steps > 0].min()) if bool((steps > 0).any()) else float(window.double().norm())
    if not float(apart[nearest]) < gap / 2:
        return set(), float("inf")
    return {nearest}, float(apart[nearest]) / max(size, 1e-300)


def _window_distances(raw: Tensor, window: Tensor) -> Tensor:
    """[depths], how far the window at each depth is from this one."""
    starts = len(raw) - len(window) + 1
    rows = ((raw[j : j + starts].double() - row.double()).square().sum(dim=1) for j, row in enumerate(window))
    return sum(rows).sqrt()

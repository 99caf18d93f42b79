"""The state locator: at which depth does a donated state really stand?

It looks at the tensors alone, never at the tag, and compares them with the cold trajectory.

**Recurrent state.** First with the states at kernel-chunk boundaries, which the cold pass has kept: an honest snapshot
taken there is equal bit for bit. Otherwise the float64 reference recomputes the state after every single token, chunk by
chunk from the kernel's own boundary states, and the depth whose state is nearest is the candidate. It is accepted if the
payload is less than half as far from it as the nearest neighbouring depths are: by the triangle inequality, it is then
closer to this depth than to its neighbours, whatever rounding did to it. No threshold is tuned. A payload that is
nowhere accepted belongs to none of the stream's depths: a foreign state.

**Convolution window.** It holds the last raw inputs, and is compared with the trajectory's at every depth. Repeated
tokens give equal windows at several depths, so this finds a set.

Both are searched layer by layer, since an engine can get one layer wrong; `Location` says when layers disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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

    depth:      tokens that its recurrent states have absorbed, in all layers; None unless standing is AT.
    distance:   the largest relative distance over layers, |payload - cold| / |cold|, at that depth; 0 is bit-identical.
    windows:    the depths at which all layers' convolution windows match; empty when none does.
    by_layer:   each recurrent layer's own depth, None where it matches nowhere.
    """

    standing: Standing
    depth: int | None
    distance: float
    windows: tuple[int, ...]
    by_layer: dict[int, int | None]

    def __post_init__(self) -> None:
        assert (self.depth is not None) == (self.standing is Standing.AT)

    @classmethod
    def of_nothing(cls, state: StackState) -> Location:
        """Where a run that was given no state stands: at the beginning, by definition."""
        return cls(Standing.AT, 0, 0.0, (0,), dict.fromkeys(state, 0))


def locate(payload: StackState, trajectory: Trajectory) -> Location:
    """Find the payload on the trajectory. Reads `trajectory.cold`; changes nothing."""
    windows = _windows(payload, trajectory)
    if any(_is_unwritten(state.recurrent) for state in payload.values()):
        return Location(Standing.UNWRITTEN, None, float("inf"), windows, dict.fromkeys(payload))
    found = {}
    guesses = list(windows)
    for layer, state in payload.items():
        found[layer] = _depth(layer, state.recurrent, trajectory, guesses)
        if found[layer] is None:  # the deeper layers cannot save it
            return Location(Standing.NOWHERE, None, float("inf"), windows, {**dict.fromkeys(payload), layer: None})
        guesses = [found[layer][0]]
    depths = {layer: depth for layer, (depth, _) in found.items()}
    distance = max(distance for _, distance in found.values())
    if len(set(depths.values())) > 1:
        return Location(Standing.LAYERS_DISAGREE, None, distance, windows, depths)
    return Location(Standing.AT, next(iter(depths.values())), distance, windows, depths)


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


def _depth(layer: int, state: Tensor, trajectory: Trajectory, guesses: list[int]) -> tuple[int, float] | None:
    """The depth of one layer's state and its relative distance from the cold state there; None for nowhere."""
    chunk = trajectory.stack.chunk
    trace = trajectory.cold.recurrent[layer]
    same = (trace.chunks.float() == state).flatten(1).all(dim=1).nonzero()
    if len(same):
        return int(same[0]) * chunk, 0.0
    if torch.equal(trace.final, state):
        return trajectory.length, 0.0
    best: tuple[float, int, float] | None = None
    for depth, states in _token_by_token(layer, trajectory, guesses):
        norms = states.flatten(1).norm(dim=1)
        apart = (states - state.double()).flatten(1).norm(dim=1)
        steps = (states[1:] - states[:-1]).flatten(1).norm(dim=1)
        i = int(apart.argmin())
        gap = float(steps[max(0, i - 1) : i + 1].min()) if len(steps) else float(norms[i])
        if best is None or float(apart[i]) < best[0]:
            best = (float(apart[i]), depth + i, float(apart[i] / norms[i].clamp_min(1e-300)))
            if best[0] < gap / 2:
                return best[1], best[2]
    return None


def _token_by_token(layer: int, trajectory: Trajectory, guesses: list[int]) -> Iterator[tuple[int, Tensor]]:
    """(d, [n, HV, K, V]): the states at depths d, d + 1, ... in float64, one kernel chunk at a time, guesses first.

    Each chunk starts from the kernel's own state at its boundary, so nothing but the chunk's tokens is computed anew.
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
        yield start, torch.stack([run.kept[d].recurrent for d in range(end - start + 1)])


def _windows(payload: StackState, trajectory: Trajectory) -> tuple[int, ...]:
    """The depths at which every layer's convolution window is the payload's."""
    common: set[int] | None = None
    for layer, state in payload.items():
        here = _window_depths(state, trajectory.cold.recurrent[layer].raw)
        common = here if common is None else common & here
    return tuple(sorted(common or ()))


def _window_depths(state: RecurrentState, raw: Tensor) -> set[int]:
    """Depths whose window is the payload's, or else the nearest one, if it is nearer than half way to the next."""
    window = state.window.to(raw.dtype)
    starts = len(raw) - len(window) + 1
    # One channel of one row tells nearly all depths apart, and costs next to nothing.
    likely = (raw[:starts, 0] == window[0, 0]).nonzero().flatten().tolist()
    same = {i for i in likely if torch.equal(raw[i : i + len(window)], window)}
    if same:
        return same
    apart = _window_distances(raw, window)
    nearest = int(apart.argmin())
    steps = _window_distances(raw, raw[nearest : nearest + len(window)])
    gap = float(steps[steps > 0].min()) if bool((steps > 0).any()) else float(window.double().norm())
    return {nearest} if float(apart[nearest]) < gap / 2 else set()


def _window_distances(raw: Tensor, window: Tensor) -> Tensor:
    """[depths], how far the window at each depth is from this one."""
    starts = len(raw) - len(window) + 1
    rows = ((raw[j : j + starts].double() - row.double()).square().sum(dim=1) for j, row in enumerate(window))
    return sum(rows).sqrt()

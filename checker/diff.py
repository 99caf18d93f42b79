"""Hidden states of a resumed run against the cold run, token by token and layer by layer, and what noise explains.

**The noise floor is measured, never chosen.** Two runs of the same arithmetic may differ by rounding, and how much that
is depends on dtype, model and place. Two measurements are taken where the resumed run begins:

- *clean*: a resumed run from the right state (the cold one at cached_tokens) against the cold run, over all its tokens;
- *rounding*: the cold run against the float64 reference, which starts from the cold run's own state and KV, over the
  first tokens after the boundary.

A resumed run and the cold run are both within their rounding of the exact result, so by the triangle inequality they
differ by at most the sum of the two: `limit` is twice the larger measurement. What exceeds it is not rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..kernels.stack import Trace
from ..reference.mixers import AttentionState
from ..reference.mixers import RecurrentState as ReferenceState
from ..reference.stack import run as run_reference
from .layers import AttentionSpec
from .trajectory import Trajectory

REFERENCE_TOKENS = 64
"""Tokens after the resume boundary on which the cold run is held against float64: where a wrong state shows most."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative hidden-state errors that are no fault of the engine's: the largest over layers and tokens."""

    clean: float
    rounding: float

    @property
    def floor(self) -> float:
        """The larger of the two measurements."""
        return max(self.clean, self.rounding)

    @property
    def limit(self) -> float:
        """The largest difference between two runs that rounding alone can make."""
        return 2 * self.floor


@dataclass(frozen=True, slots=True, eq=False)
class Diff:
    """The resumed run against the cold one.

    start:  the token at which the resumed run begins.
    errors: [layers, n] float32, |resumed - cold| / |cold| of the residual stream behind each layer, per token.
    oracle: the largest error of the resumed run against the float64 reference, on its first tokens.
    """

    start: int
    errors: np.ndarray
    noise: Noise
    oracle: float

    @property
    def largest(self) -> float:
        return float(self.errors.max())

    @property
    def over_noise(self) -> float:
        """How many times the noise floor the largest error is."""
        return self.largest / self.noise.floor if self.noise.floor else float("inf") if self.largest else 0.0

    @property
    def is_clean(self) -> bool:
        return self.largest <= self.noise.limit

    @property
    def first_wrong(self) -> int | None:
        """The first token whose hidden state is wrong in any layer; None when all are within the limit."""
        wrong = np.flatnonzero(self._wrong)
        return self.start + int(wrong[0]) if len(wrong) else None

    @property
    def last_wrong(self) -> int | None:
        """The last such token: how far the damage reaches within the prompt."""
        wrong = np.flatnonzero(self._wrong)
        return self.start + int(wrong[-1]) if len(wrong) else None

    @property
    def _wrong(self) -> np.ndarray:
        return ~(self.errors.max(axis=0) <= self.noise.limit)


def relative_errors(run: Tensor, cold: Tensor) -> np.ndarray:
    """[layers, n]: the distance of hidden states [layers, n, hidden] from the cold ones, relative to those."""
    apart = (run.double() - cold.double()).norm(dim=-1)
    return (apart / cold.double().norm(dim=-1).clamp_min(1e-300)).float().cpu().numpy()


def reference_window(trajectory: Trajectory, start: int, end: int) -> Tensor:
    """[layers, n, hidden] float64: the tokens [start, end) as the reference computes them from the cold run's state."""
    stack = trajectory.stack
    state = trajectory.state(start) if start else trajectory.empty()
    caches = trajectory.caches(start)
    before = []
    for layer, spec in enumerate(stack.preset.layers):
        if isinstance(spec, AttentionSpec):
            before.append(AttentionState(caches[layer].k.double().cpu(), caches[layer].v.double().cpu()))
        else:
            own = state[layer]
            before.append(ReferenceState(own.recurrent.double().cpu(), own.window.double().T.cpu()))
    weights = {name: w.cpu() for name, w in stack.weights.items()}
    return run_reference(weights, stack.preset.layers, trajectory.tokens[start:end], tuple(before)).hidden


def measure_noise(trajectory: Trajectory, clean: Trace, reference: Tensor) -> Noise:
    """Both measurements at the boundary where `clean` begins; `reference` is its `reference_window`."""
    cold = trajectory.cold.hidden[:, clean.start : clean.end]
    own = cold[:, : reference.shape[1]].cpu()
    return Noise(float(relative_errors(clean.hidden, cold).max()), float(relative_errors(own, reference).max()))


def diff(trajectory: Trajectory, resumed: Trace, noise: Noise, reference: Tensor) -> Diff:
    """The resumed run against the cold run of the same tokens."""
    cold = trajectory.cold.hidden[:, resumed.start : resumed.end]
    first = resumed.hidden[:, : reference.shape[1]].cpu()
    oracle = float(relative_errors(first, reference).max())
    return Diff(resumed.start, relative_errors(resumed.hidden, cold), noise, oracle)

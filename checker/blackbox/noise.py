"""How much may two right runs differ? Measured from cold runs alone, and made a limit.

**Why repeating a cold run is not enough.** A server on one machine often answers the same request bit for bit alike,
so the spread of repeats is zero. A resumed run computes the same tokens in other shapes (fewer rows, other chunks),
and rounds differently: it would be called wrong on any server. So cold runs are also made in other shapes, none of
which reuses anything:

- *repeats*: the same cold request again;
- *shapes*: the same positions out of one longer cold prompt;
- *decoding*: log-probabilities of tokens as they were generated, against a cold prompt that holds these tokens;
- *load*: the same cold request while others run.

**The limit.** Each kind gives differences between two right runs of one position. Were they normal, a further
difference would exceed t * s with a probability of FALSE_ALARM over all positions that are compared, where s is their
root mean square (the largest of the kinds, as one with no spread says nothing about the others) and t the quantile of
Student's distribution for as many differences as s was made from. Rounding has heavier tails than that (a number on a
coarse grid, an expert that is chosen otherwise), so the limit is at least twice the largest difference seen: if every
run is within r of the exact result, two differ by at most 2r, and what was seen is taken for r. And no limit is below
the resolution of a float32 log-probability.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

FALSE_ALARM = 1e-6
"""How often a case of a right server may be called wrong by chance, were rounding normal."""

RESOLUTION = 8 * 2.0**-24
"""Relative: a log-probability is the difference of two float32 numbers of up to several times its size."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Differences in nats between right runs of the same position, by what set the runs apart."""

    alone: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """repeats, shapes, decoding: one request at a time."""
    load: tuple[float, ...] = ()
    """Under load against alone."""
    set_aside: tuple[float, ...] = ()
    """Decoding against prefill, where that cannot be rounding."""
    largest_logprob: float = 1.0

    @property
    def floor(self) -> float:
        """The largest difference seen between two cold runs, each alone."""
        return max((max(each) for each in self.alone.values() if each), default=0.0)

    @property
    def load_floor(self) -> float:
        """The same with what load adds."""
        return max(self.floor, max(self.load, default=0.0))

    def limit(self, compared: int, with_load: bool = False) -> float:
        """The largest difference that rounding can make, where `compared` positions are held against each other."""
        kinds = [*self.alone.values(), *([self.load] if with_load else [])]
        chance = FALSE_ALARM / max(1, compared)
        normal = max((_rms(each) * quantile(len(each), chance) for each in kinds if each), default=0.0)
        twice = 2 * (self.load_floor if with_load else self.floor)
        return max(normal, twice, RESOLUTION * self.largest_logprob)


def _rms(differences: tuple[float, ...]) -> float:
    return math.sqrt(sum(each * each for each in differences) / len(differences))


def quantile(freedom: int, chance: float) -> float:
    """What |t| of Student's distribution exceeds with this probability, by Wallace's approximation (good from 8 on)."""
    z = NormalDist().inv_cdf(1 - chance / 2) * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(min(z * z / freedom, 700.0)))

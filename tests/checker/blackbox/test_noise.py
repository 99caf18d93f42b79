"""The limit between rounding and damage."""

from __future__ import annotations

import numpy as np
import pytest
from mamba_replay_check.checker.blackbox.noise import FALSE_ALARM, RESOLUTION, Noise, quantile


@pytest.mark.parametrize(
    "freedom, chance, value",
    [(8, 0.01, 3.355), (10, 0.001, 4.587), (30, 0.001, 3.646), (30, 0.05, 2.042), (120, 0.01, 2.617)],
)
def test_quantile_against_the_tables(freedom: int, chance: float, value: float) -> None:
    assert quantile(freedom, chance) == pytest.approx(value, rel=0.01)


def test_the_limit_holds_what_is_drawn_from_the_same_noise() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        seen = tuple(np.abs(random.normal(0, 1, 32)))
        limit = Noise({"repeats": seen}).limit(64)
        assert np.abs(random.normal(0, 1, 64)).max() < limit


def test_a_kind_without_spread_does_not_thin_out_another() -> None:
    spread = (0.1,) * 20
    assert Noise({"repeats": (0.0,) * 10_000, "shapes": spread}).limit(10) == Noise({"shapes": spread}).limit(10)


def test_heavy_tails_and_silence() -> None:
    seen = (0.0,) * 999 + (1.0,)
    assert Noise({"shapes": seen}).limit(1) == 2.0
    assert Noise({"repeats": (0.0,) * 10}, largest_logprob=8.0).limit(10) == 8 * RESOLUTION
    assert Noise().floor == 0.0


def test_load_counts_only_where_it_is_asked_for() -> None:
    noise = Noise({"repeats": (0.01,) * 20}, load=(1.0,) * 20)
    assert noise.floor == 0.01 and noise.load_floor == 1.0
    assert noise.limit(10) < 0.1 < 2.0 <= noise.limit(10, with_load=True)
    assert FALSE_ALARM < 1e-5

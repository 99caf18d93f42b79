"""What cells share changes nothing: `--no-share`, where the donor's passes are really made, finds the same."""

from __future__ import annotations

import numpy as np
import pytest
from mamba_replay_check.checker.cells import CellResult
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.checker.verdict import Kind
from mamba_replay_check.scenarios.prompt import Prompt

from .conftest import GEOMETRY, modelled, result_of

TOKEN_PAGES = Geometry(64, 1, 1, 64)
NO_DCP = Geometry(64, 64, 1, 64)
TWO_RANKS = Geometry(64, 64, 2, 64)

QWEN, KIMI = "qwen3-next", "kimi-linear"


def both_ways(model: str, release: str, prompt: str, geometry: Geometry) -> tuple[CellResult, CellResult]:
    shared, alone = (
        result_of(modelled(release), Prompt.parse(prompt), geometry, model=model, share=share)
        for share in (True, False)
    )
    assert str(alone.verdict) == str(shared.verdict)
    assert alone.replay == shared.replay, "depths, snapshots and donations"
    assert alone.ledger == shared.ledger
    return shared, alone


@pytest.mark.parametrize(
    "model, release, prompt, geometry, kind",
    [
        (QWEN, "0.5.23", "512+400n70", GEOMETRY, Kind.OK),
        (QWEN, "0.5.17", "512+400n70", GEOMETRY, Kind.DOUBLE_COMPUTED),
        (QWEN, "0.5.18", "64+541", Geometry(64, 64, 8, 256), Kind.DOUBLE_COMPUTED),
        (QWEN, "0.5.18", "640n1", NO_DCP, Kind.OK),
        (KIMI, "0.5.23", "512+400n70", GEOMETRY, Kind.OK),
        (KIMI, "0.5.18", "64+541", Geometry(64, 64, 8, 256), Kind.DOUBLE_COMPUTED),
    ],
)
def test_bit_for_bit_where_prefill_is_cut_on_kernel_chunks(
    model: str, release: str, prompt: str, geometry: Geometry, kind: Kind
) -> None:
    shared, alone = both_ways(model, release, prompt, geometry)
    assert shared.verdict.kind is kind
    assert alone.location == shared.location
    assert alone.location.distance == 0
    assert np.array_equal(alone.diff.errors, shared.diff.errors)
    assert alone.diff.noise == shared.diff.noise


@pytest.mark.parametrize(
    "model, release, prompt, geometry, text",
    [
        (QWEN, "0.5.23", "100+541+33n70", TOKEN_PAGES, "ok"),
        (QWEN, "0.5.23", "100+541+33n70", NO_DCP, "double-computed 36 [576, 612)"),
        (QWEN, "0.5.23", "500d80n64", NO_DCP, "ok"),
        (KIMI, "0.5.23", "100+541+33n70", TOKEN_PAGES, "ok"),
        (KIMI, "0.5.17", "100+541+33n70", TWO_RANKS, "double-computed 100 [512, 612)"),
    ],
)
def test_within_the_measured_noise_elsewhere(
    model: str, release: str, prompt: str, geometry: Geometry, text: str
) -> None:
    """Off the chunk, and in decode, a donor's kernels add up in another order than the cold run's."""
    shared, alone = both_ways(model, release, prompt, geometry)
    assert str(shared.verdict) == text
    assert alone.location.depth == shared.location.depth
    assert alone.diff.first_wrong == shared.diff.first_wrong
    assert alone.diff.last_wrong == shared.diff.last_wrong
    assert np.abs(alone.diff.errors - shared.diff.errors).max() <= shared.diff.noise.limit
    assert 0 < alone.location.distance < 1e-4, "the donor's passes were really made"


def test_a_cell_without_reuse() -> None:
    shared, alone = both_ways("qwen3-next", "0.5.23", "100+541n70", TWO_RANKS)
    assert shared.verdict.kind is alone.verdict.kind is Kind.VACUOUS

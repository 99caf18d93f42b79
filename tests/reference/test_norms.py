"""The norms against torch's own."""

from __future__ import annotations

import pytest
import torch
from mamba_replay_check.reference.norms import gated_rms_norm, rms_norm
from torch.nn import functional
from torch.testing import assert_close

EPS = 0.3  # large, so that its place shows


def test_rms_norm_matches_torch(rand):
    x, weight = rand(5, 2, 8), rand(8)
    assert_close(rms_norm(x, weight, EPS), functional.rms_norm(x, (8,), weight, EPS), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(("activation", "function"), [("sigmoid", torch.sigmoid), ("silu", functional.silu)])
def test_gate_acts_after_the_norm(rand, activation, function):
    x, gate, weight = rand(5, 2, 8), rand(5, 2, 8), rand(8)
    expected = functional.rms_norm(x, (8,), weight, EPS) * function(gate)
    assert_close(gated_rms_norm(x, gate, weight, EPS, activation), expected, rtol=1e-13, atol=1e-15)


def test_low_precision_input_is_widened_first(rand):
    x = rand(4, 8).to(torch.bfloat16)
    assert torch.equal(rms_norm(x, torch.ones(8), 1e-6), rms_norm(x.double(), torch.ones(8), 1e-6))

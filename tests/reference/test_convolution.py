"""The short convolution against torch's own, and its window against the raw inputs."""

from __future__ import annotations

import pytest
import torch
from mamba_replay_check.reference.convolution import short_convolution, silu
from torch.nn import functional
from torch.testing import assert_close

WIDTHS = [1, 2, 4, 7]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tokens", [1, 3, 20])
def test_matches_conv1d(rand, tokens, width):
    x, weight = rand(tokens, 5), rand(5, width)
    y, _ = short_convolution(x, weight)
    padded = functional.pad(x.T, (width - 1, 0))
    expected = functional.silu(functional.conv1d(padded[None], weight[:, None], groups=5))[0].T
    assert_close(y, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cut", [0, 1, 2, 9, 19, 20])
def test_continuing_is_one_run(rand, cut, width):
    x, weight = rand(20, 3), rand(3, width)
    whole, end = short_convolution(x, weight)
    first, window = short_convolution(x[:cut], weight)
    second, resumed_end = short_convolution(x[cut:], weight, window)
    assert_close(torch.cat([first, second]), whole, rtol=1e-15, atol=1e-15)  # torch rounds exp by place in the tensor
    assert torch.equal(resumed_end, end)


def test_window_is_the_last_raw_rows_oldest_first(rand):
    x, start = rand(6, 2), rand(2, 3)
    assert torch.equal(short_convolution(x, rand(2, 4), start)[1], x[3:].T)
    assert torch.equal(short_convolution(x[:1], rand(2, 4), start)[1], torch.cat([start[:, 1:], x[:1].T], dim=1))


def test_window_reaches_back_exactly_its_length(rand):
    """A change in the window is seen by the W - 1 tokens after it and by no other."""
    x, weight, window = rand(8, 1), rand(1, 4), rand(1, 3)
    changed = (short_convolution(x, weight, window)[0] != short_convolution(x, weight)[0])[:, 0]
    assert changed.tolist() == [True] * 3 + [False] * 5


def test_misfit_window_is_refused(rand):
    with pytest.raises(ValueError, match=r"window \(2, 4\) does not fit \(2, 3\)"):
        short_convolution(rand(5, 2), rand(2, 4), rand(2, 4))


def test_silu(rand):
    x = rand(50) * 10
    assert_close(silu(x), x / (1 + (-x).exp()), rtol=1e-13, atol=0)

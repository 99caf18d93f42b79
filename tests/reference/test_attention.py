"""Attention against torch's own, and the properties that define a rotary embedding."""

from __future__ import annotations

import pytest
import torch
from mamba_replay_check.reference.attention import ROWS, attention, rotary
from torch.nn import functional
from torch.testing import assert_close


def expected(q, k, v, scale=None):
    """torch's attention on [T, H, D], with the mask and the shared heads spelled out."""
    tokens, seen, group = len(q), len(k), q.shape[1] // k.shape[1]
    mask = torch.arange(seen)[None] <= torch.arange(seen - tokens, seen)[:, None]
    heads = [x.repeat_interleave(n, dim=1).transpose(0, 1) for x, n in ((q, 1), (k, group), (v, group))]
    return functional.scaled_dot_product_attention(*heads, attn_mask=mask, scale=scale).transpose(0, 1)


@pytest.mark.parametrize("prefix", [0, 1, 40])
@pytest.mark.parametrize("tokens", [1, 30, 2 * ROWS + 9])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
def test_matches_torch(rand, tokens, prefix, heads, kv_heads):
    q, k, v = rand(tokens, heads, 8), rand(prefix + tokens, kv_heads, 8), rand(prefix + tokens, kv_heads, 8)
    assert_close(attention(q, k, v), expected(q, k, v), rtol=1e-12, atol=1e-13)
    assert_close(attention(q, k, v, scale=0.7), expected(q, k, v, scale=0.7), rtol=1e-12, atol=1e-13)


def test_first_token_sees_only_itself(rand):
    q, k, v = rand(5, 2, 4), rand(5, 2, 4), rand(5, 2, 4)
    assert torch.equal(attention(q, k, v)[0], v[0])


def test_equal_keys_average_the_past(rand):
    v = rand(9, 1, 4)
    k = rand(1, 1, 4).expand(9, -1, -1)
    mean = v.cumsum(0) / torch.arange(1, 10)[:, None, None]
    assert_close(attention(rand(9, 1, 4), k, v), mean, rtol=1e-13, atol=1e-14)


def test_misfits_are_refused(rand):
    with pytest.raises(ValueError, match="cannot attend"):
        attention(rand(5, 2, 4), rand(4, 2, 4), rand(4, 2, 4))
    with pytest.raises(ValueError, match="cannot attend"):
        attention(rand(5, 3, 4), rand(5, 2, 4), rand(5, 2, 4))


ROTARY = {"rotary_dim": 6, "theta": 100.0}


def test_rotary_scores_depend_on_distance_only(rand):
    q, k = rand(1, 1, 8), rand(1, 1, 8)

    def score(at: int, behind: int) -> torch.Tensor:
        turned = [rotary(x, torch.tensor([p]), **ROTARY) for x, p in ((q, at), (k, at - behind))]
        return (turned[0] * turned[1]).sum()

    assert_close(score(5, 3), score(1005, 3), rtol=1e-11, atol=1e-12)
    assert (score(5, 3) - score(5, 4)).abs() > 1e-3


def test_rotary_keeps_position_zero_and_the_channels_behind(rand):
    x = rand(4, 2, 8)
    turned = rotary(x, torch.arange(4), **ROTARY)
    assert torch.equal(turned[0], x[0])
    assert torch.equal(turned[..., 6:], x[..., 6:])
    assert (turned[1:, :, :6] != x[1:, :, :6]).all()


def test_rotary_pairs_the_two_halves(rand):
    """Read channel j and j + half as one complex number: it turns by position * theta^(-2j / rotary_dim)."""
    x, positions = rand(4, 2, 8), torch.tensor([0, 1, 7, 300])
    turned = rotary(x, positions, **ROTARY)
    for j in range(3):
        angle = positions.double() * 100.0 ** (-2 * j / 6)
        expected_pair = torch.complex(x[..., j], x[..., j + 3]) * torch.exp(1j * angle)[:, None]
        assert_close(torch.complex(turned[..., j], turned[..., j + 3]), expected_pair, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rotary_dim", [3, 10])
def test_rotary_refuses_channels_it_cannot_pair(rand, rotary_dim):
    with pytest.raises(ValueError, match=f"rotary_dim {rotary_dim} must be even and at most 8"):
        rotary(rand(1, 1, 8), torch.arange(1), rotary_dim=rotary_dim, theta=100.0)

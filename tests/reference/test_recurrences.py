"""The recurrences against closed forms that are written here, from the equations, without a running state."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from mamba_replay_check.reference.recurrences import (
    gated_delta_rule,
    gdn_gate,
    kda,
    kda_gate,
    l2norm,
    softplus,
)
from torch import Tensor
from torch.testing import assert_close


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor


def make(rand, rule, tokens: int, heads: int, value_heads: int, key_dim: int, value_dim: int) -> Inputs:
    gate_shape = (tokens, value_heads, key_dim) if rule is kda else (tokens, value_heads)
    return Inputs(
        q=l2norm(rand(tokens, heads, key_dim)),
        k=l2norm(rand(tokens, heads, key_dim)),
        v=rand(tokens, value_heads, value_dim),
        g=-0.3 * rand(*gate_shape).abs(),
        beta=torch.sigmoid(rand(tokens, value_heads)),
        state=rand(value_heads, key_dim, value_dim),
    )


def one_head(x: Inputs, head: int) -> tuple[Tensor, ...]:
    """q, k [T, K], v [T, V], g [T, K], beta [T] and state [K, V] of one value head."""
    shared = head // (x.v.shape[1] // x.k.shape[1])
    g = x.g[:, head]
    g = g if g.ndim == 2 else g[:, None].expand(-1, x.k.shape[-1])
    return x.q[:, shared], x.k[:, shared], x.v[:, head], g, x.beta[:, head], x.state[head]


def unrolled(x: Inputs, head: int) -> tuple[Tensor, Tensor]:
    """S_t = sum_i A_t ... A_{i+1} beta_i k_i v_i^T + A_t ... A_1 S_0 with dense A_t, and o_t = S_t^T q_t / sqrt(K)."""
    q, k, v, g, beta, start = one_head(x, head)
    eye = torch.eye(k.shape[1], dtype=torch.float64)
    steps = [(eye - b * torch.outer(key, key)) @ torch.diag(log.exp()) for b, key, log in zip(beta, k, g, strict=True)]

    def state_after(t: int) -> Tensor:
        total, product = torch.zeros_like(start), eye
        for i in range(t, -1, -1):
            total = total + product @ (beta[i] * torch.outer(k[i], v[i]))
            product = product @ steps[i]
        return total + product @ start

    states = [state_after(t) for t in range(len(k))]
    return torch.stack([s.T @ query for s, query in zip(states, q, strict=True)]) / k.shape[1] ** 0.5, states[-1]


def quadratic(x: Inputs, head: int) -> tuple[Tensor, Tensor]:
    """The one-chunk form: solve all corrections u from a triangular system, then read them like attention.

    With G the running sum of g and S_t = Diag(e^{G_t}) S_0 + sum_{i<=t} Diag(e^{G_t - G_i}) k_i u_i^T, the rule says
    u_t + beta_t sum_{i<t} <k_t, e^{G_t - G_i} k_i> u_i = beta_t (v_t - S_0^T e^{G_t} k_t).
    """
    q, k, v, g, beta, start = one_head(x, head)
    total = g.cumsum(0)
    fade = (total[:, None] - total[None]).exp()  # [T, T, K], meant for i <= t
    against = torch.einsum("tk,tik,ik->ti", k, fade, k).tril(-1) * beta[:, None]
    right = beta[:, None] * (v - (k * total.exp()) @ start)
    u = torch.linalg.solve(torch.eye(len(k), dtype=torch.float64) + against, right)
    o = (q * total.exp()) @ start + torch.einsum("tk,tik,ik->ti", q, fade, k).tril() @ u
    return o / k.shape[1] ** 0.5, total[-1].exp()[:, None] * start + (fade[-1] * k).T @ u


SHAPES = [  # tokens, heads, value heads, K, V
    pytest.param(1, 1, 1, 4, 4, id="one token"),
    pytest.param(12, 1, 1, 8, 8, id="square"),
    pytest.param(9, 2, 2, 4, 6, id="wide values"),
    pytest.param(9, 3, 3, 8, 2, id="narrow values"),
    pytest.param(10, 2, 4, 4, 5, id="two value heads per key head"),
    pytest.param(7, 1, 3, 4, 4, id="three value heads, one key head"),
]


@pytest.mark.parametrize("form", [unrolled, quadratic])
@pytest.mark.parametrize("rule", [kda, gated_delta_rule])
@pytest.mark.parametrize(("tokens", "heads", "value_heads", "key_dim", "value_dim"), SHAPES)
def test_matches_closed_form(rand, rule, form, tokens, heads, value_heads, key_dim, value_dim):
    x = make(rand, rule, tokens, heads, value_heads, key_dim, value_dim)
    o, state, _ = rule(*x)
    for head in range(value_heads):
        expected_o, expected_state = form(x, head)
        assert_close(o[:, head], expected_o, rtol=1e-12, atol=1e-13)
        assert_close(state[head], expected_state, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rule", [kda, gated_delta_rule])
def test_no_state_is_zeros(rand, rule):
    x = make(rand, rule, 6, 2, 2, 4, 3)
    cold, zeros = rule(*x._replace(state=None)), rule(*x._replace(state=torch.zeros_like(x.state)))
    assert torch.equal(cold.o, zeros.o)
    assert torch.equal(cold.state, zeros.state)
    assert not torch.equal(cold.state, rule(*x).state)


def test_kda_with_equal_channels_is_gated_delta_rule(rand):
    x = make(rand, gated_delta_rule, 20, 2, 4, 8, 8)
    per_channel = x._replace(g=x.g[..., None].expand(-1, -1, 8))
    assert torch.equal(kda(*per_channel).o, gated_delta_rule(*x).o)


@pytest.mark.parametrize("rule", [kda, gated_delta_rule])
def test_orthonormal_keys_store_values_exactly(rand, rule):
    """Without decay and with beta 1, each key finds its own value, also long after it was written."""
    keys = torch.eye(5, dtype=torch.float64)[:, None]  # [5, 1, 5]
    v = rand(5, 1, 3)
    k, values = torch.cat([keys, keys]), torch.cat([v, v])
    beta = torch.cat([torch.ones(5, 1), torch.zeros(5, 1)])  # the second half only reads
    g = torch.zeros(10, 1, 5) if rule is kda else torch.zeros(10, 1)
    result = rule(k, k, values, g, beta, scale=1.0)
    assert torch.equal(result.o[5:], v)
    assert torch.equal(result.state[0], v[:, 0])


def test_writing_a_key_again_replaces_its_value(rand):
    k = l2norm(rand(1, 1, 6), eps=0.0).expand(2, -1, -1)
    v = rand(2, 1, 4)
    result = kda(k, k, v, torch.zeros(2, 1, 6), torch.ones(2, 1), scale=1.0)
    assert_close(result.o, v, rtol=1e-14, atol=1e-14)
    assert_close(result.state[0], torch.outer(k[0, 0], v[1, 0]), rtol=1e-14, atol=1e-14)


def test_beta_zero_only_decays_each_key_channel(rand):
    x = make(rand, kda, 7, 2, 2, 4, 3)._replace(beta=torch.zeros(7, 2))
    assert_close(kda(*x).state, x.g.sum(0).exp()[..., None] * x.state, rtol=1e-14, atol=0)


@pytest.mark.parametrize("rule", [kda, gated_delta_rule])
def test_total_forgetting_is_a_fresh_start(rand, rule):
    """A decay of zero acts on what stood before the token, and not on what the token writes."""
    x = make(rand, rule, 8, 2, 2, 4, 4)
    x.g[3] = -torch.inf
    fresh = rule(*(part[3:] for part in x[:5]))
    assert torch.equal(rule(*x).o[3:], fresh.o)


@pytest.mark.parametrize("rule", [kda, gated_delta_rule])
@pytest.mark.parametrize("cut", [0, 1, 17, 32, 33])
def test_continuing_is_bit_identical_to_one_run(rand, rule, cut):
    x = make(rand, rule, 33, 1, 3, 15, 13)  # odd sizes: no vector register is filled evenly
    whole = rule(*x, keep=[cut])
    first = rule(*(part[:cut] for part in x[:5]), x.state)
    second = rule(*(part[cut:] for part in x[:5]), first.state)
    assert torch.equal(torch.cat([first.o, second.o]), whole.o)
    assert torch.equal(second.state, whole.state)
    assert torch.equal(first.state, whole.kept[cut])


def test_every_state_can_be_kept_and_none_is_shared(rand):
    x = make(rand, kda, 6, 1, 1, 4, 4)
    start = x.state.clone()
    result = kda(*x, keep=range(7))
    assert list(result.kept) == list(range(7))
    assert torch.equal(x.state, start)
    assert torch.equal(result.kept[0], start)
    assert torch.equal(result.kept[6], result.state)
    states = torch.stack(list(result.kept.values()))
    distance = (states[:, None] - states[None]).abs().amax((-1, -2, -3))
    assert (distance + torch.eye(7) > 1e-3).all(), "two depths hold the same state"


def test_scale_defaults_to_inverse_root_of_key_dim(rand):
    x = make(rand, gated_delta_rule, 5, 1, 1, 16, 4)
    assert_close(gated_delta_rule(*x).o, gated_delta_rule(*x, scale=1.0).o / 4, rtol=1e-14, atol=1e-15)


def test_misfits_are_refused(rand):
    x = make(rand, kda, 5, 2, 2, 4, 4)
    with pytest.raises(ValueError, match="after 6 tokens of a run over 5"):
        kda(*x, keep=[2, 6])
    with pytest.raises(ValueError, match=r"state \(4, 4\) does not fit \(2, 4, 4\)"):
        kda(*x._replace(state=x.state[0]))
    with pytest.raises(ValueError, match="2 value heads cannot share 3 key heads"):
        kda(*x._replace(k=rand(5, 3, 4), q=rand(5, 3, 4)))


def test_kda_gate_layout(rand):
    x, a_log, dt_bias = rand(3, 6), rand(2), rand(6)  # two heads of three channels
    g = kda_gate(x, a_log, dt_bias)
    for t, head, channel in [(0, 0, 0), (1, 0, 2), (2, 1, 0), (2, 1, 2)]:
        flat = head * 3 + channel
        rate = math.log1p(math.exp(x[t, flat] + dt_bias[flat]))
        assert g[t, head, channel].item() == pytest.approx(-math.exp(a_log[head]) * rate, rel=1e-14)


def test_gdn_gate_has_its_own_rate_per_head(rand):
    a, a_log, dt_bias = rand(3, 2), rand(2), rand(2)
    rate = math.log1p(math.exp(a[2, 1] + dt_bias[1]))
    assert gdn_gate(a, a_log, dt_bias)[2, 1].item() == pytest.approx(-math.exp(a_log[1]) * rate, rel=1e-14)


@pytest.mark.parametrize("x", [-1000.0, -30.0, 0.0, 25.0, 1000.0])
def test_softplus_is_exact_where_torch_switches_to_the_identity(x):
    exact = x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))
    assert softplus(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(exact, rel=1e-16, abs=0)


def test_l2norm_adds_eps_to_the_sum_of_squares(rand):
    x = rand(4, 2, 8)
    assert_close(l2norm(x, eps=0.0).norm(dim=-1), torch.ones(4, 2, dtype=torch.float64), rtol=1e-14, atol=0)
    assert_close(l2norm(torch.tensor([3e-3, 4e-3]).double(), eps=25e-6), torch.tensor([0.6, 0.8]).double() / 2**0.5)
    assert torch.equal(l2norm(torch.zeros(3)), torch.zeros(3, dtype=torch.float64))

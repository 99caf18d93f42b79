"""The stack against its layer equations, written out here with torch's own functions, and its continuation."""

from __future__ import annotations

import pytest
import torch
from mamba_replay_check.checker.layers import AttentionSpec, RecurrentSpec, SpecError, weight_shapes
from mamba_replay_check.reference import stack
from mamba_replay_check.reference.mixers import AttentionState, RecurrentState, run_mixer
from mamba_replay_check.reference.recurrences import gated_delta_rule, kda
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

HIDDEN, MLP, VOCAB = 24, 20, 31
KDA = RecurrentSpec("kda", heads=2, value_heads=2, key_dim=8, value_dim=6, conv_width=4)
GDN = RecurrentSpec("gdn", heads=2, value_heads=4, key_dim=8, value_dim=6, conv_width=3)
KIMI = AttentionSpec(heads=4, kv_heads=2, head_dim=8)
QWEN = AttentionSpec(heads=4, kv_heads=2, head_dim=8, rotary_dim=4, theta=500.0, gated=True, qk_norm=True)
SPECS = (KDA, GDN, QWEN, KDA, KIMI)
TOKENS = 40

LAYERS = [pytest.param(i, id=f"{i} {spec.kind}") for i, spec in enumerate(SPECS)]


@pytest.fixture
def weights(rand) -> dict[str, Tensor]:
    """Standard normal, with rows of matrices of length near 1."""
    shapes = weight_shapes(SPECS, vocab=VOCAB, hidden=HIDDEN, mlp=MLP)
    return {name: rand(*shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 1.0) for name, shape in shapes.items()}


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(1))


def conv(x: Tensor, weight: Tensor) -> Tensor:
    padded = functional.pad(x.T, (weight.shape[1] - 1, 0))[None]
    return functional.silu(functional.conv1d(padded, weight[:, None], groups=len(weight)))[0].T


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def kda_mix(y: Tensor, w: dict[str, Tensor]) -> Tensor:
    q, k, v = (conv(y @ w[f"{n}_proj.weight"].T, w[f"{n}_conv.weight"]).view(len(y), 2, -1) for n in "qkv")
    rate = functional.softplus(y @ w["f_a.weight"].T @ w["f_b.weight"].T + w["dt_bias"]).view(len(y), 2, 8)
    beta = torch.sigmoid(y @ w["b_proj.weight"].T)
    o = kda(unit(q), unit(k), v, -w["A_log"].exp()[:, None] * rate, beta).o
    gate = (y @ w["g_a.weight"].T @ w["g_b.weight"].T + w["g_b.bias"]).view(len(y), 2, 6)
    return (functional.rms_norm(o, (6,), w["o_norm.weight"], 1e-5) * torch.sigmoid(gate)).flatten(1)


def gdn_mix(y: Tensor, w: dict[str, Tensor]) -> Tensor:
    joint = conv(torch.cat([y @ w[f"{n}_proj.weight"].T for n in "qkv"], 1), w["conv.weight"])
    q, k, v = joint[:, :16].view(-1, 2, 8), joint[:, 16:32].view(-1, 2, 8), joint[:, 32:].view(-1, 4, 6)
    g = -w["A_log"].exp() * functional.softplus(y @ w["a_proj.weight"].T + w["dt_bias"])
    o = gated_delta_rule(unit(q), unit(k), v, g, torch.sigmoid(y @ w["b_proj.weight"].T)).o
    gate = (y @ w["g_proj.weight"].T).view(len(y), 4, 6)
    return (functional.rms_norm(o, (6,), w["o_norm.weight"], 1e-6) * functional.silu(gate)).flatten(1)


def attention_mix(y: Tensor, w: dict[str, Tensor], spec: AttentionSpec) -> Tensor:
    q, k, v = ((y @ w[f"{n}_proj.weight"].T).unflatten(1, (-1, 8)).transpose(0, 1) for n in "qkv")
    if spec is QWEN:
        turn = torch.exp(1j * torch.arange(len(y))[:, None] * 500.0 ** -torch.tensor([0.0, 0.5], dtype=torch.float64))
        q, k = (functional.rms_norm(x, (8,), w[f"{n}_norm.weight"], 1e-6) for n, x in (("q", q), ("k", k)))
        pairs = [torch.complex(x[..., :2], x[..., 2:4]) * turn for x in (q, k)]
        q, k = (torch.cat([p.real, p.imag, x[..., 4:]], -1) for p, x in zip(pairs, (q, k), strict=True))
    o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1).flatten(1)
    return o * torch.sigmoid(y @ w["g_proj.weight"].T) if spec is QWEN else o


def test_hidden_states_follow_the_layer_equations(weights, tokens):
    x = weights["embedding.weight"][tokens]
    hidden = stack.run(weights, SPECS, tokens).hidden
    assert hidden.shape == (len(SPECS), TOKENS, HIDDEN)
    for i, spec in enumerate(SPECS):
        w = {name.split(".", 2)[2]: value for name, value in weights.items() if name.startswith(f"layers.{i}.")}
        y = functional.rms_norm(x, (HIDDEN,), w["norm1.weight"], 1e-6)
        o = {"kda": kda_mix, "gdn": gdn_mix}[spec.kind](y, w) if spec in (KDA, GDN) else attention_mix(y, w, spec)
        x = x + o @ w["o_proj.weight"].T
        z = functional.rms_norm(x, (HIDDEN,), w["norm2.weight"], 1e-6)
        up = functional.silu(z @ w["gate_proj.weight"].T) * (z @ w["up_proj.weight"].T)
        x = x + up @ w["down_proj.weight"].T
        assert_close(hidden[i], x, rtol=1e-11, atol=1e-12, msg=lambda text, i=i: f"layer {i}: {text}")


def test_every_weight_is_read(weights, tokens):
    before = stack.run(weights, SPECS, tokens).hidden[-1]
    for name, weight in weights.items():
        after = stack.run({**weights, name: weight + 0.1}, SPECS, tokens).hidden[-1]
        assert (after - before).abs().max() > 1e-6, f"{name} changes nothing"


@pytest.mark.parametrize("cut", [0, 1, 2, 17, 39, 40])
def test_continuing_is_one_run(weights, tokens, cut):
    whole = stack.run(weights, SPECS, tokens)
    first = stack.run(weights, SPECS, tokens[:cut])
    second = stack.run(weights, SPECS, tokens[cut:], first.state)
    hidden = torch.cat([first.hidden, second.hidden], dim=1)
    assert_close(hidden, whole.hidden, rtol=0, atol=1e-13)
    assert_state_close(second.state, whole.state)


def test_kept_states_are_those_of_shorter_runs(weights, tokens):
    start = stack.run(weights, SPECS, tokens[:5]).state
    kept = stack.run(weights, SPECS, tokens[5:], start, keep=[35, 0, 12]).kept
    assert list(kept) == [0, 12, 35]
    for depth, state in kept.items():
        assert_state_close(state, stack.run(weights, SPECS, tokens[: 5 + depth]).state)


def assert_state_close(actual: stack.StackState, expected: stack.StackState) -> None:
    for one, other in zip(actual, expected, strict=True):
        fields = ("recurrent", "window") if isinstance(one, RecurrentState) else ("k", "v")
        for field in fields:
            assert_close(getattr(one, field), getattr(other, field), rtol=0, atol=1e-13)


@pytest.mark.parametrize("index", LAYERS)
def test_a_layer_can_be_recomputed_alone_over_a_window(weights, tokens, index):
    whole = stack.run(weights, SPECS, tokens, keep=[16])
    x = whole.hidden[index - 1] if index else stack.embed(weights, tokens)
    start = whole.kept[16][index]
    alone = stack.run_layer(weights, index, SPECS[index], x[16:30], start)
    assert_close(alone.out, whole.hidden[index, 16:30], rtol=0, atol=1e-13)
    mixed = run_mixer(weights, index, SPECS[index], x, keep=[16])
    assert_close(run_mixer(weights, index, SPECS[index], x[16:30], start).out, mixed.out[16:30], rtol=0, atol=1e-13)
    assert_state_close((mixed.kept[16],), (start,))


def test_states_have_the_shapes_the_specs_say(weights, tokens):
    for spec, state in zip(SPECS, stack.run(weights, SPECS, tokens).state, strict=True):
        if isinstance(spec, RecurrentSpec):
            assert (state.recurrent.shape, state.window.shape) == (spec.state_shape, spec.window_shape)
        else:
            assert state.k.shape == state.v.shape == (TOKENS, spec.kv_heads, spec.head_dim)


def test_resuming_from_the_right_depth_is_a_cold_run_and_from_a_deeper_one_is_not(weights, tokens):
    cold = stack.run(weights, SPECS, tokens, keep=[24, 25])
    right = stack.resumed(cold.kept[24], cold.state, 24)
    wrong = stack.resumed(cold.kept[25], cold.state, 24)  # token 24 goes through the recurrent layers twice
    assert_close(stack.run(weights, SPECS, tokens[24:], right).hidden, cold.hidden[:, 24:], rtol=0, atol=1e-13)
    error = (stack.run(weights, SPECS, tokens[24:], wrong).hidden - cold.hidden[:, 24:]).abs().amax(-1)
    assert (error[:, 0] > 1e-3).all(), "every layer sees it at the first token"


def test_low_precision_weights_are_widened_first(weights, tokens):
    rounded = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    widened = {name: weight.double() for name, weight in rounded.items()}
    hidden = stack.run(rounded, SPECS, tokens).hidden
    assert hidden.dtype == torch.float64
    assert torch.equal(hidden, stack.run(widened, SPECS, tokens).hidden)


def test_misfits_are_refused(weights, tokens):
    state = stack.run(weights, SPECS, tokens[:4]).state
    with pytest.raises(TypeError, match="layer 0 is kda: it cannot start from AttentionState"):
        stack.run(weights, SPECS, tokens, state[::-1])
    with pytest.raises(ValueError, match="zip"):
        stack.run(weights, SPECS, tokens, state[:-1])
    with pytest.raises(ValueError, match="after 41 tokens of a run over 40"):
        stack.run(weights, (KIMI,), tokens, keep=[41])
    with pytest.raises(ValueError, match="cannot cut a cache of 4 tokens at 5"):
        AttentionState(torch.zeros(4, 1, 2), torch.zeros(4, 1, 2)).cut(5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RecurrentSpec("gdn", 2, 3, 8, 8, 4), "3 value heads cannot share 2 key heads evenly"),
        (lambda: RecurrentSpec("kda", 2, 4, 8, 8, 4), "kda has one value head per key head, not 4 for 2"),
        (lambda: AttentionSpec(4, 3, 8), "4 heads cannot share 3 kv heads evenly"),
        (lambda: AttentionSpec(4, 2, 8, rotary_dim=10), "rotary_dim 10 must be even and between 0 and head_dim 8"),
        (lambda: AttentionSpec(4, 2, 8, rotary_dim=3), "rotary_dim 3 must be even"),
    ],
)
def test_impossible_specs_are_refused(build, message):
    with pytest.raises(SpecError, match=message):
        build()

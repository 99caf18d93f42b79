"""The mixers of the hybrid model, and the state that each leaves behind: one layer, over any window of tokens.

KDA, Gated DeltaNet and attention all map y [T, hidden], the normed residual stream, to what the layer adds to it. They
follow the Kimi Linear and Gated DeltaNet papers (see `recurrences`) and Qwen3-Next's gated attention.

A layer's state says all that its past tokens left behind, and nothing outside it does: a KV cache knows its own length,
and positions count from there. Nothing here modifies a state; states at several depths may share storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from mamba_replay_check.checker.layers import AttentionSpec, LayerSpec, RecurrentSpec
from mamba_replay_check.reference.attention import attention, rotary
from mamba_replay_check.reference.convolution import padded_rows, short_convolution, window_at
from mamba_replay_check.reference.norms import gated_rms_norm, rms_norm
from mamba_replay_check.reference.recurrences import gated_delta_rule, gdn_gate, kda, kda_gate, l2norm
from torch import Tensor

Weights: TypeAlias = Mapping[str, Tensor]

RESIDUAL_EPS = 1e-6  # norm1, norm2, q_norm, k_norm, and the l2 norm of q and k
KDA_OUTPUT_EPS = 1e-5
GDN_OUTPUT_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """recurrent [HV, K, V] and window [2 H K + HV V, W - 1]: the last raw conv inputs, channels q then k then v."""

    recurrent: Tensor
    window: Tensor


@dataclass(frozen=True, slots=True)
class AttentionState:
    """k and v [tokens, HKV, D] as attention reads them, so k is already normed and turned."""

    k: Tensor
    v: Tensor

    def cut(self, depth: int) -> AttentionState:
        """The cache of the first `depth` tokens."""
        if not 0 <= depth <= len(self.k):
            raise ValueError(f"cannot cut a cache of {len(self.k)} tokens at {depth}")
        return AttentionState(self.k[:depth], self.v[:depth])


LayerState: TypeAlias = RecurrentState | AttentionState


class LayerResult(NamedTuple):
    """What one layer, or its mixer alone, makes of T tokens."""

    out: Tensor  # [T, hidden]: the mixer's contribution, or the residual stream behind the whole layer
    state: LayerState
    kept: dict[int, LayerState]  # tokens absorbed in this run -> the state at that point


def run_mixer(
    weights: Weights,
    index: int,
    spec: LayerSpec,
    x: Tensor,
    state: LayerState | None = None,
    *,
    keep: Iterable[int] = (),
) -> LayerResult:
    """Only the mixer of layer `index`, norm1 included: what it adds to the residual stream x [T, hidden].

    This recomputes one layer over any window of tokens, from any state, without the layers around it.
    """
    keep = list(keep)
    if outside := [depth for depth in keep if not 0 <= depth <= len(x)]:
        raise ValueError(f"cannot keep the state after {outside[0]} tokens of a run over {len(x)}")
    w = layer_weights(weights, index)
    y = rms_norm(x, w["norm1.weight"], RESIDUAL_EPS)
    match spec, state:
        case RecurrentSpec(), RecurrentState() | None:
            return _recurrent_mixer(w, spec, y, state, keep)
        case AttentionSpec(), AttentionState() | None:
            return _attention_mixer(w, spec, y, state, keep)
    raise TypeError(f"layer {index} is {spec.kind}: it cannot start from {type(state).__name__}")


def _recurrent_mixer(
    w: Weights, spec: RecurrentSpec, y: Tensor, before: RecurrentState | None, keep: list[int]
) -> LayerResult:
    """y [T, hidden] -> mix [T, hidden]. The conv is depthwise, so KDA's three filters run as one over [q|k|v]."""
    raw = torch.cat([linear(y, w[f"{name}_proj.weight"]) for name in "qkv"], dim=-1)
    conv = torch.cat([w[f"{name}_conv.weight"] for name in "qkv"]) if spec.kind == "kda" else w["conv.weight"]
    window = None if before is None else before.window
    filtered, new_window = short_convolution(raw, conv, window)
    q, k, v = filtered.split(spec.qkv_channels, dim=-1)
    q = l2norm(q.unflatten(-1, (spec.heads, spec.key_dim)), RESIDUAL_EPS)
    k = l2norm(k.unflatten(-1, (spec.heads, spec.key_dim)), RESIDUAL_EPS)
    v = v.unflatten(-1, (spec.value_heads, spec.value_dim))
    beta = torch.sigmoid(linear(y, w["b_proj.weight"]))  # [T, HV]

    memory = None if before is None else before.recurrent
    if spec.kind == "kda":
        g = kda_gate(linear(linear(y, w["f_a.weight"]), w["f_b.weight"]), w["A_log"], w["dt_bias"])
        o, memory, kept = kda(q, k, v, g, beta, memory, keep=keep)
        gate = linear(linear(y, w["g_a.weight"]), w["g_b.weight"]) + w["g_b.bias"]
        o = gated_rms_norm(o, gate.view_as(o), w["o_norm.weight"], KDA_OUTPUT_EPS, "sigmoid")
    else:
        g = gdn_gate(linear(y, w["a_proj.weight"]), w["A_log"], w["dt_bias"])
        o, memory, kept = gated_delta_rule(q, k, v, g, beta, memory, keep=keep)
        gate = linear(y, w["g_proj.weight"])
        o = gated_rms_norm(o, gate.view_as(o), w["o_norm.weight"], GDN_OUTPUT_EPS, "silu")
    mix = linear(o.flatten(1), w["o_proj.weight"])

    rows = padded_rows(raw, spec.conv_width, window)
    states = {d: RecurrentState(recurrent, window_at(rows, spec.conv_width, d)) for d, recurrent in kept.items()}
    return LayerResult(mix, RecurrentState(memory, new_window), states)


def _attention_mixer(
    w: Weights, spec: AttentionSpec, y: Tensor, before: AttentionState | None, keep: list[int]
) -> LayerResult:
    """y [T, hidden] -> mix [T, hidden]. Positions go on where the KV cache ends."""
    q, k, v = (linear(y, w[f"{name}_proj.weight"]).unflatten(-1, (-1, spec.head_dim)) for name in "qkv")
    if spec.qk_norm:
        q, k = rms_norm(q, w["q_norm.weight"], RESIDUAL_EPS), rms_norm(k, w["k_norm.weight"], RESIDUAL_EPS)
    prefix = 0 if before is None else len(before.k)
    if spec.rotary_dim:
        positions = torch.arange(prefix, prefix + len(y), device=y.device)
        q, k = (rotary(x, positions, rotary_dim=spec.rotary_dim, theta=spec.theta) for x in (q, k))
    if before is not None:
        k, v = torch.cat([before.k.double(), k]), torch.cat([before.v.double(), v])
    o = attention(q, k, v).flatten(1)
    if spec.gated:
        o = o * torch.sigmoid(linear(y, w["g_proj.weight"]))
    state = AttentionState(k, v)
    return LayerResult(linear(o, w["o_proj.weight"]), state, {depth: state.cut(prefix + depth) for depth in keep})


def layer_weights(weights: Weights, index: int) -> dict[str, Tensor]:
    """The weights of one layer, in float64, without their prefix."""
    prefix = f"layers.{index}."
    return {name.removeprefix(prefix): w.double() for name, w in weights.items() if name.startswith(prefix)}


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T: x [T, in], weight [out, in]."""
    return x @ weight.T

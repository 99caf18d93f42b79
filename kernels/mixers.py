"""One linear-attention layer through FLA's kernels: KDA and Gated DeltaNet, as the published models use them.

A mixer works on packed sequences, as a serving engine's forward pass does: the tokens of all sequences one after the
other, with `bounds` saying where each begins. T below counts the packed tokens, N the sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from mamba_replay_check.checker.layers import RecurrentSpec
from torch import Tensor
from torch.nn.functional import linear, pad

from . import fla

KDA_OUTPUT_EPS = 1e-5
GDN_OUTPUT_EPS = 1e-6

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """All that a linear-attention layer keeps of the tokens it absorbed.

    recurrent: [HV, K, V] float32.
    window:    [W - 1, channels], the last raw inputs of the short convolution, oldest first; zeros before the prompt.
    """

    recurrent: Tensor
    window: Tensor


@dataclass(frozen=True, slots=True)
class MixerRun:
    """What one mixer made of the packed tokens.

    out:      [T, hidden], to be added to the residual stream.
    raw:      [T, channels], the convolution's inputs.
    chunks:   [sum of ceil(T_i / chunk), HV, K, V], FLA's `h`: the state before each chunk, sequence after sequence.
    final:    [N, HV, K, V] float32, the state after each sequence's last token.
    """

    out: Tensor
    raw: Tensor
    chunks: Tensor
    final: Tensor


def run_mixer(
    w: Weights, spec: RecurrentSpec, y: Tensor, bounds: Tensor, before: Sequence[RecurrentState] | None, chunk: int
) -> MixerRun:
    """Prefill the packed tokens y [T, hidden] (already normed) from the states `before`, or from nothing.

    bounds: [N + 1] int64, where each sequence begins in the packing; the last entry is T.
    """
    raw = torch.cat([linear(y, w[f"{name}_proj.weight"]) for name in "qkv"], dim=-1)
    # The filters are depthwise: Kimi's three convolutions over q, k and v are one over all channels.
    filters = w["conv.weight"] if spec.kind == "gdn" else torch.cat([w[f"{name}_conv.weight"] for name in "qkv"])
    window, recurrent = None, None
    if before is not None:
        # FLA's convolution state has W columns, of which the oldest is never read.
        window = torch.stack([pad(state.window.T, (1, 0)) for state in before]).to(y.dtype)
        recurrent = torch.stack([state.recurrent for state in before]).float()
    filtered, _ = fla.causal_conv1d(
        raw[None], filters, activation="silu", initial_state=window, cu_seqlens=bounds, backend="triton"
    )
    q, k, v = filtered.split(spec.qkv_channels, dim=-1)
    q = q.unflatten(-1, (spec.heads, spec.key_dim))
    k = k.unflatten(-1, (spec.heads, spec.key_dim))
    v = v.unflatten(-1, (spec.value_heads, spec.value_dim))
    beta = torch.sigmoid(linear(y, w["b_proj.weight"]))[None]
    attend = _kda if spec.kind == "kda" else _gated_delta_rule
    o, chunks, final, gate, activation, eps = attend(w, y, q, k, v, beta, recurrent, bounds, chunk)
    o = fla.rms_norm_gated(o[0], gate.view_as(o[0]), w["o_norm.weight"], None, activation=activation, eps=eps)
    return MixerRun(linear(o.flatten(1), w["o_proj.weight"]), raw, chunks[0], final)


def _kda(w: Weights, y, q, k, v, beta, recurrent, bounds, chunk: int):
    """Kimi Delta Attention (arXiv 2510.26692): a decay per key channel, made in the kernel from A_log and dt_bias."""
    g = linear(linear(y, w["f_a.weight"]), w["f_b.weight"]).view_as(k[0])[None]
    o, final, chunks = fla.chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        A_log=w["A_log"],
        dt_bias=w["dt_bias"],
        initial_state=recurrent,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        return_intermediate_states=True,
        cu_seqlens=bounds,
        chunk_size=chunk,
    )
    gate = linear(linear(y, w["g_a.weight"]), w["g_b.weight"], w["g_b.bias"])
    return o, chunks, final, gate, "sigmoid", KDA_OUTPUT_EPS


def _gated_delta_rule(w: Weights, y, q, k, v, beta, recurrent, bounds, chunk: int):
    """Gated DeltaNet (arXiv 2412.06464): one decay per head.

    FLA's `chunk_gated_delta_rule` keeps the states at chunk boundaries to itself; this is its forward pass, kernel by
    kernel, with those states handed out (a test holds the two equal).
    """
    indices = fla.prepare_chunk_indices(bounds, chunk)
    packing = {"cu_seqlens": bounds, "chunk_indices": indices, "chunk_size": chunk}
    q, _ = fla.l2norm_fwd(q.contiguous())
    k, _ = fla.l2norm_fwd(k.contiguous())
    a = linear(y, w["a_proj.weight"])[None]
    g = fla.gdn_gate_chunk_cumsum(g=a, A_log=w["A_log"], dt_bias=w["dt_bias"], scale=fla.RCP_LN2, **packing)
    v = v.contiguous()
    ww, u, _ = fla.chunk_gated_delta_rule_fwd_intra(k=k, v=v, g=g, beta=beta, **packing)
    chunks, fresh, final = fla.chunk_gated_delta_rule_fwd_h(
        k=k, w=ww, u=u, g=g, initial_state=recurrent, output_final_state=True, **packing
    )
    o = fla.chunk_fwd_o(q=q, k=k, v=fresh, h=chunks, g=g, scale=k.shape[-1] ** -0.5, **packing)
    return o.to(q.dtype), chunks, final, linear(y, w["g_proj.weight"]), "swish", GDN_OUTPUT_EPS

"""A causal softmax attention layer with a KV cache. Right by construction: the recurrent layers are on trial here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from mamba_replay_check.checker.layers import AttentionSpec
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class KVCache:
    """k, v: [tokens, HKV, D], as attention reads them (k normed and rotated). A prefix of it is a cut at any page."""

    k: Tensor
    v: Tensor

    def cut(self, depth: int) -> KVCache:
        """The cache of the first `depth` tokens."""
        return KVCache(self.k[:depth], self.v[:depth])


def run_attention(
    w: Mapping[str, Tensor], spec: AttentionSpec, y: Tensor, start: int, cache: KVCache | None
) -> tuple[Tensor, KVCache]:
    """Attend over one sequence: y [n, hidden] (already normed) at positions start, start + 1, ...

    cache holds the `start` tokens before. Returns what to add to the residual stream, and the longer cache.
    """
    q, k, v = (linear(y, w[f"{name}_proj.weight"]).unflatten(-1, (-1, spec.head_dim)) for name in "qkv")
    if spec.qk_norm:
        q = rms_norm(q, (spec.head_dim,), w["q_norm.weight"], 1e-6)
        k = rms_norm(k, (spec.head_dim,), w["k_norm.weight"], 1e-6)
    if spec.rotary_dim:
        positions = torch.arange(start, start + len(y), device=y.device)
        q, k = _rotated(q, positions, spec), _rotated(k, positions, spec)
    if cache is not None:
        k, v = torch.cat([cache.k, k]), torch.cat([cache.v, v])
    mask = torch.ones(len(y), len(k), dtype=torch.bool, device=y.device).tril(start) if start else None
    groups = spec.heads // spec.kv_heads
    heads = [x.transpose(0, 1).repeat_interleave(n, 0) for x, n in ((q, 1), (k, groups), (v, groups))]
    o = scaled_dot_product_attention(*(h[None] for h in heads), attn_mask=mask, is_causal=mask is None)
    o = o[0].transpose(0, 1).flatten(1)
    if spec.gated:
        o = o * torch.sigmoid(linear(y, w["g_proj.weight"]))
    return linear(o, w["o_proj.weight"]), KVCache(k, v)


def _rotated(x: Tensor, positions: Tensor, spec: AttentionSpec) -> Tensor:
    """Rotary embedding of the first rotary_dim channels of x [n, heads, D], halves paired (as Qwen3-Next does)."""
    half = spec.rotary_dim // 2
    # In float64: at position 20,000 a float32 angle is off by 1e-3 radians, which would look like a cache fault.
    rates = spec.theta ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = (positions[:, None] * rates)[:, None]
    cos, sin = angles.cos().float(), angles.sin().float()
    a, b = x[..., :half].float(), x[..., half : spec.rotary_dim].float()
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
    return torch.cat([turned, x[..., spec.rotary_dim :]], dim=-1)

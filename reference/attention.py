"""Causal softmax attention (Vaswani et al., 2017) over a KV prefix, and partial rotary embedding (Su et al., 2021).

o_t = sum_{s <= t} softmax_s(scale q_t . k_s) v_s
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = 256
"""Queries scored together. Each has its own complete softmax, so this bounds memory and changes no result."""


def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Let each of the last T tokens look at itself and all tokens before it.

    q [T, H, D]; k, v [S, HKV, D] with S >= T: a prefix of S - T cached tokens, then the tokens of q. H is a multiple of
    HKV, and head h reads kv head h // (H // HKV). `scale` defaults to D ** -0.5. Returns o [T, H, D] in float64.
    """
    tokens, heads, dim = q.shape
    prefix, kv_heads = k.shape[0] - tokens, k.shape[1]
    if prefix < 0 or heads % kv_heads:
        raise ValueError(f"q {tuple(q.shape)} cannot attend to k {tuple(k.shape)}")
    q = q.double() * (dim**-0.5 if scale is None else scale)
    k, v = k.double(), v.double()
    o = torch.empty(tokens, heads, v.shape[-1], dtype=torch.float64, device=q.device)
    for head in range(heads):
        keys, values = (x[:, head // (heads // kv_heads)] for x in (k, v))
        for start in range(0, tokens, ROWS):
            end = min(start + ROWS, tokens)
            seen = prefix + end
            scores = q[start:end, head] @ keys[:seen].T  # [rows, seen]
            ahead = torch.ones_like(scores, dtype=torch.bool).triu(prefix + start + 1)
            o[start:end, head] = torch.softmax(scores.masked_fill(ahead, -torch.inf), dim=-1) @ values[:seen]
    return o


def rotary(x: Tensor, positions: Tensor, *, rotary_dim: int, theta: float) -> Tensor:
    """Turn the first `rotary_dim` channels of each head by an angle that grows with the token's position.

    x [T, H, D]; positions [T] whole numbers. Channel j is paired with channel j + rotary_dim / 2 (the half-split,
    "neox" convention), and the pair turns by position * theta ** (-2 j / rotary_dim). The other channels pass
    unchanged. Angles are float64: float32 ones are off by up to 1e-3 at position 20,000.
    """
    if rotary_dim % 2 or rotary_dim > x.shape[-1]:
        raise ValueError(f"rotary_dim {rotary_dim} must be even and at most {x.shape[-1]}")
    x, half = x.double(), rotary_dim // 2
    pairs = torch.arange(half, dtype=torch.float64, device=x.device)
    angles = positions.double()[:, None] * theta ** (-2 * pairs / max(rotary_dim, 1))  # [T, half]
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)  # [T, 1, half]
    first, second, rest = x[..., :half], x[..., half:rotary_dim], x[..., rotary_dim:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)

"""What a small hybrid model is made of: one frozen spec per layer, and the names and shapes of its weights.

Only sizes live here. What a layer computes with them is written twice, and apart: with real kernels in kernels/, and in
float64 in reference/
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Shapes: TypeAlias = dict[str, tuple[int, ...]]


class SpecError(ValueError):
    """Sizes that no layer can be built from; the message names them."""


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """A linear-attention layer: H heads of q and k over K channels, HV heads of v over V channels."""

    kind: Literal["kda", "gdn"]
    heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    def __post_init__(self) -> None:
        if self.value_heads % self.heads:
            raise SpecError(f"{self.value_heads} value heads cannot share {self.heads} key heads evenly")
        if self.kind == "kda" and self.value_heads != self.heads:
            raise SpecError(f"kda has one value head per key head, not {self.value_heads} for {self.heads}")

    @property
    def qkv_channels(self) -> tuple[int, int, int]:
        """The channels of q, k and v, in the order in which the conv window holds them."""
        return self.heads * self.key_dim, self.heads * self.key_dim, self.value_heads * self.value_dim

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.value_heads, self.key_dim, self.value_dim

    @property
    def window_shape(self) -> tuple[int, int]:
        return sum(self.qkv_channels), self.conv_width - 1


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """A softmax attention layer. Kimi's has no positions, gate or norms: the defaults. Qwen3-Next's has all three."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int = 0  # channels of each head that turn with the position; 0 is no positional encoding
    theta: float = 10_000.0
    gated: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise SpecError(f"{self.heads} heads cannot share {self.kv_heads} kv heads evenly")
        if self.rotary_dim % 2 or not 0 <= self.rotary_dim <= self.head_dim:
            raise SpecError(f"rotary_dim {self.rotary_dim} must be even and between 0 and head_dim {self.head_dim}")

    @property
    def kind(self) -> Literal["attention"]:
        return "attention"


LayerSpec: TypeAlias = RecurrentSpec | AttentionSpec


def weight_shapes(specs: Sequence[LayerSpec], *, vocab: int, hidden: int, mlp: int) -> Shapes:
    """Every weight that `stack.run` reads, by name, with its shape."""
    shapes: Shapes = {"embedding.weight": (vocab, hidden)}
    for i, spec in enumerate(specs):
        mixer = _recurrent_shapes(spec, hidden) if isinstance(spec, RecurrentSpec) else _attention_shapes(spec, hidden)
        layer: Shapes = {
            "norm1.weight": (hidden,),
            **mixer,
            "norm2.weight": (hidden,),
            "gate_proj.weight": (mlp, hidden),
            "up_proj.weight": (mlp, hidden),
            "down_proj.weight": (hidden, mlp),
        }
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _recurrent_shapes(spec: RecurrentSpec, hidden: int) -> Shapes:
    channels = dict(zip("qkv", spec.qkv_channels, strict=True))
    shapes: Shapes = {f"{name}_proj.weight": (size, hidden) for name, size in channels.items()}
    if spec.kind == "kda":
        shapes |= {f"{name}_conv.weight": (size, spec.conv_width) for name, size in channels.items()}
        shapes |= {
            "f_a.weight": (spec.value_dim, hidden),
            "f_b.weight": (channels["k"], spec.value_dim),
            "dt_bias": (channels["k"],),
            "g_a.weight": (spec.value_dim, hidden),
            "g_b.weight": (channels["v"], spec.value_dim),
            "g_b.bias": (channels["v"],),
        }
    else:
        shapes |= {
            "conv.weight": (sum(channels.values()), spec.conv_width),
            "a_proj.weight": (spec.value_heads, hidden),
            "dt_bias": (spec.value_heads,),
            "g_proj.weight": (channels["v"], hidden),
        }
    return shapes | {
        "A_log": (spec.value_heads,),
        "b_proj.weight": (spec.value_heads, hidden),
        "o_norm.weight": (spec.value_dim,),
        "o_proj.weight": (hidden, channels["v"]),
    }


def _attention_shapes(spec: AttentionSpec, hidden: int) -> Shapes:
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    shapes: Shapes = {
        "q_proj.weight": (queries, hidden),
        "k_proj.weight": (keys, hidden),
        "v_proj.weight": (keys, hidden),
        "o_proj.weight": (hidden, queries),
    }
    if spec.gated:
        shapes["g_proj.weight"] = (queries, hidden)
    if spec.qk_norm:
        shapes |= {"q_norm.weight": (spec.head_dim,), "k_norm.weight": (spec.head_dim,)}
    return shapes

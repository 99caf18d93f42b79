"""The whole small hybrid model in float64: what a resumed run of the real kernels is judged against.

With x the residual stream [T, hidden], x = embedding[tokens], each layer is

    x = x + mixer(rms_norm(x, norm1))
    z = rms_norm(x, norm2);  x = x + (silu(z gate_proj^T) * (z up_proj^T)) down_proj^T

and its hidden state is that last x. There is no final norm and no head: the residual stream is what gets compared.
`checker.layers.weight_shapes` lists the weights; they may have any dtype, and are read in float64.

The states of different layers may come from different depths, which is the very defect this project looks for:
`resumed` builds such a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from mamba_replay_check.checker.layers import LayerSpec
from mamba_replay_check.reference.convolution import silu
from mamba_replay_check.reference.mixers import (
    RESIDUAL_EPS,
    AttentionState,
    LayerResult,
    LayerState,
    Weights,
    layer_weights,
    linear,
    run_mixer,
)
from mamba_replay_check.reference.norms import rms_norm
from torch import Tensor

StackState: TypeAlias = tuple[LayerState, ...]


class Result(NamedTuple):
    """What the stack makes of T tokens."""

    hidden: Tensor  # [layers, T, hidden]: hidden[i] is the residual stream behind layer i
    state: StackState
    kept: dict[int, StackState]  # tokens absorbed in this run -> the state of every layer at that point


def run(
    weights: Weights,
    specs: Sequence[LayerSpec],
    tokens: Tensor,
    state: StackState | None = None,
    *,
    keep: Iterable[int] = (),
) -> Result:
    """Run tokens [T] through all layers, from `state` or from nothing.

    `keep` names the token counts, 0 to T and counted from the start of this run, whose states to return.
    Continuing from a state gives what one run would have given, up to float64 rounding in the matrix products.
    """
    keep = sorted(set(keep))
    states = (None,) * len(specs) if state is None else state
    x = embed(weights, tokens)
    layers = []
    for i, (spec, before) in enumerate(zip(specs, states, strict=True)):
        layers.append(run_layer(weights, i, spec, x, before, keep=keep))
        x = layers[-1].out
    hidden = torch.stack([layer.out for layer in layers]) if layers else x.new_zeros(0, *x.shape)
    kept = {depth: tuple(layer.kept[depth] for layer in layers) for depth in keep}
    return Result(hidden, tuple(layer.state for layer in layers), kept)


def resumed(donated: StackState, cached: StackState, cached_tokens: int) -> StackState:
    """What an engine resumes from: the recurrent state it was donated, whatever its depth, and a KV cache cut there."""
    return tuple(
        kv.cut(cached_tokens) if isinstance(kv, AttentionState) else own
        for own, kv in zip(donated, cached, strict=True)
    )


def embed(weights: Weights, tokens: Tensor) -> Tensor:
    """The residual stream [T, hidden] in front of layer 0."""
    return weights["embedding.weight"][tokens].double()


def run_layer(
    weights: Weights,
    index: int,
    spec: LayerSpec,
    x: Tensor,
    state: LayerState | None = None,
    *,
    keep: Iterable[int] = (),
) -> LayerResult:
    """Layer `index` on the residual stream x [T, hidden] in front of it: `embed`, or hidden[index - 1] of a run."""
    mixed = run_mixer(weights, index, spec, x, state, keep=keep)
    w = layer_weights(weights, index)
    x = x.double() + mixed.out
    z = rms_norm(x, w["norm2.weight"], RESIDUAL_EPS)
    mlp = linear(silu(linear(z, w["gate_proj.weight"])) * linear(z, w["up_proj.weight"]), w["down_proj.weight"])
    return mixed._replace(out=x + mlp)

"""Seeded weights, drawn as the published models initialise theirs, so that states decay as they do in a real model."""

from __future__ import annotations

import hashlib
import math

import torch
from mamba_replay_check.checker.layers import weight_shapes
from torch import Tensor

from .presets import Preset

FLOAT32_WEIGHTS = ("A_log", "dt_bias")
"""Kept in float32 whatever the dtype of the model: they drive the gates, and engines keep them so."""


def seeded_weights(preset: Preset, seed: int, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """All weights of the preset by name. Each is drawn from its own generator, so none depends on the others' sizes."""
    shapes = weight_shapes(preset.layers, vocab=preset.vocab, hidden=preset.hidden, mlp=preset.mlp)
    weights = {}
    for name, shape in shapes.items():
        drawn = _draw(name, shape, _generator(seed, name))
        kind = torch.float32 if name.endswith(FLOAT32_WEIGHTS) else dtype
        weights[name] = drawn.to(device=device, dtype=kind)
    return weights


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """The distribution that fits the weight's role, told by its name."""
    if name.endswith("A_log"):  # Mamba2's: decay rates from 1 to 16
        return torch.empty(shape).uniform_(1, 16, generator=generator).log()
    if name.endswith("dt_bias"):  # Mamba2's: time steps from 0.001 to 0.1, through the inverse of softplus
        steps = torch.empty(shape).uniform_(math.log(0.001), math.log(0.1), generator=generator).exp()
        return steps + torch.log(-torch.expm1(-steps))
    if "norm" in name:
        return 1 + 0.1 * torch.randn(shape, generator=generator)
    if "conv" in name:
        bound = shape[-1] ** -0.5
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)
    if name.startswith("embedding"):
        return torch.randn(shape, generator=generator)
    return torch.randn(shape, generator=generator) * shape[-1] ** -0.5

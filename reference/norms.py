"""Root-mean-square norms (Zhang, Sennrich, 2019), plain and with an output gate."""

from __future__ import annotations

from typing import Literal

import torch
from mamba_replay_check.reference.convolution import silu
from torch import Tensor

Activation = Literal["sigmoid", "silu"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis: x [..., D], weight [D], not one plus weight."""
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, activation: Activation) -> Tensor:
    """rms_norm(x) * activation(gate), x and gate [..., D]: the gate acts after the norm.

    Kimi Linear gates with a sigmoid, Gated DeltaNet and Qwen3-Next with SiLU.
    """
    gate = gate.double()
    return rms_norm(x, weight, eps) * (torch.sigmoid(gate) if activation == "sigmoid" else silu(gate))

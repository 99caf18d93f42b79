"""The short convolution in front of the recurrence: causal, one filter per channel, then SiLU.

    y_t = silu(sum_{w=0}^{W-1} weight[:, w] * x_{t - (W-1) + w})

as in Mamba (Gu, Dao, 2023) and the Kimi Linear and Gated DeltaNet papers after it. The last tap is the current token.
Its whole memory is the last W - 1 raw inputs, before the filter: the conv state that engines snapshot beside S.
"""

from __future__ import annotations

import torch
from torch import Tensor


def short_convolution(x: Tensor, weight: Tensor, window: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Filter the rows of x and move the window past them.

    x [T, channels]; weight [channels, W]; window [channels, W - 1], oldest first, or None for zeros, never modified.
    Returns y [T, channels] and the new window, both float64 and owned by the caller.
    """
    weight = weight.double()
    tokens, width = x.shape[0], weight.shape[1]
    rows = padded_rows(x, width, window)
    y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for w in range(width):
        y += rows[w : w + tokens] * weight[:, w]
    return silu(y), window_at(rows, width, tokens)


def padded_rows(x: Tensor, width: int, window: Tensor | None) -> Tensor:
    """The raw inputs [W - 1 + T, channels] that T outputs read: the window's rows, then x."""
    channels = x.shape[1]
    before = x.new_zeros(channels, width - 1) if window is None else window
    if before.shape != (channels, width - 1):
        raise ValueError(f"window {tuple(before.shape)} does not fit {(channels, width - 1)}")
    return torch.cat([before.double().T, x.double()])


def window_at(rows: Tensor, width: int, depth: int) -> Tensor:
    """The window [channels, W - 1] once `depth` tokens are absorbed, from what `padded_rows` returned."""
    return rows[depth : depth + width - 1].T.contiguous()


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x), also called swish."""
    return x * torch.sigmoid(x)

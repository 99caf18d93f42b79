"""How much memory a cold run takes, so that a prompt too long for this machine is refused before it is started."""

from __future__ import annotations

import os
from pathlib import Path

from mamba_replay_check.checker.layers import RecurrentSpec

from .presets import Preset


def cold_run_bytes(preset: Preset, tokens: int, chunk: int) -> int:
    """An estimate of the peak for one cold pass, in float32, on the safe side: measured peaks were 0.5 to 0.7 of it.

    Kept for the whole run, per token: the residual stream before and behind each layer, convolution inputs, KV, and
    the states at chunk boundaries. On top, while one recurrent layer runs: about sixteen arrays of its channels (q, k,
    v before and after the convolution, gates, the kernels' intermediates) and its two chunk-by-chunk matrices.
    """
    kept, transient = preset.hidden * (len(preset.layers) + 1), 8 * (preset.hidden + preset.mlp)
    for spec in preset.layers:
        if isinstance(spec, RecurrentSpec):
            heads, key, value = spec.state_shape
            kept += sum(spec.qkv_channels) + heads * key * value // chunk
            transient = max(transient, 16 * sum(spec.qkv_channels) + 3 * heads * chunk)
        else:
            kept += 2 * spec.kv_heads * spec.head_dim
    return 4 * tokens * (kept + transient)


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

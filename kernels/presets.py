"""Small hybrid models, shaped after the published configurations of the models that serving engines run.

Head dimension, convolution width, layer pattern, gates and norms are as published; heads, layers and hidden size are
cut down, since a wrong state shows in one head as well as in thirty-two. Sources: the `config.json` of
moonshotai/Kimi-Linear-48B-A3B-Instruct and of Qwen/Qwen3-Next-80B-A3B-Instruct.
"""

from __future__ import annotations

from dataclasses import dataclass

from mamba_replay_check.checker.layers import AttentionSpec, LayerSpec, RecurrentSpec


@dataclass(frozen=True, slots=True)
class Preset:
    """A model to build: the layers in order, and the sizes they share.

    chunks: the kernel chunk sizes that the model's kernels can be run with.
    """

    name: str
    layers: tuple[LayerSpec, ...]
    vocab: int
    hidden: int
    mlp: int
    chunks: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.vocab % 2 == 0, "a branch goes on with each token's neighbour"


_KDA = RecurrentSpec("kda", heads=1, value_heads=1, key_dim=64, value_dim=64, conv_width=4)
_NOPE = AttentionSpec(heads=1, kv_heads=1, head_dim=64)
_GDN = RecurrentSpec("gdn", heads=1, value_heads=2, key_dim=64, value_dim=64, conv_width=4)
_GATED = AttentionSpec(heads=2, kv_heads=1, head_dim=64, rotary_dim=16, theta=10_000_000.0, gated=True, qk_norm=True)

PRESETS = {
    preset.name: preset
    for preset in (
        Preset("kimi-linear", (_KDA, _KDA, _KDA, _NOPE), vocab=163_840, hidden=64, mlp=128, chunks=(32, 64)),
        Preset("qwen3-next", (_GDN, _GDN, _GDN, _GATED), vocab=151_936, hidden=64, mlp=128, chunks=(16, 32, 64)),
    )
}

"""The hybrid model: embedding, then layers of norm, mixer or attention, norm and MLP; hidden states kept per layer.

It runs spans of tokens. A cold span starts from nothing at token 0; a resumed span starts wherever an engine says, from
whatever state the engine handed back, over the KV cache of the tokens before. Several spans run as one packed forward
pass, as in an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from mamba_replay_check.checker.layers import AttentionSpec, RecurrentSpec
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from .attention import KVCache, run_attention
from .backend import Backend
from .executor.scope import executing
from .mixers import RecurrentState, run_mixer
from .presets import Preset
from .weights import seeded_weights

RESIDUAL_EPS = 1e-6

StackState = dict[int, RecurrentState]
"""The states of the recurrent layers, by layer number: what an engine snapshots, donates and resumes from."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens to run: ids [n] int64 at positions start, start + 1, ...

    state:  what the recurrent layers start from; None for nothing absorbed.
    caches: the KV caches of the attention layers, by layer number, each exactly `start` tokens long.
    """

    tokens: Tensor
    start: int = 0
    state: StackState | None = None
    caches: dict[int, KVCache] | None = None

    def __post_init__(self) -> None:
        assert len(self.tokens) > 0, "a span has at least one token"
        assert self.start == 0 or self.caches is not None, "a span that starts inside a prompt needs the KV before it"
        assert all(len(cache.k) == self.start for cache in (self.caches or {}).values())


@dataclass(frozen=True, slots=True)
class RecurrentTrace:
    """What one recurrent layer left behind along a span of n tokens.

    raw:    [W - 1 + n, channels], the window it started from and then its convolution inputs.
    width:  W - 1, the rows of a window.
    chunks: [ceil(n / chunk), HV, K, V], the state before each kernel chunk (FLA's `h`, in its dtype).
    final:  [HV, K, V] float32, the state after the last token.
    """

    raw: Tensor
    width: int
    chunks: Tensor
    final: Tensor

    def window(self, absorbed: int) -> Tensor:
        """[W - 1, channels], the convolution window after `absorbed` tokens of the span."""
        return self.raw[absorbed : absorbed + self.width]


@dataclass(frozen=True, slots=True)
class Trace:
    """What a span computed.

    hidden:    [layers, n, hidden], the residual stream behind each layer.
    inputs:    [n, hidden], the residual stream before the first layer (the embedding).
    recurrent: what each recurrent layer left behind, by layer number.
    caches:    the KV cache of each attention layer, [start + n] tokens, by layer number.
    """

    start: int
    hidden: Tensor
    inputs: Tensor
    recurrent: dict[int, RecurrentTrace]
    caches: dict[int, KVCache]

    @property
    def end(self) -> int:
        return self.start + self.hidden.shape[1]

    def state(self, chunk_index: int | None, conv_end: int) -> StackState:
        """A snapshot as an engine takes it: `h[chunk_index]`, or the final state for None, and the convolution window
        that ends at absolute depth `conv_end`. The two may stand at different depths: that is up to who asks."""
        if not self.start <= conv_end <= self.end:
            raise IndexError(
                f"a pass over [{self.start}, {self.end}) has no convolution window that ends at {conv_end}"
            )
        state = {}
        for layer, trace in self.recurrent.items():
            if chunk_index is not None and not 0 <= chunk_index < len(trace.chunks):
                raise IndexError(f"a pass with {len(trace.chunks)} kernel chunks has no h[{chunk_index}]")
            recurrent = trace.final if chunk_index is None else trace.chunks[chunk_index].float()
            state[layer] = RecurrentState(recurrent, trace.window(conv_end - self.start))
        return state


class Stack:
    """A preset with its weights, ready to run on one backend. Nothing in it changes after it is built."""

    def __init__(self, preset: Preset, chunk: int, seed: int, dtype: torch.dtype, backend: Backend) -> None:
        if chunk not in preset.chunks:
            raise ValueError(
                f"{preset.name}'s kernels have no chunk of {chunk} tokens: use {', '.join(map(str, preset.chunks))}"
            )
        self.preset, self.chunk, self.dtype, self.backend = preset, chunk, dtype, backend
        self.weights = seeded_weights(preset, seed, dtype, backend.device)
        self._layers = [_layer_weights(self.weights, i) for i in range(len(preset.layers))]

    def run(self, spans: Sequence[Span]) -> list[Trace]:
        """Run the spans as one packed forward pass. All of them start from a state, or none does."""
        assert len({span.state is None for span in spans}) == 1, "cold and resumed spans go in different passes"
        with executing(self.backend.executor), torch.inference_mode():
            return self._run(spans)

    def _run(self, spans: Sequence[Span]) -> list[Trace]:
        device = self.backend.device
        lengths = [len(span.tokens) for span in spans]
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int64, device=device)
        x = self.weights["embedding.weight"][torch.cat([span.tokens for span in spans]).to(device)]
        inputs, hidden = x, []
        recurrent: list[dict[int, RecurrentTrace]] = [{} for _ in spans]
        caches: list[dict[int, KVCache]] = [{} for _ in spans]
        for i, (spec, w) in enumerate(zip(self.preset.layers, self._layers, strict=True)):
            y = _normed(x, w["norm1.weight"])
            if isinstance(spec, RecurrentSpec):
                mix, traces = self._recurrent_layer(i, spec, y, bounds, spans)
                for span, trace in zip(recurrent, traces, strict=True):
                    span[i] = trace
            else:
                mix = self._attention_layer(i, spec, y, lengths, spans, caches)
            x = x + mix
            z = _normed(x, w["norm2.weight"])
            x = x + linear(
                silu(linear(z, w["gate_proj.weight"])) * linear(z, w["up_proj.weight"]), w["down_proj.weight"]
            )
            hidden.append(x)
        cut = zip(torch.stack(hidden).split(lengths, dim=1), inputs.split(lengths), strict=True)
        return [
            Trace(span.start, rows, embedded, recurrent[n], caches[n])
            for n, (span, (rows, embedded)) in enumerate(zip(spans, cut, strict=True))
        ]

    def _recurrent_layer(
        self, i: int, spec: RecurrentSpec, y: Tensor, bounds: Tensor, spans: Sequence[Span]
    ) -> tuple[Tensor, list[RecurrentTrace]]:
        before = None if spans[0].state is None else [span.state[i] for span in spans]
        run = run_mixer(self._layers[i], spec, y, bounds, before, self.chunk)
        width = spec.conv_width - 1
        nothing = y.new_zeros(width, sum(spec.qkv_channels))
        lengths = [len(span.tokens) for span in spans]
        raws = run.raw.split(lengths)
        chunks = run.chunks.split([-(-n // self.chunk) for n in lengths])
        traces = []
        for n, raw in enumerate(raws):
            window = nothing if before is None else before[n].window.to(raw.dtype)
            traces.append(RecurrentTrace(torch.cat([window, raw]), width, chunks[n], run.final[n]))
        return run.out, traces

    def _attention_layer(
        self, i: int, spec: AttentionSpec, y: Tensor, lengths: list[int], spans: Sequence[Span], caches: list[dict]
    ) -> Tensor:
        mixes = []
        for n, (span, rows) in enumerate(zip(spans, y.split(lengths), strict=True)):
            before = span.caches[i] if span.start else None
            mix, caches[n][i] = run_attention(self._layers[i], spec, rows, span.start, before)
            mixes.append(mix)
        return torch.cat(mixes)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x, (x.shape[-1],), weight, RESIDUAL_EPS)


def _layer_weights(weights: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    prefix = f"layers.{index}."
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def float_type(name: str) -> torch.dtype:
    """The torch dtype of a number format by its name."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]

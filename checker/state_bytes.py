"""Payloads as bytes and bytes as payloads, for engines that move the states themselves (`--payload tensors`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..engines.base import EngineFailure, LayerState, RawTensor, StateBytes
from ..kernels.mixers import RecurrentState
from .layers import LayerSpec, RecurrentSpec
from .trajectory import Snapshot


class ModelStateBytes(StateBytes):
    """The states of a model's recurrent layers."""

    def __init__(self, specs: Sequence[LayerSpec], dtype: torch.dtype) -> None:
        """dtype: the model's, in which its convolution windows are kept. Recurrent states are float32."""
        recurrent = {layer: spec for layer, spec in enumerate(specs) if isinstance(spec, RecurrentSpec)}
        self.dtype = _name(dtype)
        self.shapes = [(spec.state_shape, spec.window_shape[::-1]) for spec in recurrent.values()]
        self._layers = tuple(recurrent)
        self._dtype = dtype

    def bytes_of(self, payload: Snapshot) -> list[LayerState]:
        state = payload.read()
        return [LayerState(_raw(state[layer].recurrent), _raw(state[layer].window)) for layer in self._layers]

    def payload_of(self, states: Sequence[LayerState], given: Snapshot | None) -> Snapshot:
        shapes = [(state.recurrent.shape, state.window.shape) for state in states]
        if shapes != [(tuple(recurrent), tuple(window)) for recurrent, window in self.shapes]:
            raise EngineFailure(f"it handed back states of shapes {shapes}, and was given {self.shapes}")
        read = {
            layer: RecurrentState(_tensor(state.recurrent).float(), _tensor(state.window).to(self._dtype))
            for layer, state in zip(self._layers, states, strict=True)
        }
        return Snapshot(given.tag if given else None, lambda: read)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _raw(tensor: torch.Tensor) -> RawTensor:
    data = tensor.detach().cpu().contiguous()
    return RawTensor(_name(data.dtype), tuple(data.shape), data.view(torch.uint8).numpy().tobytes())


def _tensor(raw: RawTensor) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(raw.data), dtype=torch.uint8).view(getattr(torch, raw.dtype))
    return flat.reshape(raw.shape)

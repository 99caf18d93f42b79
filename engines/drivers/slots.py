"""Snapshots in the slots of an engine's own pool, so that the engine's own copies move them.

A slot holds one state a layer. With the payload "tag" there is one layer, and it holds the snapshot's number; with
"tensors" the number's layer comes after the real ones, and the real ones hold the state in the pool's own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import wire

DIGITS = 8
"""Hexadecimal digits of a number: small enough for bfloat16 to keep each, and 16**8 of them are never taken."""

PAST_THE_END = 16**DIGITS - 2
"""Stands for a snapshot that the checker cannot be asked for: of a step that the history does not have."""

TAG_LAYER = wire.Layer(recurrent=(1, 1, DIGITS), window=(3, DIGITS))


class Unreadable(RuntimeError):
    """A slot whose recurrent state and window come from two different snapshots."""


class Layout:
    """How a pool is shaped for the layers of the model under test."""

    def __init__(self, layers: Sequence[wire.Layer]) -> None:
        """layers: those of `open`; none with the payload "tag"."""
        shapes = set(layers) or {TAG_LAYER}
        if len(shapes) > 1:
            raise ValueError("a pool of states has one shape for all layers; these differ: " + _words(shapes))
        (self._shape,) = shapes
        self.real_layers = len(layers)

    @property
    def layer_count(self) -> int:
        return self.real_layers + 1

    @property
    def temporal(self) -> tuple[int, int, int]:
        """[value heads, value dim, key dim]: the recurrent state as the kernels of SGLang and of vLLM lay it out."""
        heads, keys, values = self._shape.recurrent
        return heads, values, keys

    @property
    def conv(self) -> tuple[int, int]:
        """[channels, tokens]."""
        tokens, channels = self._shape.window
        return channels, tokens

    def past_the_end(self, index: int | None, conv_end: int) -> wire.Taken:
        """A `take` of a step that the history does not have."""
        shapes = [self._shape] * self.real_layers
        return wire.Taken(
            PAST_THE_END, [wire.LayerState(*(torch.full(size, torch.nan) for size in one)) for one in shapes]
        )

    def encode(self, taken: wire.Taken, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(temporal, conv) of one layer of a snapshot."""
        if layer < self.real_layers:
            state = taken.state[layer]
            return state.recurrent.transpose(-1, -2), state.window.transpose(-1, -2)
        return _with_digits(self.temporal, taken.snapshot), _with_digits(self.conv, taken.snapshot)

    def decode(self, temporal: torch.Tensor, conv: torch.Tensor) -> tuple[int | None, wire.State | None]:
        """What stands in a slot: the snapshot's number, None if nothing was written, and the state.

        temporal, conv: [layers, ...] of one slot.
        """
        number, window_number = _number_in(temporal[-1]), _number_in(conv[-1])
        if number != window_number:
            raise Unreadable(f"the slot holds the recurrent state of snapshot {number}, the window of {window_number}")
        if not self.real_layers:
            return number, None
        layers = range(self.real_layers)
        state = [wire.LayerState(temporal[i].transpose(-1, -2), conv[i].transpose(-1, -2)) for i in layers]
        return number, state


def _with_digits(shape: tuple[int, ...], number: int) -> torch.Tensor:
    """A tensor that begins with the digits of `number` + 1, so that zeros mean that no one wrote here."""
    tensor = torch.zeros(shape)
    flat = tensor.view(-1)
    if flat.numel() < DIGITS:
        raise ValueError(f"a state of shape {list(shape)} has no room for {DIGITS} digits")
    flat[:DIGITS] = torch.tensor([(number + 1) >> 4 * i & 15 for i in range(DIGITS)], dtype=torch.float32)
    return tensor


def _number_in(tensor: torch.Tensor) -> int | None:
    digits = tensor.reshape(-1)[:DIGITS].to(torch.float32).tolist()
    number = sum(int(digit) << 4 * i for i, digit in enumerate(digits)) - 1
    return None if number < 0 else number


def _words(shapes: Any) -> str:
    return "; ".join(sorted(f"{list(one.recurrent)} and {list(one.window)}" for one in shapes))

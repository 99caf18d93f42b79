"""`tl.make_block_ptr` and `tl.advance`: a block of a strided tensor, and the addresses and mask it stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import triton.language as tl

from .handle import Handle, Pointer, lift


@dataclass(frozen=True, slots=True)
class BlockPointer:
    """shape, strides and offsets are scalars, one per axis of the block, counted in elements."""

    base: Pointer
    shape: tuple[Handle, ...]
    strides: tuple[Handle, ...]
    offsets: tuple[Handle, ...]
    block_shape: tuple[int, ...]

    def advanced(self, steps: list[Handle]) -> BlockPointer:
        moved = tuple(Handle(o.data + s.data, o.dtype, ()) for o, s in zip(self.offsets, steps, strict=True))
        return replace(self, offsets=moved)

    def materialized(self, checked: list[int]) -> tuple[Pointer, Handle]:
        """The address of every element, and which of them lie inside the tensor along the checked axes."""
        rank = len(self.block_shape)
        pointer = self.base.reshaped(self.block_shape, lambda a: lift(a, rank))
        inside = np.ones((1,) * (rank + 1), bool)
        for axis, size in enumerate(self.block_shape):
            along = np.arange(size).reshape(1, *(size if i == axis else 1 for i in range(rank)))
            places = lift(self.offsets[axis].data.astype(np.int64), rank) + along
            pointer = pointer.offset(places * lift(self.strides[axis].data, rank))
            if axis in checked:
                within = (places >= 0) & (places < lift(self.shape[axis].data, rank))
                inside = inside if within.all() else inside & within
        return pointer, Handle(inside, tl.int1, self.block_shape)

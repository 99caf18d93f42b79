"""Operations that move values about within a block. On compact arrays (see handle.py) most of them cost nothing."""

from __future__ import annotations

import numpy as np
import triton.language as tl

from .handle import Handle, lift
from .results import Results


class Shapes(Results):
    """Shapes of blocks, and where a program stands in the grid."""

    def create_make_range(self, ret_ty: tl.dtype, start: int, stop: int) -> Handle:
        return Handle(np.arange(start, stop, dtype=np.int32)[None], tl.int32, (stop - start,))

    def create_get_program_id(self, axis: int) -> Handle:
        return Handle(np.ascontiguousarray(self.programs[:, axis]), tl.int32, ())

    def create_get_num_programs(self, axis: int) -> Handle:
        return self._constant(self.grid_dim[axis], tl.int32)

    def create_splat(self, ret_ty: tl.block_type, x: Handle) -> Handle:
        shape = tuple(ret_ty.shape)
        return x.reshaped(shape, lambda a: lift(a, len(shape)))

    def create_unsplat(self, x: Handle) -> Handle:
        return x.reshaped((), lambda a: a.reshape(a.shape[0]))

    def create_expand_dims(self, x: Handle, axis: int) -> Handle:
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        where = (slice(None),) * (axis + 1) + (None,)
        return x.reshaped(shape, lambda a: a[where])

    def create_broadcast(self, x: Handle, shape: list[int]) -> Handle:
        return x.reshaped(tuple(shape), lambda a: a)

    def create_trans(self, x: Handle, order: list[int]) -> Handle:
        axes = (0, *(i + 1 for i in order))
        return x.reshaped(tuple(x.shape[i] for i in order), lambda a: np.transpose(a, axes))

    def create_reshape(self, x: Handle, shape: list[int], allow_reorder: bool) -> Handle:
        full = (1, *x.shape)
        return x.reshaped(
            tuple(shape), lambda a: np.broadcast_to(a, (a.shape[0], *full[1:])).reshape(a.shape[0], *shape)
        )

    def create_cat(self, x: Handle, y: Handle) -> Handle:
        a, b = _same_programs(x.expanded(), y.expanded())
        return self._result(np.concatenate([a, b], axis=1), x.dtype, (x.shape[0] + y.shape[0], *x.shape[1:]))

    def create_join(self, x: Handle, y: Handle) -> Handle:
        a, b = _same_programs(x.expanded(), y.expanded())
        return self._result(np.stack([a, b], axis=-1), x.dtype, (*x.shape, 2))

    def create_split(self, x: Handle) -> tuple[Handle, Handle]:
        full = x.expanded()
        return Handle(full[..., 0], x.dtype, x.shape[:-1]), Handle(full[..., 1], x.dtype, x.shape[:-1])

    def create_gather(self, x: Handle, indices: Handle, axis: int) -> Handle:
        source, picks = _same_programs(x.expanded(), indices.expanded())
        return self._result(np.take_along_axis(source, picks, axis=axis + 1), x.dtype, indices.shape)


def _same_programs(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    programs = max(a.shape[0], b.shape[0])
    return np.broadcast_to(a, (programs, *a.shape[1:])), np.broadcast_to(b, (programs, *b.shape[1:]))

"""Operations that touch memory: loads, stores, block pointers and atomics."""

from __future__ import annotations

import numpy as np
from triton._C.libtriton import interpreter as _atomics
from triton._C.libtriton import ir

from .block_pointer import BlockPointer
from .errors import UnsupportedError
from .handle import Handle, Pointer
from .results import Results

_PADDING = ir.PADDING_OPTION


class Accesses(Results):
    """How kernels read and write. Whole groups go through `Memory`; atomics take one program at a time."""

    def create_addptr(self, pointer: Pointer, offset: Handle) -> Pointer:
        return pointer.offset(offset.data)

    def create_load(self, pointer: Pointer, cache: object, eviction: object, is_volatile: bool) -> Handle:
        return self.create_masked_load(pointer, None, None, cache, eviction, is_volatile)

    def create_masked_load(self, pointer, mask, other, cache, eviction, is_volatile) -> Handle:
        return self._result(self.memory.load(pointer, mask, other), pointer.get_element_ty(), pointer.shape)

    def create_store(self, pointer: Pointer, value: Handle, cache: object, eviction: object) -> None:
        self.memory.store(pointer, value, None)

    def create_masked_store(self, pointer, value, mask, cache, eviction) -> None:
        self.memory.store(pointer, value, mask)

    def create_make_block_ptr(self, base: Pointer, shape, strides, offsets, block_shape, order: object) -> BlockPointer:
        return BlockPointer(base, tuple(shape), tuple(strides), tuple(offsets), tuple(block_shape))

    def create_advance(self, pointer: BlockPointer, steps: list[Handle]) -> BlockPointer:
        return pointer.advanced(steps)

    def create_tensor_pointer_load(
        self, pointer: BlockPointer, checked, padding, cache, eviction, is_volatile
    ) -> Handle:
        addresses, inside = pointer.materialized(checked)
        element = addresses.get_element_ty()
        fill = self._constant(np.nan if padding == _PADDING.PAD_NAN else 0, element)
        return self.create_masked_load(addresses, inside, fill, cache, eviction, is_volatile)

    def create_tensor_pointer_store(self, pointer: BlockPointer, value: Handle, checked, cache, eviction) -> None:
        addresses, inside = pointer.materialized(checked)
        self.memory.store(addresses, value, inside)

    def _raw(self, x: Handle) -> np.ndarray:
        if x.dtype.name == "bf16":
            raise UnsupportedError("an atomic on bfloat16 cannot be run without a GPU")
        return np.ascontiguousarray(x.expanded())

    def create_atomic_rmw(self, op, pointer: Pointer, value: Handle, mask: Handle, sem, scope) -> Handle:
        self.one_program()
        addresses = np.ascontiguousarray(pointer.expanded()).view(np.uint64)
        keep = np.ascontiguousarray(np.broadcast_to(mask.expanded(), addresses.shape))
        values = np.ascontiguousarray(np.broadcast_to(self._raw(value), addresses.shape))
        kind, order = self.ir_rmw_op_to_interpreter_rmw_op[op], self.ir_sem_to_interpreter_sem[sem]
        old = _atomics.atomic_rmw(kind, addresses, values, keep, order)
        return Handle(np.where(keep, old, old.dtype.type(0)), value.dtype, value.shape)

    def create_atomic_cas(self, pointer: Pointer, compare: Handle, value: Handle, sem, scope) -> Handle:
        self.one_program()
        addresses = np.ascontiguousarray(pointer.expanded()).view(np.uint64)
        order = self.ir_sem_to_interpreter_sem[sem]
        old = _atomics.atomic_cas(addresses, self._raw(compare), self._raw(value), order)
        return Handle(old, compare.dtype, compare.shape)

"""Triton's typing rules over batched handles, and the tensors that kernel code computes with.

All promotion and shape rules are Triton's own (`TritonSemantic`). What is overridden here changes no result: block
types are made once instead of for every operation, and a broadcast is only a new logical shape. That is where a
kernel of small blocks spends most of its time.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache

import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic

from .builder import BatchedBuilder
from .handle import Handle

running: ContextVar[BatchedSemantic] = ContextVar("running launch")
"""The semantic of the launch that runs now."""


class BatchedTensor(core.tensor):
    """A value of kernel code: `handle` holds the numbers, `type` what Triton calls it.

    Operators get their `_semantic` from the launch that runs (see language.py, which attaches the member functions).
    """

    def __init__(self, handle: object, type: tl.dtype) -> None:
        self.handle = handle
        self.type = type
        self.dtype = type.scalar

    @property
    def shape(self) -> core.tuple:
        return _constexpr_shape(tuple(self.type.shape) if self.type.is_block() else ())

    @property
    def numel(self) -> core.constexpr:
        return core.constexpr(self._size())

    def __bool__(self) -> bool:
        """Control flow needs one value for the whole group. A block is true: Triton's own code asks `if other`."""
        return self._size() > 1 or running.get().builder.truth(self.handle)

    def __index__(self) -> int:
        if self._size() > 1:
            raise ValueError(f"a block of type {self.type} is not one integer")
        return int(running.get().builder.agreed(self.handle.data))

    def _size(self) -> int:
        return self.type.numel if self.type.is_block() else 1

    def __getitem__(self, index: object) -> BatchedTensor:
        """`x[:, None]`: an index can only add axes."""
        index = index if isinstance(index, tuple) else (index,)
        shape, known = [], iter(self.handle.shape)
        for item in index:
            if item is not None and item != slice(None):
                raise ValueError(f"unsupported tensor index: {item}")
            shape.append(1 if item is None else next(known))
        shape = (*shape, *known)
        where = (slice(None), *index)
        return BatchedTensor(self.handle.reshaped(shape, lambda a: a[where]), block_type(self.dtype, shape))

    def __repr__(self) -> str:
        return f"{self.type}{self.handle.data!r}"

    __str__ = __repr__
    __hash__ = object.__hash__


@cache
def _constexpr_shape(shape: tuple[int, ...]) -> core.tuple:
    return core.tuple([core.constexpr(n) for n in shape])


_block_types: dict[tuple[str, tuple[int, ...]], tl.block_type] = {}


def block_type(scalar: tl.dtype, shape: tuple[int, ...]) -> tl.block_type:
    """The one block type of this element type and shape. Keyed by name, as pointer types cannot be hashed."""
    key = (scalar.name, shape)
    if key not in _block_types:
        _block_types[key] = tl.block_type(scalar, list(shape))
    return _block_types[key]


def wrap(handle: Handle) -> BatchedTensor:
    """A handle as a tensor of the type that it says it has."""
    return BatchedTensor(handle, block_type(handle.dtype, handle.shape) if handle.shape else handle.dtype)


@cache
def _joint_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Triton's broadcasting: missing leading axes are added, then sizes must agree or be 1."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    joint = []
    for i, (left, right) in enumerate(zip(a, b, strict=True)):
        if left != right and 1 not in (left, right):
            raise ValueError(f"Cannot make_shape_compatible: incompatible dimensions at index {i}: {left} and {right}")
        joint.append(right if left == 1 else left)
    return tuple(joint)


class BatchedSemantic(TritonSemantic):
    """Triton's semantic checks and promotions, producing `BatchedTensor`s from a `BatchedBuilder`."""

    tensor = BatchedTensor

    def __init__(self, builder: BatchedBuilder) -> None:
        super().__init__(builder)
        self._constants: dict[tuple, BatchedTensor] = {}

    def scalar_constant(self, value: object, dtype: tl.dtype) -> BatchedTensor:
        key = (value, dtype.name)
        if key not in self._constants:
            self._constants[key] = super().scalar_constant(value, dtype)
        return self._constants[key]

    def binary_op_type_checking_impl(
        self, lhs, rhs, allow_lhs_ptr=False, allow_rhs_ptr=False, arithmetic_check=True, div_or_mod=False
    ):
        """Two numbers of one type, or a pointer and its offset, need neither promotion nor checks."""
        if type(lhs) is BatchedTensor and type(rhs) is BatchedTensor and not div_or_mod:
            a, b = lhs.dtype, rhs.dtype
            moved = allow_lhs_ptr and type(a) is tl.pointer_type and b.is_int()
            if moved or (a is b and type(a) is tl.dtype):
                return self.broadcast_impl_value(lhs, rhs)
        return super().binary_op_type_checking_impl(
            lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        )

    def cast(self, input: BatchedTensor, dst_ty: tl.dtype, fp_downcast_rounding: str | None = None) -> BatchedTensor:
        return input if input.dtype is dst_ty.scalar else super().cast(input, dst_ty, fp_downcast_rounding)

    def broadcast_impl_value(self, lhs: BatchedTensor, rhs: BatchedTensor) -> tuple[BatchedTensor, BatchedTensor]:
        a, b = lhs.handle.shape, rhs.handle.shape
        if a == b:
            return lhs, rhs
        shape = _joint_shape(a, b)
        return self._seen_as(lhs, shape), self._seen_as(rhs, shape)

    def _seen_as(self, x: BatchedTensor, shape: tuple[int, ...]) -> BatchedTensor:
        if x.handle.shape == shape:
            return x
        extra = len(shape) - len(x.handle.shape)
        handle = x.handle.reshaped(
            shape, (lambda a: a.reshape(a.shape[0], *([1] * extra), *a.shape[1:])) if extra else (lambda a: a)
        )
        return BatchedTensor(handle, block_type(x.dtype, shape))

    def expand_dims(self, input: BatchedTensor, axis: int) -> BatchedTensor:
        shape = input.handle.shape
        if not shape:
            return super().expand_dims(input, axis)
        handle = self.builder.create_expand_dims(input.handle, axis)
        return BatchedTensor(handle, block_type(input.dtype, handle.shape))

    def splat(self, value: BatchedTensor, shape: list[int]) -> BatchedTensor:
        return self._seen_as(value, tuple(shape))

    def _bool_like(self, v: BatchedTensor) -> tl.dtype:
        return block_type(tl.int1, v.handle.shape) if v.handle.shape else tl.int1

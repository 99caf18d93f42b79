"""Values of a batched kernel: one numpy array holds the value of every program of a group.

Triton's interpreter runs one program at a time and keeps a block of shape S as a numpy array of shape S. Here every
array gets a leading program axis. Three rules keep that cheap:

1. An axis holds either its full size or 1. A size of 1 means "the same along this axis", the program axis included: a
   block that no program id went into is computed once for the whole group, and a broadcast costs nothing at all. So a
   handle needs to know its logical shape, and whoever needs the full array calls `expanded`.
2. A pointer is a sum of terms, each of its own compact shape. `base + rows[:, None] * stride + columns[None, :]` keeps
   a column of row offsets and a row of column offsets; only a load or a store has to see them together, and often not
   even then (see memory.py).
3. bfloat16 is held as float32 whose low 16 bits are zero, and rounded to nearest even after each operation. That is
   what the hardware computes. Triton's own interpreter works on the raw 16 bits as if they were integers.

Handles are immutable: arrays are shared freely between them and never written in place.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import triton.language as tl

from .errors import UnsupportedError

# By name: Triton's dtypes compare and hash in Python, which costs more than the operations on small blocks.
_STORAGE = {
    "int1": np.dtype(bool),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int16": np.dtype(np.int16),
    "uint16": np.dtype(np.uint16),
    "int32": np.dtype(np.int32),
    "uint32": np.dtype(np.uint32),
    "int64": np.dtype(np.int64),
    "uint64": np.dtype(np.uint64),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
}


def storage_dtype(dtype: tl.dtype) -> np.dtype:
    """How a value of this Triton type lies in memory; bfloat16 as raw uint16."""
    if isinstance(dtype, tl.pointer_type):
        return np.dtype(np.int64)
    if dtype.name not in _STORAGE:
        raise UnsupportedError(f"values of type {dtype} cannot be computed without a GPU")
    return _STORAGE[dtype.name]


def compute_dtype(dtype: tl.dtype) -> np.dtype:
    """How a value of this Triton type is held while computing; bfloat16 as float32."""
    return _STORAGE["fp32"] if dtype.name == "bf16" else storage_dtype(dtype)


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bfloat16, ties to even, kept as float32. NaN stays NaN.

    A bfloat16 is the upper half of a float32, so rounding is an integer addition that carries into the upper half.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32))


def from_storage(raw: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """Memory to compute form: exact."""
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32) if dtype.name == "bf16" else raw


def to_storage(values: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """Compute form to memory; a bfloat16 is already rounded."""
    if dtype.name != "bf16":
        return values
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


class Handle:
    """A block (or scalar, shape ()) of every program in a group.

    data:  [g or 1, *(shape[i] or 1)], see rule 1 above.
    dtype: the scalar Triton type.
    shape: the logical block shape, without the program axis.
    """

    __slots__ = ("_data", "dtype", "shape")

    def __init__(self, data: np.ndarray | None, dtype: tl.dtype, shape: tuple[int, ...]) -> None:
        self._data = data
        self.dtype = dtype
        self.shape = shape

    @property
    def data(self) -> np.ndarray:
        return self._data

    def get_element_ty(self) -> tl.dtype:
        return self.dtype

    def set_attr(self, name: str, values: object) -> None:
        """Compiler hints (`tl.multiple_of` and the like) change nothing here."""

    def expanded(self) -> np.ndarray:
        """The array with every block axis at full size (the program axis may still be 1)."""
        data = self.data
        full = (data.shape[0], *self.shape)
        return data if data.shape == full else np.broadcast_to(data, full)

    def reshaped(self, shape: tuple[int, ...], view) -> Handle:
        """The handle seen under another logical shape; `view` maps a compact array accordingly."""
        return Handle(view(self.data), self.dtype, shape)


class Pointer(Handle):
    """A block of addresses, kept as a sum of int64 byte offsets of different compact shapes (rule 2)."""

    __slots__ = ("terms",)

    def __init__(self, terms: tuple[np.ndarray, ...], dtype: tl.pointer_type, shape: tuple[int, ...]) -> None:
        super().__init__(None, dtype, shape)
        self.terms = terms

    @property
    def data(self) -> np.ndarray:
        if self._data is None:
            self._data = reduce(np.add, self.terms)
        return self._data

    def get_element_ty(self) -> tl.dtype:
        return self.dtype.element_ty

    def reshaped(self, shape: tuple[int, ...], view) -> Pointer:
        return Pointer(tuple(view(term) for term in self.terms), self.dtype, shape)

    def offset(self, elements: np.ndarray) -> Pointer:
        """The addresses moved by a number of elements of the type pointed at."""
        width = max(1, self.dtype.element_ty.primitive_bitwidth // 8)
        term = elements.astype(np.int64) * width
        for i, known in enumerate(self.terms):
            if known.shape == term.shape or known.size == 1:
                merged = (*self.terms[:i], known + term, *self.terms[i + 1 :])
                return Pointer(merged, self.dtype, self.shape)
        return Pointer((*self.terms, term), self.dtype, self.shape)


def lift(array: np.ndarray, rank: int) -> np.ndarray:
    """A scalar's array [g or 1] as a compact block of the given rank."""
    return array.reshape(array.shape[0], *([1] * rank))

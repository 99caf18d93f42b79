"""Loads and stores of a whole group of programs, and the journal that can take stores back.

A block load is nearly always a set of contiguous runs: one axis of the block walks through memory element by element,
the other axes and the program axis say where each run begins. Such a block is fetched run by run (numpy copies whole
runs), without ever writing out the address of each element. Anything else goes through Triton's own gather and scatter,
address by address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from triton._C.libtriton import interpreter as _gather

from .handle import Handle, Pointer, from_storage, lift, storage_dtype, to_storage


class Region:
    """One tensor storage that a kernel was given, seen as a flat array of one element type."""

    def __init__(self, address: int, nbytes: int, dtype: np.dtype) -> None:
        self.address, self.nbytes, self.dtype = address, nbytes, dtype
        buffer = (ctypes.c_char * nbytes).from_address(address)
        self._flat = np.frombuffer(buffer, dtype=dtype, count=nbytes // dtype.itemsize)
        self._runs: dict[int, np.ndarray] = {}

    def runs(self, length: int) -> np.ndarray:
        """[n - length + 1, length]: row i is the run of `length` elements that begins at element i. A view."""
        if length not in self._runs:
            count, width = self._flat.size - length + 1, self.dtype.itemsize
            self._runs[length] = np.lib.stride_tricks.as_strided(self._flat, (count, length), (width, width))
        return self._runs[length]

    def holds(self, starts: np.ndarray, length: int) -> bool:
        """Do the runs that begin at these addresses lie in the storage, on whole elements?"""
        width = self.dtype.itemsize
        inside = starts.min() >= self.address and starts.max() + length * width <= self.address + self.nbytes
        return bool(inside and (width == 1 or not ((starts - self.address) & (width - 1)).any()))


@dataclass(frozen=True, slots=True)
class _Runs:
    """A block access resolved into contiguous runs.

    axis:   the block axis (counted with the program axis) along which a run lies.
    length: elements of a run; less than the block's size where the mask cuts every run off at the same place.
    index:  [g, *other axes], the element of the storage where each run begins.
    mask:   same shape, which runs are touched; None for all.
    """

    region: Region
    axis: int
    length: int
    index: np.ndarray
    mask: np.ndarray | None


class Memory:
    """The memory that one launch may touch, with an undo journal per run of a group."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._regions: dict[tuple[int, np.dtype], Region] = {}
        storages = [tensor.untyped_storage() for tensor in tensors]
        self._storages = {(storage.data_ptr(), storage.nbytes()) for storage in storages}
        self._journal: list[Callable[[], None]] = []
        self.journaling = True
        self.active: np.ndarray | None = None
        """[g], the programs that are not switched off by a branch they did not take; None for all (branches.py)."""

    def load(self, pointer: Pointer, mask: Handle | None, other: Handle | None) -> np.ndarray:
        """[g or 1, *shape] in compute form; masked-off elements hold `other`, or zero."""
        element = pointer.get_element_ty()
        bits = self._allowed(mask, len(pointer.shape))
        runs = self._resolve(pointer, bits)
        if runs is not None:
            raw = runs.region.runs(runs.length)[runs.index]
            values = from_storage(np.ascontiguousarray(np.moveaxis(raw, -1, runs.axis)), element)
            if bits is None:
                return values
            fill = values.dtype.type(0) if other is None else other.data
            if runs.length == pointer.shape[runs.axis - 1]:
                return np.where(np.expand_dims(runs.mask, runs.axis), values, fill)
            shape = np.broadcast_shapes(values.shape[:1] + pointer.shape, np.shape(fill))
            whole = _full(fill, shape)
            head = np.moveaxis(whole, runs.axis, -1)[..., : runs.length]
            np.copyto(head, np.moveaxis(values, runs.axis, -1), where=runs.mask[..., None])
            return whole
        shape = np.broadcast_shapes(pointer.data.shape, (1, *pointer.shape), () if bits is None else bits.shape)
        addresses = _full(pointer.data, shape).view(np.uint64)
        dtype = storage_dtype(element)
        keep = _full(True if bits is None else bits, shape)
        values = from_storage(_gather.load(addresses, keep, np.zeros(shape, dtype), dtype), element)
        if bits is not None and other is not None:
            values = np.where(keep, values, other.data)
        return values

    def store(self, pointer: Pointer, value: Handle, mask: Handle | None) -> None:
        """Write the block; what it overwrites goes to the journal."""
        element = pointer.get_element_ty()
        bits = self._allowed(mask, len(pointer.shape))
        runs = self._resolve(pointer, bits)
        raw = to_storage(value.data, element)
        if runs is not None and runs.index.shape[0] >= raw.shape[0]:
            block = (runs.index.shape[0], *pointer.shape)
            rows = np.moveaxis(np.broadcast_to(raw, block), runs.axis, -1)[..., : runs.length]
            index = runs.index if runs.mask is None else runs.index[runs.mask]
            rows = rows if runs.mask is None else rows[runs.mask]
            target = runs.region.runs(runs.length)
            if self.journaling:
                self._journal.append(partial(target.__setitem__, index, target[index]))
            target[index] = rows
            return
        shapes = [pointer.data.shape, (1, *pointer.shape), raw.shape, () if bits is None else bits.shape]
        shape = np.broadcast_shapes(*shapes)
        addresses = _full(pointer.data, shape).view(np.uint64)
        keep = _full(True if bits is None else bits, shape)
        raw = _full(raw, shape)
        if self.journaling:
            old = _gather.load(addresses, keep, np.zeros(shape, raw.dtype), raw.dtype)
            self._journal.append(partial(_gather.store, addresses, old, keep))
        _gather.store(addresses, raw, keep)

    def _allowed(self, mask: Handle | None, rank: int) -> np.ndarray | None:
        """Which elements may be touched; None for all."""
        bits = None if mask is None or mask.data.all() else mask.data
        if self.active is None:
            return bits
        active = lift(self.active, rank)
        return active if bits is None else bits & active

    @contextmanager
    def only(self, programs: np.ndarray) -> Iterator[None]:
        """Switch off every other program inside the block."""
        before = self.active
        self.active = programs if before is None else before & programs
        try:
            yield
        finally:
            self.active = before

    def forget(self) -> None:
        """The group has finished; its stores stand."""
        self._journal.clear()

    def undo(self) -> None:
        """Take back every store of the group, last one first, so that its programs can start again."""
        while self._journal:
            self._journal.pop()()

    def _resolve(self, pointer: Pointer, mask: np.ndarray | None) -> _Runs | None:
        """See the access as contiguous runs of one storage, or say that it is not one."""
        rank = len(pointer.shape)
        dtype = storage_dtype(pointer.get_element_ty())
        for axis in range(rank, 0, -1):
            length = pointer.shape[axis - 1]
            if length == 1 and rank > 1:
                continue
            along = [term for term in pointer.terms if term.shape[axis] != 1]
            if len(along) != (length != 1):
                continue
            if along and not _walks(along[0], axis, dtype.itemsize):
                continue
            whole_runs = mask
            if mask is not None and mask.shape[axis] != 1:
                length, whole_runs = _cut_off(mask, axis)
                if length == 0:
                    continue
            starts = sum(term if term.shape[axis] == 1 else term.take([0], axis) for term in pointer.terms)
            outer = (1, *pointer.shape[: axis - 1], 1, *pointer.shape[axis:])
            full = np.broadcast_shapes(starts.shape, outer, () if whole_runs is None else whole_runs.shape)
            starts = np.broadcast_to(starts, full).squeeze(axis)
            keep = None if whole_runs is None else np.broadcast_to(whole_runs, full).squeeze(axis)
            return self._in_region(starts, keep, axis, length, dtype)
        return None

    def _in_region(
        self, starts: np.ndarray, keep: np.ndarray | None, axis: int, length: int, dtype: np.dtype
    ) -> _Runs | None:
        touched = starts if keep is None else starts[keep]
        if touched.size == 0:
            return None
        for region in self._candidates(int(touched.flat[0]), dtype):
            if region.holds(touched, length):
                if keep is not None:  # masked-off runs may begin anywhere; point them at a harmless place
                    starts = np.where(keep, starts, region.address)
                return _Runs(region, axis, length, (starts - region.address) // dtype.itemsize, keep)
        return None

    def _candidates(self, address: int, dtype: np.dtype) -> Iterable[Region]:
        for start, nbytes in self._storages:
            if start <= address < start + nbytes:
                key = (start, dtype)
                if key not in self._regions:
                    self._regions[key] = Region(start, nbytes, dtype)
                yield self._regions[key]


def _walks(addresses: np.ndarray, axis: int, width: int) -> bool:
    """Do the addresses along this axis go from element to element?"""
    before = (slice(None),) * axis
    return bool((addresses[(*before, slice(1, None))] - addresses[(*before, slice(-1))] == width).all())


def _full(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array at full size, contiguous and its own."""
    return np.array(np.broadcast_to(array, shape), order="C")


def _cut_off(mask: np.ndarray, axis: int) -> tuple[int, np.ndarray]:
    """A mask that lets through the first n elements of some runs: n, and which runs. (0, mask) if it does not."""
    size = mask.shape[axis]
    length = int(mask.any(axis=tuple(i for i in range(mask.ndim) if i != axis)).sum())
    runs = mask.take([0], axis)
    head = np.arange(size).reshape(*(size if i == axis else 1 for i in range(mask.ndim))) < length
    return (length, runs) if np.array_equal(mask, runs & head) else (0, mask)

"""`tl.reduce` and `tl.associative_scan` for a whole group, and so what is built on them: sum, max, cumsum, sort.

The combine functions of Triton's own library are known and become one numpy call, as in Triton's interpreter. Any other
is called on whole slices of the block, first to last; the interpreter calls it element by element, with the same
results.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable

import numpy as np
import triton.language as tl
from triton.language import core, standard

from .handle import Handle
from .semantic import BatchedTensor, running, wrap

_REDUCTIONS = {
    standard._sum_combine: np.sum,
    standard._elementwise_max: np.nanmax,
    standard._elementwise_min: np.nanmin,
}
_PICKS = {
    standard._argmax_combine_tie_break_left: (np.max, np.argmax),
    standard._argmin_combine_tie_break_left: (np.min, np.argmin),
}
_SCANS = {standard._sum_combine: np.cumsum, standard._prod_combine: np.cumprod}


def reduce(input, axis, combine_fn, keep_dims=False, **_unused):
    axis, keep_dims = core._unwrap_if_constexpr(axis), core._unwrap_if_constexpr(keep_dims)
    combine_fn = core._unwrap_if_constexpr(combine_fn)
    xs = _as_tuple(input)
    semantic = running.get()
    shape = xs[0].handle.shape
    kept = [1 if axis is None or i == axis % len(shape) else n for i, n in enumerate(shape)]
    if axis is None:
        xs, axis = [semantic.reshape(x, [int(np.prod(shape))], False) for x in xs], 0
    axis %= len(xs[0].handle.shape)
    op = _REDUCTIONS.get(_jitted(combine_fn)) if len(xs) == 1 else None
    if op:
        results = (wrap(semantic.builder.reduce(xs[0].handle, op, axis, xs[0].dtype)),)
    else:
        *_, results = _partial_results(xs, axis, combine_fn, reverse=False)
    return _like(input, [_reshaped(r, kept) for r in results] if keep_dims else results)


def reduce_with_indices(input, axis, combine_fn, keep_dims=False, **_unused):
    axis, keep_dims = core._unwrap_if_constexpr(axis), core._unwrap_if_constexpr(keep_dims)
    shape = input.handle.shape
    axis %= len(shape)
    picks = _PICKS.get(_jitted(combine_fn))
    if picks:
        builder = running.get().builder
        kept = [1 if i == axis else n for i, n in enumerate(shape)]
        dtypes = (input.dtype, tl.int32)
        results = [wrap(builder.reduce(input.handle, op, axis, t)) for op, t in zip(picks, dtypes, strict=True)]
        return tuple(_reshaped(r, kept) for r in results) if keep_dims else tuple(results)
    places = np.arange(shape[axis], dtype=np.int32)
    places = places.reshape(1, *(-1 if i == axis else 1 for i in builtins.range(len(shape))))
    return reduce((input, wrap(Handle(places, tl.int32, shape))), axis, combine_fn, keep_dims)


def associative_scan(input, axis, combine_fn, reverse=False, **_unused):
    axis, reverse = core._unwrap_if_constexpr(axis), core._unwrap_if_constexpr(reverse)
    combine_fn = core._unwrap_if_constexpr(combine_fn)
    xs = _as_tuple(input)
    axis %= len(xs[0].handle.shape)
    op = _SCANS.get(_jitted(combine_fn)) if len(xs) == 1 else None
    if op:
        results = [wrap(running.get().builder.scan(xs[0].handle, op, axis, reverse))]
    else:
        partial = list(_partial_results(xs, axis, combine_fn, reverse))
        columns = zip(*(partial[::-1] if reverse else partial), strict=True)
        results = [_stacked(column, axis) for column in columns]
    return _like(input, results)


def _jitted(combine: object) -> object:
    """The jitted function behind a translated one (language.py)."""
    return getattr(combine, "jitted", combine)


def _as_tuple(input: object) -> tuple[BatchedTensor, ...]:
    return tuple(input) if isinstance(input, (tuple, core.tuple)) else (input,)


def _like(input: object, results) -> object:
    """One tensor for one, a tuple for a tuple."""
    return tuple(results) if isinstance(input, (tuple, core.tuple)) else results[0]


def _reshaped(x: BatchedTensor, shape: list[int]) -> BatchedTensor:
    semantic = running.get()
    return semantic.reshape(x, shape, False) if x.handle.shape else semantic.splat(x, shape)


def _slices(x: BatchedTensor, axis: int) -> list[BatchedTensor]:
    full = x.handle.expanded()
    shape = (*x.handle.shape[:axis], *x.handle.shape[axis + 1 :])
    return [wrap(Handle(np.take(full, i, axis + 1), x.dtype, shape)) for i in builtins.range(x.handle.shape[axis])]


def _partial_results(xs, axis: int, combine: Callable, reverse: bool):
    """The fold over the first 1, 2, ... slices: a tuple with one tensor per input each time."""
    semantic = running.get()
    columns = list(zip(*(_slices(x, axis) for x in xs), strict=True))
    columns = columns[::-1] if reverse else columns
    state = columns[0]
    yield state
    for column in columns[1:]:
        combined = _as_tuple(combine(*state, *column))
        state = tuple(semantic.cast(semantic.to_tensor(c), x.dtype) for c, x in zip(combined, xs, strict=True))
        yield state


def _stacked(slices: tuple[BatchedTensor, ...], axis: int) -> BatchedTensor:
    shape = slices[0].handle.shape
    arrays = np.broadcast_arrays(*(s.handle.expanded() for s in slices))
    whole = np.stack(arrays, axis + 1)
    return wrap(Handle(whole, slices[0].dtype, (*shape[:axis], len(slices), *shape[axis:])))

"""Arithmetic, casts, matrix products, reductions and scans, with numpy, as Triton's own interpreter does them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import triton.language as tl

from .errors import UnsupportedError
from .handle import Handle, Pointer, compute_dtype, to_storage
from .results import Results

_UNARY = {
    "cos": np.cos,
    "sin": np.sin,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "floor": np.floor,
    "ceil": np.ceil,
    "sqrt": np.sqrt,
    "precise_sqrt": np.sqrt,
    "iabs": np.abs,
    "fabs": np.abs,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}

_BINARY = {
    "fadd": np.add,
    "fsub": np.subtract,
    "fmul": np.multiply,
    "fdiv": np.divide,
    "precise_divf": np.divide,
    "frem": np.fmod,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "srem": np.fmod,
    "urem": np.fmod,
    "shl": np.left_shift,
    "lshr": np.right_shift,
    "minsi": np.minimum,
    "minui": np.minimum,
    "minimumf": np.minimum,
    "minnumf": np.fmin,
    "maxsi": np.maximum,
    "maxui": np.maximum,
    "maximumf": np.maximum,
    "maxnumf": np.fmax,
    "xor": np.bitwise_xor,
}

_COMPARE = {
    "LE": np.less_equal,
    "LT": np.less,
    "GE": np.greater_equal,
    "GT": np.greater,
    "EQ": np.equal,
    "NE": np.not_equal,
}

# What the functions of triton.language.extra.libdevice compute. Its fast ones are only less accurate.
LIBDEVICE = {
    "tanh": np.tanh,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "rsqrt": _UNARY["rsqrt"],
    "sqrt": np.sqrt,
    "fast_expf": np.exp,
    "fast_logf": np.log,
    "fast_log2f": np.log2,
    "fast_tanhf": np.tanh,
}


class Arithmetic(Results):
    """Operations on numbers. Those that are one numpy function each are listed above and added below."""

    def unary(self, x: Handle, op) -> Handle:
        return self._result(op(x.data), x.dtype, x.shape)

    def _binary(self, x: Handle, y: Handle, op) -> Handle:
        return self._result(op(x.data, y.data), x.dtype, x.shape)

    def _compare(self, x: Handle, y: Handle, op) -> Handle:
        # Triton's interpreter leaves the operands' type on a comparison's handle; the tensor around it says int1.
        return self._result(op(x.data, y.data), tl.int1, x.shape)

    def create_idiv(self, x: Handle, y: Handle) -> Handle:
        # C semantics: the quotient is truncated towards zero.
        return self._result((x.data - np.fmod(x.data, y.data)) // y.data, x.dtype, x.shape)

    create_sdiv = create_udiv = create_idiv

    def create_and(self, x: Handle, y: Handle) -> Handle:
        # A mask that is true everywhere adds nothing but size: `rows[:, None] & columns[None, :]` stays a column.
        if x.dtype is tl.int1:
            if y.data.all():
                return x
            if x.data.all():
                return Handle(y.data, x.dtype, x.shape)
        return self._binary(x, y, np.bitwise_and)

    def create_or(self, x: Handle, y: Handle) -> Handle:
        return self._binary(x, y, np.bitwise_or)

    def create_ashr(self, x: Handle, y: Handle) -> Handle:
        return self._binary(x, y, np.right_shift)

    def create_umulhi(self, x: Handle, y: Handle) -> Handle:
        unsigned = np.dtype(f"u{x.data.dtype.itemsize}")
        wide = object if unsigned.itemsize == 8 else np.uint64  # numpy has no 128 bits, Python has
        a, b = (np.ascontiguousarray(h.data).view(unsigned).astype(wide) for h in (x, y))
        high = (a * b) >> wide(unsigned.itemsize * 8) if wide is not object else (a * b) >> 64
        return self._result(high.astype(unsigned), x.dtype, x.shape)

    def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
        return self._result(x.data * y.data + z.data, z.dtype, z.shape)

    def create_clampf(self, x: Handle, lo: Handle, hi: Handle, propagate_nans: object) -> Handle:
        return self._result(np.clip(x.data, lo.data, hi.data), x.dtype, x.shape)

    def create_select(self, condition: Handle, x: Handle, y: Handle) -> Handle:
        picked = np.where(condition.data, x.data, y.data)
        if isinstance(x, Pointer):
            return Pointer((picked,), x.dtype, x.shape)
        return self._result(picked, x.dtype, x.shape)

    def create_erf(self, x: Handle) -> Handle:
        # numpy has no erf; torch's in float32 is not as exact.
        return self._result(torch.erf(torch.from_numpy(x.data.astype(np.float64))).numpy(), x.dtype, x.shape)

    # ---- casts ------------------------------------------------------------------------------------------------------

    def _cast(self, x: Handle, dst_type: tl.dtype) -> Handle:
        return self._result(x.data.astype(compute_dtype(dst_type.scalar)), dst_type.scalar, x.shape)

    create_si_to_fp = create_ui_to_fp = create_fp_to_si = create_fp_to_ui = create_fp_ext = create_fp_trunc = _cast

    def create_int_cast(self, x: Handle, dst_type: tl.dtype, is_signed: bool) -> Handle:
        return self._cast(x, dst_type)

    def create_fp_to_fp(self, x: Handle, dst_type: tl.dtype, rounding: object) -> Handle:
        raise UnsupportedError(f"the conversion {x.dtype} to {dst_type.scalar} with its own rounding needs a GPU")

    def create_bitcast(self, x: Handle, dst_type: tl.dtype) -> Handle:
        target = dst_type.scalar
        if isinstance(x, Pointer) and isinstance(target, tl.pointer_type):
            return Pointer(x.terms, target, x.shape)
        if isinstance(target, tl.pointer_type):
            return Pointer((x.data.astype(np.int64),), target, x.shape)
        raw = np.ascontiguousarray(to_storage(x.data, x.dtype))
        if target == tl.bfloat16:
            return Handle((raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32), target, x.shape)
        return Handle(raw.view(compute_dtype(target)), target, x.shape)

    create_int_to_ptr = create_ptr_to_int = create_bitcast

    # ---- matrix product, reductions, scans --------------------------------------------------------------------------

    def create_dot(self, x: Handle, y: Handle, acc: Handle, input_precision: object, max_imprecise: object) -> Handle:
        product = np.matmul(_matrix(x), _matrix(y), dtype=compute_dtype(acc.dtype))
        return self._result(product + acc.data, acc.dtype, (*x.shape[:-1], y.shape[-1]))

    def reduce(self, x: Handle, op: Callable, axis: int, dtype: tl.dtype) -> Handle:
        """`op` is a numpy reduction. numpy's order of summation depends on the layout, so the block is laid out as
        Triton's interpreter has it: full and C-contiguous."""
        data = op(np.ascontiguousarray(x.expanded()), axis=axis + 1)
        return self._result(data, dtype, (*x.shape[:axis], *x.shape[axis + 1 :]))

    def scan(self, x: Handle, op, axis: int, reverse: bool) -> Handle:
        data = x.expanded()
        data = np.flip(data, axis + 1) if reverse else data
        data = op(data, axis=axis + 1)
        return self._result(np.flip(data, axis + 1) if reverse else data, x.dtype, x.shape)

    def create_histogram(self, x: Handle, bins: int, mask: Handle | None) -> Handle:
        data = x.expanded()
        inside = (data >= 0) & (data < bins)
        data, keep = np.broadcast_arrays(data, inside if mask is None else inside & mask.data)
        counts = np.stack([np.bincount(row[k], minlength=bins) for row, k in zip(data, keep, strict=True)])
        return self._result(counts, tl.int32, (bins,))


def _elementwise(method: str, op: Callable) -> Callable:
    def apply(self: Arithmetic, *operands: Handle) -> Handle:
        return getattr(self, method)(*operands, op)

    return apply


for _name, _op in _UNARY.items():
    setattr(Arithmetic, f"create_{_name}", _elementwise("unary", _op))
for _name, _op in _BINARY.items():
    setattr(Arithmetic, f"create_{_name}", _elementwise("_binary", _op))
for _name, _op in _COMPARE.items():
    for _kind in ("icmpS", "icmpU", "icmp", "fcmpO", "fcmpU"):
        setattr(Arithmetic, f"create_{_kind}{_name}", _elementwise("_compare", _op))


def _matrix(x: Handle) -> np.ndarray:
    """The operand as BLAS takes it in the stock interpreter: a real matrix, transposed views allowed."""
    data = x.data
    return data if data.shape[1:] == x.shape else np.ascontiguousarray(x.expanded())

"""The operations of Triton's IR, computed with numpy for a whole group of programs at once.

`TritonSemantic` turns kernel source into calls of `create_*` methods; this builder answers them with `Handle`s instead
of IR. The arithmetic is that of Triton's own interpreter (numpy ufuncs and matmul per block), so float32 results are
bit-identical to it; the program axis only says how many blocks a call works on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import interpreter as _atomics
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions

from .block_pointer import BlockPointer
from .errors import Divergence, NeedsOneProgram, UnsupportedError
from .handle import Handle, Pointer, compute_dtype, lift, round_to_bfloat16, to_storage
from .memory import Memory

_PADDING = ir.PADDING_OPTION

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


class BatchedBuilder(InterpreterBuilder):
    """Triton's builder interface over batched handles. One instance serves one launch.

    programs: [g, 3] int32, the program ids of the group that runs now; set by the launcher.
    serial:   programs run one by one, in the order of the grid; set by the launcher.
    memory:   the storages of the launch.
    widest:   the largest block, in bytes per program, that an operation has produced so far.
    """

    def __init__(self, grid: tuple[int, int, int], memory: Memory, checked: bool) -> None:
        super().__init__()
        # As in compiled kernels, `tl.device_assert` counts only in a launch with debug=True. Triton's overflow
        # sanitizer stays off: it triples every integer operation.
        self.options = InterpreterOptions(debug=checked, sanitize_overflow=False)
        self.set_grid_dim(*grid)
        self.memory = memory
        self.programs = np.zeros((1, 3), np.int32)
        self.serial = False
        self.widest = 0

    # ---- results ----------------------------------------------------------------------------------------------------

    def _result(self, data: np.ndarray, dtype: tl.dtype, shape: tuple[int, ...]) -> Handle:
        """A computed value in the dtype that Triton says it has."""
        if dtype.name == "bf16":
            data = round_to_bfloat16(data)
        elif data.dtype != (wanted := compute_dtype(dtype)):
            data = data.astype(wanted)
        if data.shape[0] > 1 and data.nbytes > self.widest * data.shape[0]:
            self.widest = data.nbytes // data.shape[0]
        return Handle(data, dtype, shape)

    # ---- constants --------------------------------------------------------------------------------------------------

    def _constant(self, value: object, dtype: tl.dtype) -> Handle:
        return self._result(np.array([value], dtype=compute_dtype(dtype)), dtype, ())

    def get_bf16(self, value: float) -> Handle:
        return self._constant(value, tl.bfloat16)

    def get_null_value(self, type: tl.dtype) -> Handle:
        return self._constant(0, type.scalar)

    def get_all_ones_value(self, type: tl.dtype) -> Handle:
        return self._constant(True if type.scalar == tl.int1 else -1, type.scalar)

    # ---- one value for all programs ----------------------------------------------------------------------------------

    def agreed(self, values: np.ndarray) -> object:
        """The one value that every running program has, out of one value per program or one for all.

        Raises Divergence where they differ. Programs that a branch has switched off (branches.py) have no say.
        """
        values = values.reshape(len(values))
        mine = self.of_running(values)
        if not (mine == mine[0]).all():
            raise Divergence(values if mine is values else np.where(self.memory.active, values, mine[0]))
        return mine[0]

    def of_running(self, values: np.ndarray) -> np.ndarray:
        """The values of the programs that no branch has switched off."""
        active = self.memory.active
        return values if active is None or len(values) == 1 else values[np.broadcast_to(active, values.shape)]

    def truth(self, x: Handle) -> bool:
        return bool(self.agreed(x.data != 0))

    # ---- program ids ------------------------------------------------------------------------------------------------

    def create_make_range(self, ret_ty: tl.dtype, start: int, stop: int) -> Handle:
        return Handle(np.arange(start, stop, dtype=np.int32)[None], tl.int32, (stop - start,))

    def create_get_program_id(self, axis: int) -> Handle:
        return Handle(np.ascontiguousarray(self.programs[:, axis]), tl.int32, ())

    def create_get_num_programs(self, axis: int) -> Handle:
        return self._constant(self.grid_dim[axis], tl.int32)

    # ---- arithmetic -------------------------------------------------------------------------------------------------

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

    # ---- shapes -----------------------------------------------------------------------------------------------------

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

    # ---- memory -----------------------------------------------------------------------------------------------------

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

    def _one_program(self) -> None:
        """Here programs must come one by one; a group that finds out starts again."""
        if not self.serial:
            raise NeedsOneProgram

    def _raw(self, x: Handle) -> np.ndarray:
        if x.dtype.name == "bf16":
            raise UnsupportedError("an atomic on bfloat16 cannot be run without a GPU")
        return np.ascontiguousarray(x.expanded())

    def create_atomic_rmw(self, op, pointer: Pointer, value: Handle, mask: Handle, sem, scope) -> Handle:
        self._one_program()
        addresses = np.ascontiguousarray(pointer.expanded()).view(np.uint64)
        keep = np.ascontiguousarray(np.broadcast_to(mask.expanded(), addresses.shape))
        values = np.ascontiguousarray(np.broadcast_to(self._raw(value), addresses.shape))
        kind, order = self.ir_rmw_op_to_interpreter_rmw_op[op], self.ir_sem_to_interpreter_sem[sem]
        old = _atomics.atomic_rmw(kind, addresses, values, keep, order)
        return Handle(np.where(keep, old, old.dtype.type(0)), value.dtype, value.shape)

    def create_atomic_cas(self, pointer: Pointer, compare: Handle, value: Handle, sem, scope) -> Handle:
        self._one_program()
        addresses = np.ascontiguousarray(pointer.expanded()).view(np.uint64)
        order = self.ir_sem_to_interpreter_sem[sem]
        old = _atomics.atomic_cas(addresses, self._raw(compare), self._raw(value), order)
        return Handle(old, compare.dtype, compare.shape)

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def create_print(self, prefix: str, hex: bool, values: list[Handle], is_signed: object) -> None:
        self._one_program()
        where = tuple(int(i) for i in self.programs[0])
        for value in values:
            print(where, prefix, value.expanded()[0])

    def create_assert(self, condition: Handle, message: str) -> None:
        active = True if self.memory.active is None else lift(self.memory.active, len(condition.shape))
        if (active & ~condition.data).any():
            raise AssertionError(message)

    def create_assume(self, condition: Handle) -> None:
        """A hint to the compiler."""

    def create_barrier(self) -> None:
        """All threads of a program advance together here."""

    def create_extern_elementwise(self, library, path, symbol, arguments, result_type, is_pure) -> Handle:
        raise UnsupportedError(f"the device function {symbol} cannot be run without a GPU")

    def create_inline_asm(self, *_: object) -> Handle:
        raise UnsupportedError("inline assembly cannot be run without a GPU")

    def __getattr__(self, name: str) -> object:
        if name.startswith("create_"):
            raise UnsupportedError(f"Triton's operation {name.removeprefix('create_')} cannot be run without a GPU")
        raise AttributeError(name)


def _elementwise(method: str, op: Callable) -> Callable:
    def apply(self: BatchedBuilder, *operands: Handle) -> Handle:
        return getattr(self, method)(*operands, op)

    return apply


for _name, _op in _UNARY.items():
    setattr(BatchedBuilder, f"create_{_name}", _elementwise("unary", _op))
for _name, _op in _BINARY.items():
    setattr(BatchedBuilder, f"create_{_name}", _elementwise("_binary", _op))
for _name, _op in _COMPARE.items():
    for _kind in ("icmpS", "icmpU", "icmp", "fcmpO", "fcmpU"):
        setattr(BatchedBuilder, f"create_{_kind}{_name}", _elementwise("_compare", _op))


def _unsupported(name: str):
    def refuse(self: BatchedBuilder, *_: object) -> None:
        raise UnsupportedError(f"Triton's {name} cannot be run without a GPU")

    return refuse


# The base class answers these for one program at a time, on handles of its own; they must not be reached by accident.
for _name in dir(InterpreterBuilder):
    if _name.startswith("create_") and _name not in BatchedBuilder.__dict__:
        setattr(BatchedBuilder, _name, _unsupported(_name.removeprefix("create_")))

for _bits in (8, 16, 32, 64):
    for _kind in ("int", "uint"):
        _type = getattr(tl, f"{_kind}{_bits}")
        setattr(BatchedBuilder, f"get_{_kind}{_bits}", lambda self, value, t=_type: self._constant(value, t))
for _bits in (16, 32, 64):
    _type = getattr(tl, f"float{_bits}")
    setattr(BatchedBuilder, f"get_fp{_bits}", lambda self, value, t=_type: self._constant(value, t))
BatchedBuilder.get_int1 = lambda self, value: self._constant(value, tl.int1)


def _same_programs(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    programs = max(a.shape[0], b.shape[0])
    return np.broadcast_to(a, (programs, *a.shape[1:])), np.broadcast_to(b, (programs, *b.shape[1:]))


def _matrix(x: Handle) -> np.ndarray:
    """The operand as BLAS takes it in the stock interpreter: a real matrix, transposed views allowed."""
    data = x.data
    return data if data.shape[1:] == x.shape else np.ascontiguousarray(x.expanded())

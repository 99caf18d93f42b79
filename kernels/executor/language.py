"""The language that kernel source sees while it runs batched.

A kernel is ordinary Python that names `tl.load`, `range`, helper kernels and so on through its module's globals. Rather
than patching `triton.language` for the whole process, as Triton's interpreter does, each kernel function is rebuilt
over a copy of its globals in which those names stand for batched versions:

- a module of `triton.language` becomes a view whose members are translated in the same way;
- a Triton builtin gets its `_semantic` from the launch that is running;
- a jitted helper becomes a plain call of its own rebuilt function;
- `range`, `min` and `max` work on the values of a whole group, and `reduce` and `associative_scan` are batched.

Builtins that a module captured at import (`from triton.language import gather`) are translated like any other global.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from functools import reduce as fold
from types import ModuleType

import numpy as np
import triton.language as tl
from triton.language import core, standard
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITCallable, JITFunction

from .branches import Branch, only_assigns, run_both_ways
from .builder import LIBDEVICE, agreed
from .errors import UnsupportedError
from .handle import Handle
from .semantic import BatchedSemantic, BatchedTensor, block_type

running: ContextVar[BatchedSemantic] = ContextVar("running launch")
"""The semantic of the launch that runs now."""


def _wrap(handle: Handle) -> BatchedTensor:
    return BatchedTensor(handle, block_type(handle.dtype, handle.shape) if handle.shape else handle.dtype)


# ---- loops and comparisons of Python --------------------------------------------------------------------------------


class KernelRange:
    """`range` and `tl.range`: programs may start and end anywhere, as long as they make the same number of turns.

    The induction variable is a tensor, as in compiled code; per program where the programs' starts differ.
    """

    def __init__(self, start, stop=None, step=None, **_hints: object) -> None:
        bounds = (0, start, 1) if stop is None else (start, stop, 1 if step is None else step)
        semantic = running.get()
        bounds = [semantic.to_tensor(core._unwrap_if_constexpr(b)) for b in bounds]
        self.dtype = fold(semantic.integer_promote_impl, [b.dtype for b in bounds])
        self.start, self.stop, self.step = (b.handle.data.astype(np.int64) for b in bounds)

    def __iter__(self) -> Iterator[BatchedTensor]:
        turns = int(agreed(np.maximum(0, -((self.start - self.stop) // self.step))))
        storage = np.int64 if self.dtype == tl.int64 else np.int32
        for turn in builtins.range(turns):
            yield _wrap(Handle((self.start + turn * self.step).astype(storage), self.dtype, ()))


def _static_range(start, stop=None, step=None) -> builtins.range:
    """`tl.static_range` is unrolled by the compiler: its variable is a Python int."""
    unwrap = core._unwrap_if_constexpr
    if stop is None:
        return builtins.range(unwrap(start))
    return builtins.range(unwrap(start), unwrap(stop), 1 if step is None else unwrap(step))


def _extremum(of_tensors: str, of_numbers: Callable) -> Callable:
    """Python's `min` and `max`, which the compiler maps to elementwise operations on tensors."""

    def apply(*values):
        if not any(isinstance(v, core.tensor) for v in values):
            return of_numbers(*values)
        semantic = running.get()
        pick = getattr(semantic, of_tensors)
        return fold(lambda a, b: pick(semantic.to_tensor(a), semantic.to_tensor(b), None), values)

    return apply


# ---- reductions and scans -------------------------------------------------------------------------------------------

_NUMPY_REDUCTIONS = {
    standard._sum_combine: np.sum,
    standard._elementwise_max: np.nanmax,
    standard._elementwise_min: np.nanmin,
}
_NUMPY_SCANS = {standard._sum_combine: np.cumsum, standard._prod_combine: np.cumprod}


def _jitted(combine: object) -> object:
    return getattr(combine, "jitted", combine)


def _slices(x: BatchedTensor, axis: int) -> list[BatchedTensor]:
    full = x.handle.expanded()
    shape = (*x.handle.shape[:axis], *x.handle.shape[axis + 1 :])
    return [_wrap(Handle(np.take(full, i, axis + 1), x.dtype, shape)) for i in builtins.range(x.handle.shape[axis])]


def _folded(xs: tuple[BatchedTensor, ...], axis: int, combine: Callable, reverse: bool) -> list[tuple]:
    """Any combine function, applied to whole slices of the group, first to last. Returns every partial result."""
    columns = list(zip(*(_slices(x, axis) for x in xs), strict=True))
    partial = [columns.pop() if reverse else columns.pop(0)]
    for column in reversed(columns) if reverse else columns:
        result = combine(*partial[-1], *column)
        partial.append(result if isinstance(result, tuple) else (result,))
    return partial


def _reduce(input, axis, combine_fn, keep_dims=False, **_unused):
    axis, keep_dims = core._unwrap_if_constexpr(axis), core._unwrap_if_constexpr(keep_dims)
    xs = input if isinstance(input, (tuple, core.tuple)) else (input,)
    semantic = running.get()
    axis = axis + len(xs[0].handle.shape) if axis is not None and axis < 0 else axis
    if len(xs) == 1 and _jitted(combine_fn) in _NUMPY_REDUCTIONS:
        results = [
            _wrap(semantic.builder.reduce(xs[0].handle, _NUMPY_REDUCTIONS[_jitted(combine_fn)], axis, keep_dims))
        ]
    else:
        shape = xs[0].handle.shape
        if axis is None:
            xs = tuple(semantic.reshape(x, [int(np.prod(shape))], False) for x in xs)
        results = list(_folded(tuple(xs), axis or 0, combine_fn, reverse=False)[-1])
        if keep_dims:
            kept = [1 if axis is None or i == axis else n for i, n in enumerate(shape)]
            results = [semantic.reshape(r, kept, False) if r.handle.shape else semantic.splat(r, kept) for r in results]
    return results[0] if not isinstance(input, (tuple, core.tuple)) else tuple(results)


def _reduce_with_indices(input, axis, combine_fn, keep_dims=False, **_unused):
    axis = core._unwrap_if_constexpr(axis)
    semantic = running.get()
    shape = input.handle.shape
    axis = len(shape) - 1 if axis is None else axis
    places = np.arange(shape[axis], dtype=np.int32).reshape(
        1, *(-1 if i == axis else 1 for i in builtins.range(len(shape)))
    )
    index = BatchedTensor(Handle(places, tl.int32, shape), block_type(tl.int32, shape))
    value, where = _reduce((input, index), axis, combine_fn, keep_dims)
    return value, semantic.cast(where, tl.int32)


def _associative_scan(input, axis, combine_fn, reverse=False, **_unused):
    axis, reverse = core._unwrap_if_constexpr(axis), core._unwrap_if_constexpr(reverse)
    xs = input if isinstance(input, (tuple, core.tuple)) else (input,)
    semantic = running.get()
    axis = axis + len(xs[0].handle.shape) if axis < 0 else axis
    if len(xs) == 1 and _jitted(combine_fn) in _NUMPY_SCANS:
        results = [_wrap(semantic.builder.scan(xs[0].handle, _NUMPY_SCANS[_jitted(combine_fn)], axis, reverse))]
    else:
        partial = _folded(tuple(xs), axis, combine_fn, reverse)
        partial = partial[::-1] if reverse else partial
        results = []
        for i, x in enumerate(xs):
            shape = x.handle.shape
            parts = [
                np.broadcast_to(p[i].handle.expanded(), (p[i].handle.data.shape[0], *p[i].handle.shape))
                for p in partial
            ]
            programs = builtins.max(p.shape[0] for p in parts)
            parts = [np.broadcast_to(p, (programs, *p.shape[1:])) for p in parts]
            results.append(_wrap(Handle(np.stack(parts, axis + 1), x.dtype, shape)))
    return results[0] if not isinstance(input, (tuple, core.tuple)) else tuple(results)


# ---- translation of names -------------------------------------------------------------------------------------------


def _with_semantic(builtin: Callable) -> Callable:
    def call(*args, **kwargs):
        result = builtin(*args, **kwargs, _semantic=running.get())
        # tl.math makes its results without asking the semantic for a tensor.
        return BatchedTensor(result.handle, result.type) if type(result) is core.tensor else result

    return call


def _libdevice(name: str) -> Callable:
    if name not in LIBDEVICE:

        def refuse(*_: object):
            raise UnsupportedError(f"the device function {name} cannot be run without a GPU")

        return refuse

    def apply(x: BatchedTensor) -> BatchedTensor:
        return BatchedTensor(running.get().builder._unary(x.handle, LIBDEVICE[name]), x.type)

    return apply


class _ModuleView:
    """A module of triton as kernel code sees it: members are translated when they are first asked for."""

    def __init__(self, module: ModuleType) -> None:
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> object:
        if self._module.__name__.endswith("libdevice"):
            value = _libdevice(name)
        else:
            value = translate(getattr(self._module, name))
        self.__dict__[name] = value
        return value


def translate(value: object) -> object:
    """What a global of a kernel's module stands for while the kernel runs batched."""
    if isinstance(value, ModuleType):
        return _view(value) if value.__name__.split(".")[0] == "triton" else value
    if isinstance(value, (JITCallable, InterpretedFunction)) and not isinstance(
        value, (JITFunction, InterpretedFunction)
    ):
        return value  # constexpr functions run as they are
    if isinstance(value, (JITFunction, InterpretedFunction)):
        return _helper(value)
    try:
        if value in _OVERRIDES:
            return _OVERRIDES[value]
    except TypeError:  # unhashable globals are data
        return value
    return _with_semantic(value) if callable(value) and core.is_builtin(value) else value


@cache
def _view(module: ModuleType) -> _ModuleView:
    return _ModuleView(module)


_OVERRIDES = {
    core.reduce: _reduce,
    core._reduce_with_indices: _reduce_with_indices,
    core.associative_scan: _associative_scan,
    core.range: KernelRange,
    core.static_range: _static_range,
    core.static_assert: lambda condition, msg="": None,
    core.static_print: lambda *values, **_hints: print(*values),
    core.multiple_of: lambda x, _values: x,
    core.max_contiguous: lambda x, _values: x,
    core.max_constancy: lambda x, _values: x,
}

_PYTHON_NAMES = {
    "range": KernelRange,
    "min": _extremum("minimum", builtins.min),
    "max": _extremum("maximum", builtins.max),
}


class _Rewriter(ast.NodeTransformer):
    """What the source of a kernel becomes.

    `x = 0` makes a tensor, so that a later `x.to(...)` or a loop over it works; an `if` that only assigns may be taken
    both ways (see branches.py).
    """

    def __init__(self) -> None:
        self._branches = 0

    def visit_If(self, node: ast.If) -> ast.If | list[ast.stmt]:
        convertible = only_assigns(node.body) and only_assigns(node.orelse)
        self.generic_visit(node)
        if not convertible:
            return node
        self._branches += 1
        return run_both_ways(node, self._branches)

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        self.generic_visit(node)
        node.value = ast.Call(ast.Name("__to_tensor__", ast.Load()), [node.value], [])
        return node


def _to_tensor(value: object) -> object:
    return running.get().to_tensor(value, False)


def _branch(test: object) -> Branch:
    """The outcome of an `if` that only assigns."""
    if not isinstance(test, BatchedTensor) or test.handle.shape:
        return Branch(bool(test), None, None)
    taken = test.handle.data.astype(bool)
    if taken.all() or not taken.any():
        return Branch(bool(taken.flat[0]), None, None)
    return Branch(taken, running.get().builder.memory, _select)


def _select(condition: Handle, a: object, b: object) -> object:
    """`a` where the condition holds, else `b`, typed as `tl.where` would."""
    semantic = running.get()
    return semantic.where(BatchedTensor(Handle(condition.data, tl.int1, ()), tl.int1), _to_tensor(a), _to_tensor(b))


@cache
def _helper(jitted: JITFunction | InterpretedFunction) -> Callable:
    """A jitted function as a plain one, built when it is first called: helpers may name each other."""

    def call(*args, **kwargs):
        return device_function(jitted)(*args, **kwargs)

    call.jitted = jitted
    return call


@cache
def device_function(jitted: JITFunction | InterpretedFunction) -> Callable:
    """The kernel (or helper) as a Python function over batched tensors. Built once per process."""
    function = jitted.fn
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    definition.decorator_list = []
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    code = compile(ast.fix_missing_locations(_Rewriter().visit(tree)), inspect.getsourcefile(function), "exec")
    scope = _LazyGlobals(function)
    exec(code, scope)
    return scope[definition.name]


class _LazyGlobals(dict):
    """A kernel's globals, translated. Names are looked up when the code is built: only those it mentions are copied."""

    def __init__(self, function: Callable) -> None:
        names = _names_in(function.__code__)
        source = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        super().__init__({name: translate(source[name]) for name in names if name in source})
        self.update({name: value for name, value in _PYTHON_NAMES.items() if name not in source})
        self.update(__builtins__=builtins, __name__=function.__module__, __to_tensor__=_to_tensor, __branch__=_branch)
        # Defaults and annotations are evaluated when the definition runs.
        for name in ("tl", "triton"):
            if name in source:
                self.setdefault(name, translate(source[name]))


def _names_in(code) -> set[str]:
    names = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= _names_in(constant)
    return names


# ---- member functions of tensors ------------------------------------------------------------------------------------


def _attach_members() -> None:
    """Give BatchedTensor each operator and method of tl.tensor with the running launch's semantic."""
    for name in dir(core.tensor):
        member = getattr(core.tensor, name)
        if name in BatchedTensor.__dict__:
            continue
        if isinstance(member, (JITFunction, InterpretedFunction)):
            setattr(BatchedTensor, name, _helper(member))
        elif core.is_builtin(member):
            setattr(BatchedTensor, name, _with_semantic(member))

    def transpose(self: BatchedTensor) -> BatchedTensor:
        rank = len(self.handle.shape)
        return running.get().permute(self, (*builtins.range(rank - 2), rank - 1, rank - 2))

    BatchedTensor.T = property(transpose)


_attach_members()

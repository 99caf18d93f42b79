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
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from functools import reduce as fold
from types import FunctionType, ModuleType

import numpy as np
import triton.language as tl
from triton.language import core
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITCallable, JITFunction

from .arithmetic import LIBDEVICE
from .branches import Branch, names_assigned, only_assigns, run_both_ways
from .errors import Divergence, UnsupportedError
from .handle import Handle, compute_dtype
from .reductions import associative_scan, reduce, reduce_with_indices
from .semantic import BatchedTensor, running, wrap

# ---- control flow and names of Python --------------------------------------------------------------------------------


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
        turns = int(running.get().builder.agreed(np.maximum(0, -((self.start - self.stop) // self.step))))
        storage = compute_dtype(self.dtype)
        for turn in builtins.range(turns):
            yield wrap(Handle((self.start + turn * self.step).astype(storage), self.dtype, ()))


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
        return fold(lambda a, b: pick(semantic.to_tensor(a), semantic.to_tensor(b), core.PropagateNan.NONE), values)

    return apply


def _logical(decided: bool, combine: str) -> Callable:
    """`and` and `or`: elementwise on tensors, Python's own rule on constants. The operands come unevaluated.

    A program whose outcome is decided must not evaluate the rest: `i > 0 and tl.load(p + i - 1) > x`.
    """

    def apply(*operands: Callable[[], object]) -> object:
        semantic = running.get()
        result = None
        with ExitStack() as undecided:
            for operand in operands:
                value = core._unwrap_if_constexpr(operand())
                if not isinstance(value, BatchedTensor):
                    if bool(value) is decided:
                        return value
                    continue
                result = value if result is None else getattr(semantic, combine)(result, value)
                if not result.handle.shape:
                    going_on = result.handle.data.astype(bool) != decided
                    if not semantic.builder.of_running(going_on).any():
                        break
                    undecided.enter_context(semantic.builder.memory.only(going_on))
        return value if result is None else result

    return apply


def _not(value: object) -> object:
    return running.get().not_(value) if isinstance(value, BatchedTensor) else not value


def _static_assert(condition: object, message: str = "") -> None:
    if not condition:
        raise AssertionError(core._unwrap_if_constexpr(message))


# ---- translation of names -------------------------------------------------------------------------------------------


def _with_semantic(builtin: Callable) -> Callable:
    builtin = getattr(builtin, "__wrapped__", builtin)  # Triton's wrapper only checks that there is a semantic

    def call(*args, **kwargs):
        result = builtin(*args, **kwargs, _semantic=running.get())
        # tl.math makes its results without asking the semantic for a tensor.
        return BatchedTensor(result.handle, result.type) if type(result) is core.tensor else result

    return call


def _libdevice(name: str) -> Callable:
    def apply(*operands: BatchedTensor) -> BatchedTensor:
        if name not in LIBDEVICE:
            raise UnsupportedError(f"the device function {name} cannot be run without a GPU")
        (x,) = operands
        return BatchedTensor(running.get().builder.unary(x.handle, LIBDEVICE[name]), x.type)

    return apply


class _ModuleView:
    """A module of triton as kernel code sees it: members are translated when they are first asked for."""

    def __init__(self, module: ModuleType) -> None:
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> object:
        self.__dict__[name] = value = translate(getattr(self._module, name))
        return value


def translate(value: object) -> object:
    """What a global of a kernel's module stands for while the kernel runs batched."""
    if isinstance(value, ModuleType):
        return _view(value) if value.__name__.split(".")[0] == "triton" else value
    if isinstance(value, (JITFunction, InterpretedFunction)):
        return _helper(value)
    if isinstance(value, JITCallable):
        return value  # constexpr functions run as they are
    if isinstance(value, FunctionType) and re.fullmatch(r"triton\..*\.libdevice", value.__module__):
        return _libdevice(value.__name__)
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
    core.reduce: reduce,
    core._reduce_with_indices: reduce_with_indices,
    core.associative_scan: associative_scan,
    core.range: KernelRange,
    core.static_range: _static_range,
    core.static_assert: _static_assert,
    core.static_print: lambda *values, **_hints: print(*values),
    core.multiple_of: lambda x, _values: x,
    core.max_contiguous: lambda x, _values: x,
    core.max_constancy: lambda x, _values: x,
}


class _Rewriter(ast.NodeTransformer):
    """What the source of a kernel becomes.

    `x = 0` makes a tensor, so that a later `x.to(...)` or a loop over it works; `and`, `or` and `not` are those of
    Triton, not of Python; an `if` that only assigns may be taken both ways (see branches.py).
    """

    def __init__(self) -> None:
        self._branches = 0

    def visit_If(self, node: ast.If) -> ast.If | list[ast.stmt]:
        statements = node.body + node.orelse
        names = names_assigned(statements) if only_assigns(statements) else None
        self.generic_visit(node)
        if names is None:
            return node
        self._branches += 1
        return run_both_ways(node, names, self._branches)

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        self.generic_visit(node)
        node.value = _call("__to_tensor__", node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.Call:
        self.generic_visit(node)
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return _call(
            "__and__" if isinstance(node.op, ast.And) else "__or__", *(ast.Lambda(nothing, v) for v in node.values)
        )

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.UnaryOp | ast.Call:
        self.generic_visit(node)
        return _call("__not__", node.operand) if isinstance(node.op, ast.Not) else node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _to_tensor(value: object) -> object:
    return running.get().to_tensor(value, False)


def _branch(test: object) -> Branch:
    """The outcome of an `if` that only assigns."""
    memory = running.get().builder.memory
    try:
        return Branch(bool(test), memory, _select)
    except Divergence as parting:
        return Branch(parting.keys, memory, _select)


def _select(taken: np.ndarray, a: object, b: object) -> object:
    """`a` where the branch was taken, else `b`, typed as `tl.where` would."""
    semantic = running.get()
    a, b = _to_tensor(a), _to_tensor(b)
    if not all(isinstance(x, BatchedTensor) and isinstance(x.handle, Handle) for x in (a, b)):
        raise Divergence(taken)  # not a value per program, so let them part
    return semantic.where(wrap(Handle(taken, tl.int1, ())), a, b)


@cache
def _helper(jitted: JITFunction | InterpretedFunction) -> Callable:
    """A jitted function as a plain one, built when it is first called: helpers may name each other."""

    def call(*args, **kwargs):
        return device_function(jitted)(*args, **kwargs)

    call.jitted = jitted
    return call


_PYTHON_NAMES = {
    "range": KernelRange,
    "min": _extremum("minimum", builtins.min),
    "max": _extremum("maximum", builtins.max),
}

_REWRITTEN_NAMES = {
    "__to_tensor__": _to_tensor,
    "__branch__": _branch,
    "__and__": _logical(False, "logical_and"),
    "__or__": _logical(True, "logical_or"),
    "__not__": _not,
}


@cache
def device_function(jitted: JITFunction | InterpretedFunction) -> Callable:
    """The kernel (or helper) as a Python function over batched tensors. Built once per process."""
    function = jitted.fn
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    # Decorators, annotations and defaults have been evaluated where the function stands; they are not needed again.
    definition.decorator_list, definition.returns, definition.args.defaults = [], None, []
    for argument in definition.args.args:
        argument.annotation = None
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    code = compile(ast.fix_missing_locations(_Rewriter().visit(tree)), inspect.getsourcefile(function), "exec")
    scope = _globals(function)
    exec(code, scope)
    rebuilt = scope[definition.name]
    rebuilt.__defaults__ = function.__defaults__
    return rebuilt


def _globals(function: Callable) -> dict[str, object]:
    """The globals that a kernel mentions, translated."""
    source = {**_PYTHON_NAMES, **function.__globals__, **inspect.getclosurevars(function).nonlocals}
    known = {name: translate(source[name]) for name in _names_in(function.__code__) if name in source}
    return {**known, "__builtins__": builtins, "__name__": function.__module__, **_REWRITTEN_NAMES}


def _names_in(code) -> set[str]:
    names = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= _names_in(constant)
    return names


# ---- member functions of tensors ------------------------------------------------------------------------------------


def _operator(name: str, reflected: bool) -> Callable:
    def apply(self: BatchedTensor, other: object) -> BatchedTensor:
        other = core._unwrap_if_constexpr(other)
        operands = (other, self) if reflected else (self, other)
        return getattr(running.get(), name)(*operands, sanitize_overflow=False)

    return apply


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

    # The operators that index arithmetic is made of go straight to the semantic, as the builtins behind them do.
    for name in ("add", "sub", "mul"):
        setattr(BatchedTensor, f"__{name}__", _operator(name, reflected=False))
        setattr(BatchedTensor, f"__r{name}__", _operator(name, reflected=True))

    def transpose(self: BatchedTensor) -> BatchedTensor:
        rank = len(self.handle.shape)
        return running.get().permute(self, (*builtins.range(rank - 2), rank - 1, rank - 2))

    BatchedTensor.T = property(transpose)


_attach_members()

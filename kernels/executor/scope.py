"""Entering and leaving an executor: which machinery answers `kernel[grid](...)` inside a `with` block.

Nothing is patched at import. Inside the block a few methods of Triton are replaced (a launch, the autotuner's choice,
and how a type is written in IR), and all are put back when it ends, also after an exception. Blocks may be nested. They
are for one thread: another thread that launches kernels meanwhile would be caught in them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import cache

import torch
import triton.language as tl
from threadpoolctl import ThreadpoolController
from triton.runtime import interpreter as stock
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from ..collector import collector_paused
from .errors import UnsupportedError
from .launch import Launcher


class Executor(StrEnum):
    """How Triton kernels are run."""

    BATCHED = "batched"
    """Interpreted, all programs of a grid at once. No GPU needed."""
    STOCK = "stock"
    """Triton's own interpreter, program by program: the yardstick, and far slower. No GPU needed."""
    COMPILED = "compiled"
    """Compiled by Triton for the GPU."""


_launcher = Launcher()


@contextmanager
def executing(executor: Executor) -> Iterator[Launcher | None]:
    """Run the kernels launched inside the block with this executor."""
    if executor is Executor.COMPILED:
        yield None
        return
    with ExitStack() as stack:
        stack.enter_context(_openblas().limit(limits=1))
        stack.enter_context(collector_paused())
        stack.enter_context(_replaced(Autotuner, "run", _first_config))
        run = _run_batched if executor is Executor.BATCHED else _run_stock
        stack.enter_context(_replaced(JITFunction, "run", run))
        if executor is Executor.BATCHED:
            stack.enter_context(_replaced(InterpretedFunction, "run", run))
            # There is no IR: a type stands for itself. Written as IR, unsigned integers would become signed.
            stack.enter_context(_replaced(tl.dtype, "to_ir", lambda self, builder: self))
        else:
            stack.enter_context(_replaced(InterpretedFunction, "run", _unpatching(_interpret)))
            stack.enter_context(_replaced(JITFunction, "__call__", _call_stock))
            stack.enter_context(_replaced(stock.FunctionRewriter, "ast_transformer", _TensorLoops()))
            stack.enter_context(_replaced(stock.FunctionRewriter, "_compile_and_exec", _compile_apart))
            stack.enter_context(_replaced(InterpretedFunction, "rewritten_fn", _stock_rewrites))
        yield _launcher if executor is Executor.BATCHED else None


@cache
def _openblas() -> ThreadpoolController:
    """numpy's BLAS, which runs with one thread inside the block.

    It would share out each of the many small products of a kernel, and wait for threads that other work keeps off the
    cores: measured, 70 times slower on two busy cores.
    """
    return ThreadpoolController().select(internal_api="openblas")


@contextmanager
def _replaced(owner: type, name: str, value: object) -> Iterator[None]:
    missing = object()
    before = owner.__dict__.get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _first_config(self: Autotuner, *args: object, **kwargs: object) -> object:
    """Benchmarking configurations makes no sense here, and needs a driver: take the first that fits."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    config = next(iter(self.prune_configs(kwargs)))
    if config.pre_hook is not None:
        config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
    try:
        return self.fn.run(*args, **{**kwargs, **config.all_kwargs()})
    finally:
        self.nargs = None  # as Triton leaves it: it would keep the tensors alive


def _run_batched(self: JITFunction | InterpretedFunction, *args: object, grid: object, warmup: bool, **kwargs: object):
    if not warmup:
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        _launcher.launch(self, args, kwargs, grid)


# ---- Triton's own interpreter, with the repairs that FLA's kernels need (loops, autotuning) --------------------------

_interpret = InterpretedFunction.run
_stock_rewrites: dict[Callable, Callable] = {}


@cache
def _interpreted(function: Callable) -> InterpretedFunction:
    return InterpretedFunction(function)


def _run_stock(self: JITFunction, *args: object, grid: object, warmup: bool, **kwargs: object) -> None:
    if any(isinstance(a, torch.Tensor) and a.dtype == torch.bfloat16 for a in (*args, *kwargs.values())):
        raise UnsupportedError(
            "Triton's own interpreter multiplies bfloat16 as raw integers: use --dtype float32 or --executor batched"
        )
    _interpreted(self.fn).run(*args, grid=grid, warmup=warmup, **kwargs)


def _unpatching(launch: Callable) -> Callable:
    """A launch after which `triton.language` is what it was. Triton's own forgets what it patched for a helper."""

    def run(*args: object, **kwargs: object) -> None:
        with ExitStack() as stack:
            for owner in _PATCHED_BY_TRITON:
                stack.callback(_restore, owner, dict(vars(owner)))
            launch(*args, **kwargs)

    return run


_PATCHED_BY_TRITON = (tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)


def _restore(owner: object, before: dict[str, object]) -> None:
    for name in vars(owner).keys() - before.keys():
        delattr(owner, name)
    for name, value in before.items():
        if vars(owner)[name] is not value:
            setattr(owner, name, value)


def _call_stock(self: JITFunction, *args: object, **kwargs: object) -> object:
    return _interpreted(self.fn)(*args, **kwargs)


def _compile_apart(self: stock.FunctionRewriter, tree: ast.Module) -> Callable:
    """The rewritten kernel over its own copy of the globals; Triton would add names to the kernel's module."""
    scope = {**vars(stock), **self.fn.__globals__, "_tensor_range": _tensor_range, **self.kwargs}
    exec(compile(tree, self.filename, "exec"), scope)
    return scope[self.fn.__name__]


def _tensor_range(*bounds: object, **_hints: object) -> Iterator[tl.tensor]:
    """`range` with a tensor as its variable, which FLA's kernels count on (`i.to(tl.int64)`)."""
    for i in range(*(int(b) for b in bounds)):
        yield stock.interpreter_semantic.to_tensor(i)


class _TensorLoops(stock.ASTTransformer):
    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        called = getattr(node.iter, "func", None)
        if getattr(called, "id", getattr(called, "attr", None)) == "range":
            node.iter.func = ast.Name("_tensor_range", ast.Load())
        return node

"""One kernel launch: cut the grid into groups, run each, split a group where its programs part ways.

**Divergence.** A group runs as one Python call of the kernel. Wherever Python needs one concrete value (an `if`, the
number of turns of a loop, an index) and the programs disagree, the call cannot go on for all of them. It is abandoned,
the group is split by that value, and each part starts again from the top, where it will meet the same question with one
answer. A part may be split again later; programs are never lost or run twice to the end.

Starting again is safe only if the abandoned call left no trace. A kernel that updates its output in place would
otherwise read what it wrote itself. So a call that may be abandoned keeps a journal of what its stores overwrote, and
takes them back if it is, last first. Between groups nothing is shared: Triton gives no order between
programs of one launch except through atomics.

**Atomics** have a meaning for one program at a time only. A group that meets one is abandoned in the same way, and all
that have not finished run program by program in the order of the grid, as Triton's interpreter does.

**Memory.** The groups of a kernel's first launch start small; from then on the widest array that one program produced
says how many fit (`MAX_ARRAY_BYTES`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import triton.language as tl
from triton.language import core
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, mangle_type

from .builder import BatchedBuilder
from .errors import Divergence, NeedsOneProgram, UnsupportedError
from .handle import Handle, Pointer, compute_dtype
from .language import device_function, translate
from .memory import Memory
from .semantic import BatchedSemantic, running, wrap

MAX_ARRAY_BYTES = 1 << 20
"""Groups are cut so that the arrays of one operation stay around this size: bounded memory, and at home in a cache."""

FIRST_GROUP = 256
"""Programs in the first group of a kernel whose width is not known yet."""


@dataclass(slots=True)
class LaunchCounts:
    """What the launches of one kernel took, for benchmarks and tests."""

    launches: int = 0
    programs: int = 0
    calls: int = 0
    """Python calls of the kernel, abandoned ones included."""


class Launcher:
    """Runs launches batched, and remembers what it learned about each kernel."""

    def __init__(self) -> None:
        self.counts: dict[str, LaunchCounts] = {}
        self._widest: dict[tuple, int] = {}

    def launch(self, jitted: JITFunction | InterpretedFunction, args: tuple, kwargs: dict, grid: object) -> None:
        """Run `jitted[grid](*args, **kwargs)` on CPU tensors.

        Raises UnsupportedError for what has no meaning without a GPU; the tensors then hold a partial result.
        """
        function = device_function(jitted)
        values = _bind(jitted, args, kwargs)
        sizes = tuple(int(n) for n in (grid(values) if callable(grid) else grid))
        sizes += (1,) * (3 - len(sizes))
        tensors = _tensors(values.values())
        for tensor in tensors:
            if tensor.device.type != "cpu":
                raise UnsupportedError(f"the batched executor runs on CPU tensors, not on {tensor.device}")
        memory = Memory(tensors)
        builder = BatchedBuilder(sizes, memory, checked=bool(kwargs.get("debug")))
        constants = _constexprs(jitted)
        arguments = {n: translate(v) if n in constants else _argument(v) for n, v in values.items()}
        key = (jitted, *((n, repr(v)) for n, v in values.items() if n in constants))
        token = running.set(BatchedSemantic(builder))
        try:
            self._run(function, arguments, builder, memory, key)
        finally:
            running.reset(token)

    def _run(self, function, arguments: dict, builder: BatchedBuilder, memory: Memory, key: tuple) -> None:
        counts = self.counts.setdefault(key[0].fn.__name__, LaunchCounts())
        programs = _programs(builder.grid_dim)
        counts.launches += 1
        counts.programs += len(programs)
        builder.serial = len(programs) == 1
        # Programs by the answers that they have given so far; those with the same answers may run together.
        waiting: dict[tuple, np.ndarray] = {(): programs} if len(programs) else {}
        while waiting:
            answers = next(iter(waiting))
            room = 1 if builder.serial else self._room(key)
            group, rest = waiting[answers][:room], waiting[answers][room:]
            if len(rest):
                waiting[answers] = rest
            else:
                del waiting[answers]
            builder.programs = group
            memory.journaling = not builder.serial
            counts.calls += 1
            try:
                with np.errstate(all="ignore"):
                    function(**arguments)
                memory.forget()
            except Divergence as parting:
                memory.undo()
                for answer, part in _split(group, parting.keys):
                    known = waiting.get((*answers, answer))
                    waiting[(*answers, answer)] = part if known is None else np.concatenate([known, part])
            except NeedsOneProgram:
                memory.undo()
                builder.serial = True
                left = np.concatenate([group, *waiting.values()])
                waiting = {(): left[np.lexsort(left.T[::-1])]}
            self._widest[key] = max(self._widest.get(key, 0), builder.widest)

    def _room(self, key: tuple) -> int:
        widest = self._widest.get(key, 0)
        return max(1, MAX_ARRAY_BYTES // widest) if widest else FIRST_GROUP


def _split(group: np.ndarray, keys: np.ndarray) -> Iterator[tuple[object, np.ndarray]]:
    answers, which = np.unique(keys, return_inverse=True)
    for i, answer in enumerate(answers):
        yield answer.item(), group[which == i]


def _programs(grid: tuple[int, int, int]) -> np.ndarray:
    """[x * y * z, 3], in the order in which Triton's interpreter runs them."""
    axes = np.meshgrid(*(np.arange(n, dtype=np.int32) for n in grid), indexing="ij")
    return np.stack(axes, axis=-1).reshape(-1, 3)


def _constexprs(jitted: JITFunction | InterpretedFunction) -> set[str]:
    def is_constexpr(annotation: object) -> bool:
        return annotation is core.constexpr or (isinstance(annotation, str) and "constexpr" in annotation)

    return {n for n, p in inspect.signature(jitted.fn).parameters.items() if is_constexpr(p.annotation)}


def _tensors(values: Iterable[object]) -> list[torch.Tensor]:
    inner = [t for v in values if isinstance(v, tuple) for t in _tensors(v)]
    return inner + [v for v in values if isinstance(v, torch.Tensor)]


def _bind(jitted: JITFunction | InterpretedFunction, args: tuple, kwargs: dict) -> dict[str, object]:
    """Arguments by name, defaults applied; launch options such as num_warps are left out."""
    signature = inspect.signature(jitted.fn)
    bound = signature.bind(*args, **{k: v for k, v in kwargs.items() if k in signature.parameters})
    bound.apply_defaults()
    return {name: core._unwrap_if_constexpr(value) for name, value in bound.arguments.items()}


def _argument(value: object) -> object:
    """A kernel argument as compiled kernel code sees it.

    A float is a float32 tensor. Triton's interpreter leaves it a Python number, which would be rounded to bfloat16
    before it scales a bfloat16 block.
    """
    if value is None:
        return value
    if isinstance(value, float):
        return wrap(Handle(np.array([value], np.float32), tl.float32, ()))
    if isinstance(value, torch.Tensor):
        pointer = tl.str_to_ty(mangle_type(value), None)
        return wrap(Pointer((np.array([value.data_ptr()], np.int64),), pointer, ()))
    if isinstance(value, int):
        dtype = tl.int1 if isinstance(value, bool) else tl.str_to_ty(mangle_type(value), None)
        return wrap(Handle(np.array([value], compute_dtype(dtype)), dtype, ()))
    if isinstance(value, tuple):
        return core.tuple([_argument(v) for v in value])
    raise UnsupportedError(f"a kernel argument of type {type(value).__name__} cannot be run without a GPU")

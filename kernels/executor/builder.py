"""The operations of Triton's IR, computed with numpy for a whole group of programs at once.

`TritonSemantic` turns kernel source into calls of `create_*` methods; this builder answers them with `Handle`s instead
of IR. The arithmetic is that of Triton's own interpreter (numpy ufuncs and matmul per block), so float32 results are
bit-identical to it; the program axis only says how many blocks a call works on.
"""

from __future__ import annotations

from triton.runtime.interpreter import InterpreterBuilder

from .accesses import Accesses
from .arithmetic import Arithmetic
from .errors import UnsupportedError
from .handle import Handle, lift
from .shapes import Shapes


class BatchedBuilder(Arithmetic, Shapes, Accesses):
    """Triton's builder interface over batched handles. One instance serves one launch."""

    def create_print(self, prefix: str, hex: bool, values: list[Handle], is_signed: object) -> None:
        self.one_program()
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


def _unsupported(name: str):
    def refuse(self: BatchedBuilder, *_: object) -> None:
        raise UnsupportedError(f"Triton's {name} cannot be run without a GPU")

    return refuse


# The base class answers these for one program at a time, on handles of its own; they must not be reached by accident.
for _name in dir(InterpreterBuilder):
    if _name.startswith("create_") and getattr(BatchedBuilder, _name) is getattr(InterpreterBuilder, _name):
        setattr(BatchedBuilder, _name, _unsupported(_name.removeprefix("create_")))

"""What every operation of the builder stands on: results and constants as handles, and one answer for all programs."""

from __future__ import annotations

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions

from .errors import Divergence, NeedsOneProgram
from .handle import Handle, compute_dtype, round_to_bfloat16
from .memory import Memory


class Results(InterpreterBuilder):
    """The state of a launch, and how values are made.

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

    def _result(self, data: np.ndarray, dtype: tl.dtype, shape: tuple[int, ...]) -> Handle:
        """A computed value in the dtype that Triton says it has."""
        if dtype.name == "bf16":
            data = round_to_bfloat16(data)
        elif data.dtype != (wanted := compute_dtype(dtype)):
            data = data.astype(wanted)
        if data.shape[0] > 1 and data.nbytes > self.widest * data.shape[0]:
            self.widest = data.nbytes // data.shape[0]
        return Handle(data, dtype, shape)

    def _constant(self, value: object, dtype: tl.dtype) -> Handle:
        return self._result(np.array([value], dtype=compute_dtype(dtype)), dtype, ())

    def get_bf16(self, value: float) -> Handle:
        return self._constant(value, tl.bfloat16)

    def get_null_value(self, type: tl.dtype) -> Handle:
        return self._constant(0, type.scalar)

    def get_all_ones_value(self, type: tl.dtype) -> Handle:
        return self._constant(True if type.scalar == tl.int1 else -1, type.scalar)

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

    def one_program(self) -> None:
        """Here programs must come one by one; a group that finds out starts again."""
        if not self.serial:
            raise NeedsOneProgram


for _bits in (8, 16, 32, 64):
    for _kind in ("int", "uint"):
        _type = getattr(tl, f"{_kind}{_bits}")
        setattr(Results, f"get_{_kind}{_bits}", lambda self, value, t=_type: self._constant(value, t))
for _bits in (16, 32, 64):
    _type = getattr(tl, f"float{_bits}")
    setattr(Results, f"get_fp{_bits}", lambda self, value, t=_type: self._constant(value, t))
Results.get_int1 = lambda self, value: self._constant(value, tl.int1)

"""What the batched executor raises. The first two steer a launch and never leave it."""

from __future__ import annotations

import numpy as np


class Divergence(Exception):
    """A group of programs needs one concrete value and its programs disagree.

    keys: [g], the value that each program of the group has.
    """

    def __init__(self, keys: np.ndarray) -> None:
        super().__init__(f"{len(keys)} programs disagree")
        self.keys = keys


class NeedsOneProgram(Exception):
    """The operation has a meaning only for one program at a time, such as an atomic."""


class UnsupportedError(NotImplementedError):
    """The kernel uses something that cannot be run without a GPU; the message names it."""

"""Running one thing under both executors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from mamba_replay_check.kernels.executor.scope import Executor, executing
from torch import Tensor

Same = Callable[..., list[Tensor]]


@pytest.fixture(scope="session")
def same() -> Same:
    """same(kernel, grid, *arguments, **constants): launch under both executors on copies of the tensors, require the
    same bits in every one of them afterwards, and return those of the batched run.
    """

    def launch(kernel, grid: tuple, *arguments: object, **constants: object) -> list[Tensor]:
        results = []
        for executor in (Executor.STOCK, Executor.BATCHED):
            # A copy with the same layout: a view into a copy of its whole storage.
            copies = [_copy(a) if isinstance(a, Tensor) else a for a in arguments]
            with executing(executor):
                kernel[grid](*copies, **constants)
            results.append([a for a in copies if isinstance(a, Tensor)])
        for stock, batched in zip(*results, strict=True):
            torch.testing.assert_close(batched, stock, rtol=0, atol=0, equal_nan=True)
        return results[1]

    return launch


def _copy(x: Tensor) -> Tensor:
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage().clone(), x.storage_offset(), x.size(), x.stride())

"""Seeded float64 inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Rand = Callable[..., Tensor]


@pytest.fixture
def rand() -> Rand:
    """rand(*shape): standard normal, float64, the same in every run of a test."""
    generator = torch.Generator().manual_seed(20_416)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return draw

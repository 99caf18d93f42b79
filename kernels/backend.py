"""Where kernels run: which device, and which executor on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .executor.scope import Executor


class BackendError(ValueError):
    """A device or executor that this machine or the other choice rules out."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A device and the executor that runs Triton kernels on it."""

    device: torch.device
    executor: Executor

    @property
    def description(self) -> str:
        """For people: "CPU, batched interpreter" or the GPU's name."""
        if self.executor is Executor.COMPILED:
            return f"{torch.cuda.get_device_name(self.device)}, compiled kernels"
        how = "batched interpreter" if self.executor is Executor.BATCHED else "Triton's own interpreter"
        return f"CPU, {how}"


def choose_backend(device: str = "auto", executor: str | None = None, dtype: str = "float32") -> Backend:
    """Resolve `auto|cpu|cuda` and an executor's name. Without one, a GPU compiles and a CPU runs batched.

    Raises BackendError for what this machine, the executor or the number format rules out.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise BackendError(f"unknown device {device!r}: use auto, cpu or cuda")
    if executor is not None and executor not in list(Executor):
        raise BackendError(f"unknown executor {executor!r}: use {', '.join(Executor)}")
    if device == "auto":
        wants_cpu = executor in (Executor.BATCHED, Executor.STOCK)
        device = "cuda" if torch.cuda.is_available() and not wants_cpu else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise BackendError("no CUDA device here: use --device cpu, which needs no GPU")
    chosen = Executor(executor) if executor else Executor.COMPILED if device == "cuda" else Executor.BATCHED
    if chosen is Executor.COMPILED and device == "cpu":
        raise BackendError("compiled kernels need a CUDA device: use --executor batched, which runs them on a CPU")
    if chosen is not Executor.COMPILED and device == "cuda":
        raise BackendError(f"the {chosen} executor runs on a CPU: use --device cpu, or --executor compiled")
    if chosen is Executor.STOCK and dtype == "bfloat16":
        raise BackendError("Triton's own interpreter computes bfloat16 wrongly: use --executor batched, or float32")
    return Backend(torch.device(device), chosen)

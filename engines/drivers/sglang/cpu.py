"""What SGLang needs before it is imported on a machine without a GPU. None of it changes what SGLang decides."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings

import torch


def prepare() -> None:
    """Call once, before the first import of sglang."""
    # One path on every machine: a GPU that is there is not used, and neither is SGLang's own CPU build.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.pop("SGLANG_USE_CPU_ENGINE", None)
    # The allocator and the decode tracking copy with Triton kernels and have no other path: interpret them.
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    _repair_torchvision()
    _never_pin_memory()


def _repair_torchvision() -> None:
    """A torchvision that was built for CUDA cannot load its library, and then misses two operators while imported."""
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, ImportError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        global _operators  # they live as long as this object
        _operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _never_pin_memory() -> None:
    """The scheduler pins its index tensors for the copy to the GPU without asking whether there is one."""
    make_tensor = torch.tensor

    def tensor(*args: object, pin_memory: bool = False, **kwargs: object) -> torch.Tensor:
        return make_tensor(*args, **kwargs)

    torch.tensor = tensor
    torch.Tensor.pin_memory = lambda self, *args: self

"""What SGLang needs before it is imported on a machine without a GPU. None of it changes what SGLang decides."""

from __future__ import annotations

import logging
import os
import warnings

import torch


def prepare() -> None:
    """Call once, before the first import of sglang."""
    # The allocator and the decode tracking copy with Triton kernels and have no other path: interpret them.
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    _define_torchvision_operators()
    _never_pin_memory()


def _define_torchvision_operators() -> None:
    """The torchvision at hand may be built for CUDA; it registers fakes for operators that its library then lacks."""
    global _library
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _never_pin_memory() -> None:
    """The scheduler pins its index tensors for the copy to the GPU without asking whether there is one."""
    make_tensor = torch.tensor

    def tensor(*args: object, pin_memory: bool = False, **kwargs: object) -> torch.Tensor:
        return make_tensor(*args, **kwargs)

    torch.tensor = tensor
    torch.Tensor.pin_memory = lambda self, *args: self

"""What vLLM needs before it is imported on a machine without a GPU. None of it changes what vLLM decides."""

from __future__ import annotations

import logging
import os
import warnings


def prepare() -> None:
    """Call once, before the first import of vllm."""
    # One path on every machine: a GPU that is there is not used.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)

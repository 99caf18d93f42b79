"""A real vLLM on the processor, serving a tiny seeded checkpoint on loopback for as long as a test needs it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2

CHECKPOINT = Path(__file__).with_name("tiny_qwen3_next.py")

OPTIONS = (
    "--host=127.0.0.1",
    "--skip-tokenizer-init",
    "--enforce-eager",
    "--dtype=bfloat16",  # vLLM's linear attention for processors takes nothing else
    "--max-model-len=8192",
    "--max-num-seqs=8",
    "--enable-prefix-caching",
    "--enable-prompt-tokens-details",
)

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "OMP_NUM_THREADS": "1",
}


@contextmanager
def live_vllm(python: Path, shape: str, folder: Path, patience: float = 300) -> Iterator[str]:
    """The address of a vLLM that runs in the environment of `python`. Nothing of it outlives the block."""
    model = folder / shape
    subprocess.run([python, CHECKPOINT, model, shape], check=True, timeout=patience)
    port, log = _free_port(), folder / f"{shape}.log"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, f"--port={port}", *OPTIONS]
    with log.open("wb") as output:
        # A session of its own: vLLM's engine and workers are its children, and go with the group.
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
            cwd=folder,
            preexec_fn=_end_with_parent,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, log, patience)
        yield url
    finally:
        _end(process)


def _end_with_parent() -> None:
    """Also when the tests are killed and clean nothing up: vLLM's own children end when it does."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(httpx2.HTTPError):
            if httpx2.get(f"{url}/health", trust_env=False, timeout=5).status_code == 200:
                return
        time.sleep(0.5)
    why = "ended" if process.poll() is not None else f"was not up within {patience:g} s"
    raise RuntimeError(f"vLLM {why}: {log.read_text(errors='replace')[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole group to end, and see that it did."""
    for sign, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            process.poll()  # reaps it, so that the group can become empty
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)
    raise RuntimeError("a process of vLLM's outlived SIGKILL")

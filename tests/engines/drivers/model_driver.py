"""The modelled SGLang rules behind the engine protocol, and a driver that breaks in every way that one can.

    python model_driver.py RELEASE [FAULT [LENGTH]]

FAULT strikes when a prompt of LENGTH tokens is matched, or at `hello` without a LENGTH.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines.base import Engine, Payload, Snapshots
from mamba_replay_check.engines.catalog import create


class Crash(BaseException):
    """Nothing catches it."""


def read() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def write(message: object) -> None:
    print(json.dumps(message), flush=True)


class Asked(Snapshots):
    """The snapshots that the checker offers during the call at hand; payloads are their numbers."""

    def take(self, index: int | None, conv_end: int) -> Payload:
        write({"take": {"index": index, "conv_end": conv_end}})
        answer = read()
        if "error" in answer:
            raise IndexError(answer["error"])
        return answer["snapshot"]


def answer(call: dict[str, Any], engine: Engine | None) -> dict[str, Any]:
    before = len(engine.donations) if engine else 0
    match call["call"]:
        case "hello":
            return {"protocol": 1, "engine": "a model", "versions": {"model": sys.argv[1]}, "payloads": ["tag"]}
        case "match":
            found = engine.match(call["tokens"])
            return {
                "request": found.request,
                "cached_tokens": found.cached_tokens,
                "snapshot": found.payload,
                "claimed_depth": found.claimed_depth,
            }
        case "extend":
            engine.extend(call["request"], call["start"], call["end"], Asked())
        case "decode":
            engine.decode(call["request"], call["token"], Asked())
        case "finish":
            engine.finish(call["request"])
        case "open":
            pass
        case unknown:
            raise ValueError(f"there is no call {unknown!r}")
    return {
        "donations": [
            {"request": d.request, "claimed_depth": d.claimed_depth, "node_depth": d.node_depth, "fate": d.fate.value}
            for d in (engine.donations[before:] if engine else ())
        ]
    }


def break_down(fault: str, call: int) -> None:
    """Does not come back, except from what can be survived."""
    match fault:
        case "hang":
            time.sleep(1000)
        case "hang with a child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            print(f"child {child.pid}", file=sys.stderr, flush=True)
            time.sleep(1000)
        case "die":
            raise Crash("the pool is empty")
        case "die by a signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "close the output":
            os.close(1)
            time.sleep(1000)
        case "flood the error stream":
            for n in range(100_000):
                print(f"line {n} {'x' * 100}", file=sys.stderr)
        case "flood the error stream without a line":
            sys.stderr.write("y" * 10_000_000)
        case "no JSON":
            print("Loading the model...", flush=True)
        case "no object":
            write([1, 2])
        case "no end of the line":
            while True:
                sys.stdout.write("z" * 2**20)
        case "wrong keys":
            write({"id": call, "cached": 7})
        case "unknown snapshot":
            write({"id": call, "request": 0, "cached_tokens": 5, "snapshot": 99})
        case "too many tokens":
            write({"id": call, "request": 0, "cached_tokens": 10**9, "snapshot": None})
        case "take where no pass ran":
            write({"take": {"index": None, "conv_end": 0}})
        case "answers twice":
            write({"id": call, "request": 0, "cached_tokens": 0, "snapshot": None})
        case "an error of its own":
            raise RuntimeError("the tree is\nfull")
        case "stops reading":
            os.close(0)
            time.sleep(1000)


def main(release: str, fault: str = "", length: int = 0) -> None:
    engine = None
    while True:
        call = read()
        if call["call"] == "close":
            write({"id": call["id"]})
            return
        if call["call"] == "open":
            engine = create(f"model:sglang-{release}", Geometry(**call["geometry"]))
        struck = call["call"] == "match" and len(call["tokens"]) == length if length else call["call"] == "hello"
        try:
            if fault and struck:
                break_down(fault, call["id"])
            if not (struck and fault == "too many tokens"):
                write({"id": call["id"], **answer(call, engine)})
        except Exception as error:
            write({"id": call["id"], "error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))

"""The engine protocol's side of a driver in Python: JSON lines in, JSON lines out (docs/engine-protocol.md).

Runs under the Python of an engine's own environment: it imports nothing of ours, and needs only the standard library
and torch.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

PROTOCOL = 1

Call = dict[str, Any]


@dataclass(frozen=True)
class Taken:
    """A snapshot that the checker handed out: its number, and its tensors where those travel."""

    snapshot: int
    state: list[dict[str, Any]] | None


Take = Callable[[int | None, int], Taken]
"""take(index, conv_end): a state of the pass that has just run. Raises RuntimeError for one that it has not."""


class Engine(Protocol):
    """What a driver does for each call. Anything it raises becomes the call's error, and the next cell goes on."""

    def hello(self) -> dict[str, Any]: ...
    def open(self, call: Call) -> None: ...
    def match(self, call: Call) -> dict[str, Any]: ...
    def extend(self, call: Call, take: Take) -> list[dict[str, Any]]: ...
    def decode(self, call: Call, take: Take) -> list[dict[str, Any]]: ...
    def finish(self, call: Call) -> list[dict[str, Any]]: ...


def serve(make: Callable[[], Engine]) -> None:
    """Answer calls until asked to close, or until the input ends.

    `make` imports the engine. Engines print: what they print goes to the error stream from here on.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    # Text, by lines, and never read ahead of a snapshot's answer.
    lines = iter(sys.stdin.readline, "")

    def write(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    def take(index: int | None, conv_end: int) -> Taken:
        write({"take": {"index": index, "conv_end": conv_end}})
        answer = json.loads(next(lines))
        if "error" in answer:
            raise RuntimeError(f"no such state: {answer['error']}")
        return Taken(answer["snapshot"], answer.get("state"))

    engine = make()
    for line in lines:
        call = json.loads(line)
        try:
            answer = _answer(engine, call, take)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        write({"id": call.get("id"), **answer})
        if call["call"] == "close":
            return


def _answer(engine: Engine, call: Call, take: Take) -> dict[str, Any]:
    match call["call"]:
        case "hello":
            return {"protocol": PROTOCOL, **engine.hello()}
        case "open":
            engine.open(call)
            return {}
        case "match":
            return engine.match(call)
        case "extend":
            return {"donations": engine.extend(call, take)}
        case "decode":
            return {"donations": engine.decode(call, take)}
        case "finish":
            return {"donations": engine.finish(call)}
        case "close":
            return {}
        case unknown:
            raise ValueError(f"there is no call {unknown!r}")


def decoded(tensor: dict[str, Any]) -> Any:
    """A torch tensor from its JSON value."""
    import torch

    flat = torch.frombuffer(bytearray(base64.b64decode(tensor["data"])), dtype=torch.uint8)
    return flat.view(getattr(torch, tensor["dtype"])).reshape(tensor["shape"])


def encoded(tensor: Any) -> dict[str, Any]:
    """A torch tensor as its JSON value."""
    import torch

    data = tensor.detach().cpu().contiguous()
    raw = data.flatten().view(torch.uint8).numpy().tobytes()
    name = str(data.dtype).removeprefix("torch.")
    return {"dtype": name, "shape": list(data.shape), "data": base64.b64encode(raw).decode()}


def layout(call: Call) -> tuple[str, Sequence[tuple[Sequence[int], Sequence[int]]]]:
    """(dtype, [(recurrent shape, window shape)] per layer) of an `open` with tensors."""
    return call["dtype"], [(layer["recurrent"], layer["window"]) for layer in call["layers"]]

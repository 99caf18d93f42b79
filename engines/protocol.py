"""The engine protocol, version 1, as docs/engine-protocol.md describes it: what answers must look like, and tensors."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from math import prod
from typing import Any

from .base import Fate, LayerState, RawTensor

VERSION = 1

PAYLOADS = ("tag", "tensors")

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_DEPTH = {"type": "integer", "minimum": 0}
_TENSOR = {
    "type": "object",
    "required": ["dtype", "shape", "data"],
    "properties": {
        "dtype": {"enum": list(ITEM_BYTES)},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "data": {"type": "string"},
    },
}
_STATE = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["recurrent", "window"],
        "properties": {"recurrent": _TENSOR, "window": _TENSOR},
    },
}
_DONATIONS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["request", "claimed_depth", "node_depth", "fate"],
        "properties": {
            "request": {"type": "integer"},
            "claimed_depth": _DEPTH,
            "node_depth": _DEPTH,
            "fate": {"enum": [fate.value for fate in Fate]},
        },
    },
}


def _object(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


ANSWERS = {
    "hello": _object(
        ("protocol", "engine", "versions", "payloads"),
        protocol={"const": VERSION},
        engine={"type": "string", "minLength": 1},
        versions={"type": "object", "additionalProperties": {"type": "string"}},
        payloads={"type": "array", "minItems": 1, "items": {"enum": list(PAYLOADS)}},
    ),
    "open": _object(),
    "match": _object(
        ("request", "cached_tokens", "snapshot"),
        request={"type": "integer"},
        cached_tokens=_DEPTH,
        snapshot={"type": ["integer", "null"]},
        claimed_depth={"type": ["integer", "null"], "minimum": 0},
        state=_STATE,
    ),
    "extend": _object(donations=_DONATIONS),
    "decode": _object(donations=_DONATIONS),
    "finish": _object(donations=_DONATIONS),
    "close": _object(),
}
"""JSON schemas of the answers, by call. A side ignores keys that it does not know."""

TAKE = {
    "oneOf": [
        _object(("index", "conv_end"), index={"type": ["integer", "null"]}, conv_end=_DEPTH, end=False),
        _object(("end",), end=_DEPTH, index=False, conv_end=False),
    ]
}
"""JSON schema of what a driver asks during a pass."""


def mistake(answer: dict[str, Any], schema: dict[str, Any]) -> str:
    """What is wrong with an answer, in one sentence, or "" if nothing is."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(schema).iter_errors(answer))
    if error is None:
        return ""
    where = f"{error.json_path.removeprefix('$').lstrip('.')}: " if error.path else ""
    said = error.message if len(error.message) <= 200 else f"{error.message[:200]}..."
    return f"{where}{said}"


def encode(states: Sequence[LayerState]) -> list[dict[str, Any]]:
    """States as JSON values."""
    return [{"recurrent": _encoded(state.recurrent), "window": _encoded(state.window)} for state in states]


def decode(states: Sequence[dict[str, Any]]) -> list[LayerState]:
    """States from JSON values that have passed their schema. Raises ValueError for data that does not fit its shape."""
    return [LayerState(_decoded(state["recurrent"]), _decoded(state["window"])) for state in states]


def _encoded(tensor: RawTensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "shape": list(tensor.shape), "data": base64.b64encode(tensor.data).decode()}


def _decoded(tensor: dict[str, Any]) -> RawTensor:
    try:
        data = base64.b64decode(tensor["data"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"data is not base64 ({error})") from None
    needed = ITEM_BYTES[tensor["dtype"]] * prod(tensor["shape"])
    if len(data) != needed:
        raise ValueError(f"shape {tensor['shape']} of {tensor['dtype']} needs {needed} bytes, not {len(data)}")
    return RawTensor(tensor["dtype"], tuple(tensor["shape"]), data)

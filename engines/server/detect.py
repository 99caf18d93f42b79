"""Which server answers at an address?"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

from .base import Server
from .http import Http, Refused, ServerError
from .sglang import SGLang
from .vllm import Vllm

KINDS = ("auto", "sglang", "vllm")


class Unusable(Exception):
    """There is no server that could be checked; the message is one line for the user."""


def connect(url: str, kind: str = "auto", model: str | None = None, timeout: float = 60) -> Server:
    """The server at `url`, known by what only its kind answers: `/model_info` or `/version`. Raises Unusable."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Unusable(f"--url {url!r} is no address of a server: give it as http://127.0.0.1:8000")
    if kind not in KINDS:
        raise Unusable(f"--kind {kind!r} is unknown: use one of {', '.join(KINDS)}")
    http = Http(url, timeout)
    try:
        return _connect(http, kind, model)
    except ServerError as error:
        http.close()
        raise Unusable(f"cannot check {url}: {error}") from None
    except Unusable:
        http.close()
        raise


def _connect(http: Http, kind: str, model: str | None) -> Server:
    listed = _answer(http, "/v1/models")  # the one question that all of them answer: is anybody there at all?
    if kind in ("auto", "sglang"):
        info = _answer(http, "/model_info") or _answer(http, "/get_model_info")
        if info is not None or kind == "sglang":
            more = _answer(http, "/server_info") or _answer(http, "/get_server_info") or {}
            name = model or str((info or {}).get("model_path", ""))
            return SGLang(http, name, str(more.get("version", "unknown")), _longest(listed))
    version = _answer(http, "/version")
    if version is None and kind == "auto":
        raise Unusable(
            f"{http.url} answers neither as SGLang (/model_info) nor as vLLM (/version): say which it is with --kind, "
            "if it speaks like one of them"
        )
    return Vllm(http, model or _served(http, listed), str((version or {}).get("version", "unknown")), _longest(listed))


def _answer(http: Http, path: str) -> dict | None:
    """The object that the server answers; None where it has no such path."""
    try:
        found = http.get(path)
    except Refused as error:
        if error.status in (404, 405):
            return None
        raise
    return found if isinstance(found, dict) else None


def _served(http: Http, listed: dict | None) -> str:
    with suppress(KeyError, IndexError, TypeError):
        return str(listed["data"][0]["id"])
    raise Unusable(f"{http.url} names no model in /v1/models: say which with --model")


def _longest(listed: dict | None) -> int | None:
    with suppress(KeyError, IndexError, TypeError, ValueError):
        return int(listed["data"][0]["max_model_len"])
    return None

"""JSON over HTTP to a server that is not trusted: every exchange has a deadline, a size and a one-line error."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2

MOST_BYTES = 64 << 20
"""An answer longer than this is not read to its end."""


class ServerError(Exception):
    """The server did not answer, or not with what was asked for. The message is one line that names the request."""


class Refused(ServerError):
    """The server answered with a status of its own. `status` is the number."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Http:
    """One server at `url`. Safe to use from several threads; `close` it in the end.

    timeout: seconds for a whole exchange, from connecting to the last byte.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.url, self.timeout = url.rstrip("/"), timeout
        # No proxies from the environment: what stands between could queue requests, or answer in the server's place.
        self._client = httpx2.Client(timeout=timeout, trust_env=False, limits=httpx2.Limits(max_connections=64))

    def get(self, path: str) -> Any:
        """The JSON that the server answers. Raises ServerError."""
        return self._json("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that the server answers to a JSON body. Raises ServerError."""
        return self._json("POST", path, body)

    def text(self, method: str, path: str, body: dict[str, Any] | None = None) -> str:
        """What the server answers, as it stands. Raises ServerError."""
        asked, deadline, parts, size = f"{method} {path}", time.monotonic() + self.timeout, [], 0
        try:
            with self._client.stream(method, self.url + path, json=body) as answer:
                # A server that trickles would outlive a timeout per read.
                for part in answer.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > MOST_BYTES:
                        raise ServerError(f"{asked}: the answer is longer than {MOST_BYTES >> 20} MiB")
                    if time.monotonic() > deadline:
                        raise httpx2.ReadTimeout("")
                status = answer.status_code
        except httpx2.TimeoutException:
            raise ServerError(f"{asked}: no answer within {self.timeout:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            raise ServerError(f"{asked}: {_words(error)}") from None
        said = b"".join(parts).decode("utf-8", "replace")
        if status != 200:
            raise Refused(f"{asked}: status {status}: {_short(said)}", status)
        return said

    def _json(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        said = self.text(method, path, body)
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            raise ServerError(f"{method} {path}: the answer is not JSON: {_short(said)}") from None

    def close(self) -> None:
        self._client.close()


def _words(error: Exception) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__


def _short(text: str) -> str:
    """The beginning of an answer on one line, for an error."""
    line = " ".join(text.split())
    return (line[:200] + " ...") if len(line) > 200 else line or "(empty)"

"""What rooms share: signals as at a terminal, and a package index on loopback with one tiny package, so that
environments are made for real, by pip, without a network."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import re
import signal
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

# A suite that is started in the background inherits that Ctrl-C is ignored, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def wheel(version: str) -> bytes:
    """The package `tiny`, which knows its version."""
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},\n"
        for name, text in files.items()
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}).items():
            archive.writestr(name, text)
    return packed.getvalue()


class Index:
    """Serves tiny 1.0 to 1.19. A wheel can be held back: the pip that asks for it stays in the middle of its work."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/simple"
        self.served: list[str] = []
        """The versions whose wheels were asked for."""
        self._asked: dict[str, threading.Event] = {}
        self._gates: dict[str, threading.Event] = {}

    def hold(self, version: str) -> None:
        """Let the next one who asks for this wheel wait for `release`; later ones get it at once."""
        self._asked[version], self._gates[version] = threading.Event(), threading.Event()

    def wait_until_asked(self, version: str) -> None:
        assert self._asked[version].wait(60)

    def release(self, version: str) -> None:
        self._gates[version].set()

    def answer(self, path: str) -> bytes | None:
        """The body for a request."""
        if path == "/simple/tiny/":
            names = [f"tiny-1.{minor}-py3-none-any.whl" for minor in range(20)]
            return "".join(f'<a href="/{name}">{name}</a>' for name in names).encode()
        asked = re.fullmatch(r"/tiny-(1\.\d+)-py3-none-any\.whl", path)
        if asked is None:
            return None
        version = asked[1]
        self.served.append(version)
        if version in self._asked and not self._asked[version].is_set():
            self._asked[version].set()
            self._gates[version].wait(120)
        return wheel(version)


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = served.answer(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/zip")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # a pip that was killed
                super().handle()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Index(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield served
        server.shutdown()

"""Exchanges end in time, whatever the server does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from mamba_replay_check.engines.server import http
from mamba_replay_check.engines.server.http import Http, Refused, ServerError


@contextmanager
def speaking(say: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads one request per connection and then says what it likes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    say(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


def trickle(connection: socket.socket) -> None:
    connection.sendall(HEAD % 1000)
    for _ in range(100):
        connection.sendall(b" ")
        time.sleep(0.1)


@pytest.mark.parametrize(
    "say, said",
    [
        (trickle, "GET /x: no answer within 0.6 s"),
        (lambda connection: time.sleep(3), "GET /x: no answer within 0.6 s"),
        (lambda connection: None, "GET /x: Server disconnected"),
        (lambda connection: connection.sendall(b"nonsense\r\n\r\n"), "GET /x: "),
        (lambda connection: connection.sendall(HEAD % 50 + b"{"), "GET /x: "),
        (lambda connection: connection.sendall(HEAD % 3 + b"{a}"), "GET /x: the answer is not JSON: {a}"),
        (lambda connection: connection.sendall(HEAD % 3 + b"\xff{}"), "GET /x: the answer is not JSON"),
    ],
    ids=["trickles", "silent", "hangs up", "no HTTP", "cut short", "no JSON", "no UTF-8"],
)
def test_no_answer(say: Callable[[socket.socket], None], said: str) -> None:
    began = time.monotonic()
    with speaking(say) as url, pytest.raises(ServerError) as raised:
        Http(url, 0.6).get("/x")
    assert str(raised.value).startswith(said) and "\n" not in str(raised.value)
    assert time.monotonic() - began < 3


def test_an_answer_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_BYTES", 1 << 20)
    with (
        speaking(lambda connection: connection.sendall(HEAD % (1 << 22) + b" " * (1 << 22))) as url,
        pytest.raises(ServerError, match="longer than 1 MiB"),
    ):
        Http(url, 5).get("/x")


def test_a_status_of_its_own() -> None:
    said = b"HTTP/1.1 418 Teapot\r\nContent-Length: 9\r\n\r\nshort\nand"
    with speaking(lambda connection: connection.sendall(said)) as url, pytest.raises(Refused) as raised:
        Http(url, 5).post("/x", {})
    assert (raised.value.status, str(raised.value)) == (418, "POST /x: status 418: short and")

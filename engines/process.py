"""A child process that speaks JSON lines, and what can go wrong with one: it hangs, dies, floods, talks nonsense."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .base import EngineFailure

MOST_BYTES = 2**28
"""The longest line that is read. States of a real model's size fit; a driver that never ends its line does not."""

LAST_LINES = 5
LAST_LETTERS = 400
"""How much of the error stream is quoted when the process fails: the end of it says why."""

GRACE = 1.0
"""Seconds that a process which closed its output gets to end, so that its exit status can be told."""


class DriverError(EngineFailure):
    """The process can no longer be talked to. The message says what happened, and quotes its last words."""


class JsonLines:
    """One running process: `send` an object, `receive` an object, each within `timeout` seconds."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        """Start the command in a process group of its own, under a supervisor that ends it if this process ends.

        The time limit covers one `send` or `receive` each.
        """
        self.stopped = False
        self._timeout = timeout
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process, self._lifeline = _start(command, bufsize=0, **pipes)
        for pipe in (self._process.stdin, self._process.stdout):
            os.set_blocking(pipe.fileno(), False)
        self._unread = bytearray()
        self._errors: deque[str] = deque(maxlen=LAST_LINES)
        self._drain = threading.Thread(target=self._keep_last_lines, daemon=True)
        self._drain.start()

    def send(self, message: dict[str, Any]) -> None:
        """Write one line. Raises DriverError if the process does not take it in time, or is gone."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        deadline = time.monotonic() + self._timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdin, selectors.EVENT_WRITE)
            while data:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self.failed(f"it took in nothing for {self._timeout:g} s")
                try:
                    data = data[os.write(self._process.stdin.fileno(), data[: 2**16]) :]
                except BlockingIOError:  # a pipe with little room left is ready, and yet does not take so much
                    continue
                except OSError:
                    raise self._ended() from None

    def receive(self) -> dict[str, Any]:
        """Read one line, an object. Raises DriverError if none comes in time, it is none, or the process is gone."""
        line = self._line(time.monotonic() + self._timeout)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise self.failed(f"it answered {_quoted(line)}, which is no JSON object")
        return message

    def _line(self, deadline: float) -> bytes:
        searched = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while (end := self._unread.find(b"\n", searched)) < 0:
                searched = len(self._unread)
                if searched > MOST_BYTES:
                    raise self.failed(f"it answered a line of more than {MOST_BYTES >> 20} MiB")
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self.failed(f"it gave no answer for {self._timeout:g} s")
                piece = os.read(self._process.stdout.fileno(), 2**16)
                if not piece:
                    raise self._ended()
                self._unread += piece
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def end(self) -> int | None:
        """Close the process's input and wait for it to end by itself; then stop what is left of it.

        Returns its exit status, None if it did not end in time.
        """
        self._process.stdin.close()
        try:
            status = self._process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            status = None
        self.stop()
        return status

    def stop(self) -> None:
        """Kill the process and its children. May be called again."""
        if self.stopped:
            return
        self.stopped = True
        with suppress(ProcessLookupError):  # the group outlives its leader as long as it has members
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._drain.join(GRACE)
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()
        os.close(self._lifeline)

    def _ended(self) -> DriverError:
        try:
            status = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return self.failed("it closed its output")
        if status > 128:
            with suppress(ValueError):
                return self.failed(f"it was ended by {signal.Signals(status - 128).name}")
        return self.failed(f"it ended with exit status {status}")

    def failed(self, what: str) -> DriverError:
        """Stop the process, for what it did or said, and give the error to be raised."""
        self.stop()
        words = " | ".join(self._errors)
        if len(words) > LAST_LETTERS:
            words = f"...{words[-LAST_LETTERS:]}"
        return DriverError(f"the driver failed: {what}" + (f"; its last words: {words}" if words else ""))

    def _keep_last_lines(self) -> None:
        """Read the error stream to its end, so that a flood neither blocks the process nor fills our memory."""
        rest = b""
        with self._process.stderr as stream:
            while piece := stream.read(2**16):
                *lines, rest = (rest + piece).split(b"\n")
                self._errors.extend(text for line in lines[-LAST_LINES:] if (text := _readable(line)))
                rest = rest[-LAST_LETTERS:]
        if text := _readable(rest):
            self._errors.append(text)


@contextmanager
def under_supervisor(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed, with all its children, when the block is left and when this process ends.

    options: as for `subprocess.Popen`.
    """
    process, lifeline = _start(command, **options)
    try:
        yield process
    finally:
        os.close(lifeline)
        process.wait()


def _start(command: Sequence[str], **options: Any) -> tuple[subprocess.Popen[bytes], int]:
    """The supervisor of a new process, and the lifeline on which it hangs: closing it ends both."""
    alive, lifeline = os.pipe()
    supervisor = str(Path(__file__).with_name("supervisor.py"))
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", supervisor, str(alive), *command],
            pass_fds=(alive,),
            start_new_session=True,
            **options,
        )
    finally:
        os.close(alive)
    return process, lifeline


def _readable(line: bytes) -> str:
    return " ".join(line[-LAST_LETTERS:].decode(errors="replace").split())


def _quoted(line: bytes) -> str:
    text = _readable(line[:LAST_LETTERS])
    return repr(text if len(text) <= 80 else f"{text[:80]}...")

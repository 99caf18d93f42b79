"""Runs a driver and sees to it that it does not outlive the check. A script of its own, started by engines/process.py.

    python supervisor.py LIFELINE COMMAND...

The driver gets this process's standard streams. LIFELINE is the number of a pipe that the check holds open; the kernel
closes it when the check ends, however it ends, and then the whole process group is killed, this process included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

CANNOT_START = 127
"""The shell's exit status for a command that cannot be run."""


def main(lifeline: int, command: list[str]) -> int:
    """The driver's exit status, as a shell would give it."""
    threading.Thread(target=_kill_all_when_closed, args=(lifeline,), daemon=True).start()
    try:
        driver = subprocess.Popen(command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return CANNOT_START
    # Held open here, the driver's end of its output would not be seen when it closes it or ends.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    status = driver.wait()
    return status if status >= 0 else 128 - status


def _kill_all_when_closed(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

"""How a mistake is said: on one line of the standard error."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def say(message: str) -> None:
    """An error, on one line."""
    line = Text.assemble(("error: ", "bold red"), " ".join(message.split()))
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)

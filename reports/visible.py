"""Text from outside (an engine's name, its error, a path) on its way into a report: it is shown, and never acts."""

from __future__ import annotations

import unicodedata

_ACTING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories that are not seen but act: controls, direction marks, half surrogates, line separators."""


def one_line(text: str) -> str:
    """The text on one line, with everything that is not seen written out as Python would: `\\n`, `\\x1b`."""
    return "".join(_written_out(char) if _acts(char) else char for char in text)


def lines(text: str) -> str:
    """The same, but line feeds stay. What comes out is legal in XML 1.0."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def _acts(char: str) -> bool:
    return unicodedata.category(char) in _ACTING or ord(char) & 0xFFFE == 0xFFFE


def _written_out(char: str) -> str:
    return char.encode("unicode_escape").decode()

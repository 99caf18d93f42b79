"""Choices from a TOML file: `[tool.mamba-replay-check]` of pyproject.toml, or a file of its own named with --config.

A setting has the name of its option, without the dashes. What the file says becomes the default of the option, so the
command line wins, and every value goes through the same checks. Paths are as on the command line: from the current
folder.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

SECTION = "mamba-replay-check"
PYPROJECT = Path("pyproject.toml")
_HEADER = re.compile(rf"\s*\[\s*tool\s*\.\s*[\"']?{SECTION}[\"']?\s*\]")

SIZES = ("chunk", "page", "dcp", "interval")
LISTS = ("prompt",)
FLAGS = ("guard", "no-share", "github", "strict")
NUMBERS = ("seed", "engine-timeout")
WORDS = (
    "engine",
    "engine-cmd",
    "engine-python",
    "payload",
    "model",
    "prompts",
    "tokenizer",
    "dtype",
    "device",
    "executor",
    "baseline",
)
FILES = ("json", "table", "html", "junit", "sarif")
MOST = 2**63
"""Python refuses to write very long whole numbers; nothing here needs one."""

KNOWN = (*SIZES, *LISTS, *FLAGS, *NUMBERS, *WORDS, *FILES)


class SettingsError(ValueError):
    """A settings file that cannot be used; the message names file and key, and says what is accepted."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a file chose, by option name, in the form in which a command line gives it.

    line: where the section begins in the file, for reports that point there.
    """

    path: Path
    line: int
    values: Mapping[str, object]


def read_settings(path: Path | None) -> Settings | None:
    """The settings of this file, or without one those of ./pyproject.toml if it has a section. Raises SettingsError."""
    if path is None and not PYPROJECT.is_file():
        return None
    where = path or PYPROJECT
    try:
        text = where.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"cannot read {where}: {error.strerror}; give a TOML file") from None
    except UnicodeDecodeError as error:
        if path is None and SECTION.encode() not in error.object:
            return None
        raise SettingsError(f"{where} is not TOML: it is not UTF-8 from byte {error.start} on") from None
    except (ValueError, RecursionError) as error:  # tomllib names line and column
        if path is None and SECTION not in text:
            return None  # somebody else's pyproject.toml is not ours to judge
        raise SettingsError(f"{where} is not TOML: {error}") from None
    tool = content.get("tool", {})
    section = tool.get(SECTION) if isinstance(tool, dict) else None
    if section is None:
        if path is None:
            return None
        section = {key: value for key, value in content.items() if key != "tool"}
    if not isinstance(section, dict):
        raise SettingsError(f"{where}: tool.{SECTION} must be a table")
    begins = next((n for n, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)), 1)
    return Settings(where, begins, {key: _value(where, key, value) for key, value in section.items()})


def _value(where: Path, key: str, value: object) -> object:
    if key not in KNOWN:
        near = get_close_matches(key, KNOWN, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SettingsError(f"{where}: unknown key {key!r}: {hint}known keys are {', '.join(KNOWN)}")
    if key in SIZES:
        parts = value if isinstance(value, list) else [value]
        if parts and all(type(part) is str or (type(part) is int and abs(part) < MOST) for part in parts):
            return ",".join(map(str, parts))
        raise _wrong(where, key, value, 'sizes such as 64, [1, 16, 64] or "1..128..x2"')
    if key in LISTS:
        parts = value if isinstance(value, list) else [value]
        if parts and all(isinstance(part, str) for part in parts):
            return parts
        raise _wrong(where, key, value, 'a list of strings such as ["16384+4066"]')
    kind, accepted = (
        (bool, "true or false") if key in FLAGS else (int, "a whole number") if key in NUMBERS else (str, "a string")
    )
    if type(value) is not kind or (kind is int and abs(value) >= MOST):
        raise _wrong(where, key, value, accepted)
    return value


def _wrong(where: Path, key: str, value: object, accepted: str) -> SettingsError:
    try:
        said = repr(value)
    except ValueError:  # a whole number of thousands of digits
        said = "a very long number"
    said = said if len(said) <= 80 else f"{said[:77]}..."
    return SettingsError(f"{where}: {key} = {said} cannot be used: give {accepted}")

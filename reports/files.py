"""The run as files: JSON with everything, and a table with one row per cell."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .document import SCHEMA
from .schema import schema

TABLE_SUFFIXES = (".csv", ".parquet")


class OutputError(ValueError):
    """A file that cannot be written; the message says why and what to do."""


def check_writable(path: Path) -> None:
    """Raise OutputError unless `path` can be written, before any time is spent on what should go there."""
    parent = path.parent
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; name a file")
    if path.exists() and not path.is_file():
        raise OutputError(f"cannot write {path}: it is no ordinary file, and would be replaced; name a file")
    if not parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {parent}; make it first")
    if path.exists() and not os.access(path, os.W_OK):
        raise OutputError(f"cannot write {path}: permission denied; name a file that you may write to")
    with failing_as_output_error(path):
        handle, name = tempfile.mkstemp(dir=parent, prefix=f".{path.name}.")
        os.close(handle)
        Path(name).unlink()


def check_table(path: Path) -> None:
    """The same for a table, whose suffix says what it is."""
    if path.suffix not in TABLE_SUFFIXES:
        raise OutputError(f"cannot write a table to {path}: give it the ending {' or '.join(TABLE_SUFFIXES)}")
    check_writable(path)


class DocumentError(ValueError):
    """A file that is not a saved run; the message says what is wrong with it."""


def read_document(path: Path) -> dict[str, Any]:
    """A run that was written with --json. Raises DocumentError."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror}; give a file that --json wrote") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, or not JSON
        raise DocumentError(f"{path} is not JSON ({error}): give a file that --json wrote") from None
    known = document.get("schema") if isinstance(document, dict) else None
    if known != SCHEMA:
        raise DocumentError(f"{path} is not a run of schema {SCHEMA} (it says {known!r}): write it anew with --json")
    wrong = best_match(Draft202012Validator(schema()).iter_errors(document))
    if wrong is not None:
        raise DocumentError(
            f"{path} is not a whole run: {wrong.json_path} {wrong.message[:100]}; write it anew with --json"
        )
    return document


def write_json(document: dict[str, Any], path: Path) -> None:
    """Write the run, replacing the file as a whole: whoever stops us finds the last complete one."""
    write_text(json.dumps(document, indent=1) + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Write a report, replacing the file as a whole."""
    _replace(path, text.encode())


def write_table(document: dict[str, Any], path: Path) -> None:
    """One row per cell, nested fields flattened with underscores, lists left out."""
    import pandas

    # Nullable types: a depth stays a whole number beside a cell that has none.
    frame = pandas.DataFrame([_flat(cell) for cell in document["cells"]]).convert_dtypes()
    data = frame.to_csv(index=False).encode() if path.suffix == ".csv" else frame.to_parquet(index=False)
    _replace(path, data)


_MEASURED = {
    "located": ("standing", "depth", "distance", "window_distance"),
    "against_baseline": ("standing", "why"),
    "diff": ("largest", "first_wrong", "last_wrong", "over_noise", "noise_clean", "noise_rounding", "against_oracle"),
}
"""Columns that every table has, also one of cells that were never resumed or have no baseline."""


def _flat(cell: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in cell.items():
        if name in ("ledger", "details"):
            continue
        if value is None and name in _MEASURED:
            value = dict.fromkeys(_MEASURED[name])
        if isinstance(value, dict):
            row |= {f"{name}_{inner}": v for inner, v in value.items() if not isinstance(v, list)}
        elif not isinstance(value, list):
            row[name] = value
    return row


@contextmanager
def failing_as_output_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; name a place that you may write to") from error


def _replace(path: Path, data: bytes) -> None:
    with failing_as_output_error(path):
        path = path.resolve()  # a link stays one
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
            Path(name).chmod(mode)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

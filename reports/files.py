"""The run as files: JSON with everything, and a table with one row per cell."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from ..checker.cells import CellResult, Run
from .reproduce import reproduce

SCHEMA = 1
"""Raised when a field of the JSON changes its meaning or goes away."""

TABLE_SUFFIXES = (".csv", ".parquet")


class OutputError(ValueError):
    """A file that cannot be written; the message says why and what to do."""


def check_writable(path: Path) -> None:
    """Raise OutputError unless `path` can be written, before any time is spent on what should go there."""
    parent = path.parent
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; name a file")
    if not parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {parent}; make it first")
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise OutputError(f"cannot write {path}: permission denied; name a place that you may write to")


def check_table(path: Path) -> None:
    """The same for a table, whose suffix says what it is."""
    if path.suffix not in TABLE_SUFFIXES:
        raise OutputError(f"cannot write a table to {path}: give it the ending {' or '.join(TABLE_SUFFIXES)}")
    check_writable(path)


def run_as_dict(run: Run) -> dict[str, Any]:
    """The run as plain JSON values."""
    under = run.under_test
    return {
        "schema": SCHEMA,
        "complete": run.complete,
        "exit_status": run.exit_status,
        "planned": run.planned,
        "under_test": {
            "engine": under.engine,
            "guard": under.guard,
            "model": under.model,
            "dtype": under.dtype,
            "device": under.device,
            "executor": under.executor,
            "seed": under.seed,
            "shared": under.shared,
            "versions": dict(under.versions),
        },
        "cells": [cell_as_dict(run, result) for result in run.results],
    }


def cell_as_dict(run: Run, result: CellResult) -> dict[str, Any]:
    """One cell. What was not measured, because nothing was resumed, is null."""
    cell, replay, verdict = result.cell, result.replay, result.verdict
    geometry, location, difference = cell.geometry, result.location, result.diff
    return {
        "chunk": geometry.chunk,
        "page": geometry.page,
        "dcp": geometry.dcp,
        "interval": geometry.interval,
        "tree_page": geometry.tree_page,
        "checkpoint_grid": geometry.checkpoint_grid,
        "prompt": str(cell.prompt),
        "stream": cell.stream,
        "label": cell.label,
        "length": cell.prompt.resume_length,
        "verdict": {
            "kind": str(verdict.kind),
            "tokens": verdict.tokens,
            "start": verdict.start,
            "end": verdict.end,
            "part": str(verdict.part),
            "reason": verdict.reason,
            "text": str(verdict),
        },
        "claimed_depth": replay.claimed_depth,
        "state_depth": replay.state_depth,
        "conv_depth": replay.conv_depth,
        "cached_tokens": replay.cached_tokens,
        "reusable_tokens": cell.reusable,
        "donations": [
            {"claimed_depth": d.claimed_depth, "node_depth": d.node_depth, "fate": d.fate.value}
            for d in replay.donations
        ],
        "located": None
        if location is None
        else {
            "standing": str(location.standing),
            "depth": location.depth,
            "distance": _number(location.distance),
            "windows": list(location.windows),
        },
        "ledger": None
        if result.ledger is None
        else [{"start": s.start, "end": s.end, "times": s.times} for s in result.ledger.stretches],
        "diff": None
        if difference is None
        else {
            "largest": _number(difference.largest),
            "first_wrong": difference.first_wrong,
            "last_wrong": difference.last_wrong,
            "over_noise": _number(difference.over_noise),
            "noise_clean": _number(difference.noise.clean),
            "noise_rounding": _number(difference.noise.rounding),
            "against_oracle": _number(difference.oracle),
        },
        "reproduce": reproduce(run.under_test, cell),
    }


def write_json(run: Run, path: Path) -> None:
    """Write the run, replacing the file as a whole: whoever stops us finds the last complete one."""
    _replace(path, (json.dumps(run_as_dict(run), indent=1) + "\n").encode())


def write_table(run: Run, path: Path) -> None:
    """One row per cell, nested fields flattened with underscores, lists left out."""
    import pandas

    frame = pandas.DataFrame([_flat(cell_as_dict(run, result)) for result in run.results])
    data = frame.to_csv(index=False).encode() if path.suffix == ".csv" else frame.to_parquet(index=False)
    _replace(path, data)


def _flat(cell: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in cell.items():
        if isinstance(value, dict):
            row |= {f"{name}_{inner}": v for inner, v in value.items() if not isinstance(v, list)}
        elif not isinstance(value, list):
            row[name] = value
    return row


def _number(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return value if math.isfinite(value) else None


def _replace(path: Path, data: bytes) -> None:
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

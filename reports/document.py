"""The run as one plain document: what `--json` writes, and what every other report is rendered from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..checker.cells import CellResult, Run
from .reproduce import reproduce

SCHEMA = 1
"""Raised when a field changes its meaning or goes away."""

DETAILED_FINDINGS = 200
DETAILED_CLEAN = 20
"""Cells that keep their curves: findings first, and a sample of the others, so that a large run stays small on disk."""

CURVE_POINTS = 300
"""Points of a curve of errors; each keeps the largest value of the tokens that it stands for."""

DISTANCE_POINTS = 600
"""Points of a curve of distances; each keeps the smallest value of the boundaries that it stands for, and its depth."""


def run_as_dict(run: Run) -> dict[str, Any]:
    """The run as plain JSON values. What a baseline says to it, `baseline.record` writes into it."""
    under = run.under_test
    kept = _with_details(run.results)
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
            "tokenizer": under.tokenizer or None,
            "payload": under.payload or None,
            "engine_python": under.engine_python or None,
            "versions": dict(under.versions),
        },
        "cells": [cell_as_dict(run, result, details=result in kept) for result in run.results],
        "baseline": None,
    }


def cell_as_dict(run: Run, result: CellResult, *, details: bool = False) -> dict[str, Any]:
    """One cell. What was not measured, because nothing was resumed, is null. `details` adds the curves for plots."""
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
            "depths": list(location.depths),
            "distance": _number(location.distance),
            "windows": list(location.windows),
            "window_distance": _number(location.window_distance),
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
        "taken": [
            {"start": t.start, "end": t.end, "index": t.index, "depth": t.depth, "conv_depth": t.conv_depth}
            for t in replay.taken
        ],
        "prefill": list(cell.prompt.prefill),
        "decode": cell.prompt.decode,
        "next_turn": cell.prompt.next_turn,
        "branch": cell.prompt.branch,
        "reproduce": reproduce(run.under_test, cell),
        "against_baseline": None,
        "details": _details(result) if details and difference is not None else None,
    }


def _with_details(results: Sequence[CellResult]) -> list[CellResult]:
    measured = [result for result in results if result.diff is not None]
    findings = [result for result in measured if result.verdict.kind.is_discrepancy]
    clean = [result for result in measured if not result.verdict.kind.is_discrepancy]
    return findings[:DETAILED_FINDINGS] + clean[:DETAILED_CLEAN]


def _details(result: CellResult) -> dict[str, Any]:
    """Curves: hidden-state errors per layer by token, and the donated state's distance by depth."""
    errors = result.diff.errors
    tokens = errors.shape[1]
    edges = np.unique(np.linspace(0, tokens, min(tokens, CURVE_POINTS) + 1).astype(int))
    layers = np.maximum.reduceat(errors, edges[:-1], axis=1)
    curves = {
        "tokens": (result.diff.start + edges[:-1]).tolist(),
        "errors": [[_number(float(f"{value:.3e}")) for value in layer] for layer in layers],
    }
    if result.distances is not None:
        nearest = _nearest(result.distances)
        curves["depths"] = (nearest * result.cell.geometry.chunk).tolist()
        curves["distances"] = [_number(float(f"{value:.3e}")) for value in result.distances[nearest]]
    return curves


def _nearest(distances: np.ndarray) -> np.ndarray:
    """[points], the places of the smallest distances, one in each of at most `DISTANCE_POINTS` equal stretches."""
    count = len(distances)
    edges = np.unique(np.linspace(0, count, min(count, DISTANCE_POINTS) + 1).astype(int))
    known = np.nan_to_num(distances, nan=np.inf)
    return np.array([low + int(known[low:high].argmin()) for low, high in pairwise(edges)])


def _number(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return value if math.isfinite(value) else None

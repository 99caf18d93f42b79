"""Documents for tests of the HTML page: every kind of verdict, hostile text, thousands of cells. No check is run."""

from __future__ import annotations

import math
from typing import Any

from mamba_replay_check.checker.verdict import Kind, Part, Verdict

HOSTILE = (
    "</script><script>window.broken = true</script><img src=x onerror='window.broken = true'>&amp;\u2028'\""
    "\x00\x1b[31m\u202e\ud800"
)
"""Text that takes over a page which does not escape."""

LENGTH = 20450
SPANS = {
    Kind.DOUBLE_COMPUTED: (19968, 20416),
    Kind.SKIPPED: (18368, 19968),
    Kind.REFUSED: (19968, 20416),
    Kind.REUSE_LOST: (19968, 20416),
}
NOT_RESUMED = (Kind.VACUOUS, Kind.ENGINE_FAILURE)


def cell(kind: Kind = Kind.DOUBLE_COMPUTED, *, details: bool = True, reason: str = "", **fields: Any) -> dict[str, Any]:
    """One cell of the seed's geometry, as a check would have found it. `fields` replaces what is given."""
    start, end = SPANS.get(kind, (None, None))
    needs_reason = start is None and kind is not Kind.OK
    reason = reason or ("this is why" if needs_reason else "")
    verdict = Verdict(kind, start, end, reason, fields.pop("part", Part.STATE))
    resumed = kind not in NOT_RESUMED
    depth = _state_depth(kind) if resumed else None
    unknown = kind in (Kind.UNWRITTEN, Kind.FOREIGN)
    cached = 19968 if resumed else 0
    made = {
        "chunk": 64,
        "page": 64,
        "dcp": 8,
        "interval": 256,
        "tree_page": 512,
        "checkpoint_grid": 512,
        "prompt": "16384+4066",
        "stream": "seeded",
        "label": "",
        "length": LENGTH,
        "verdict": {
            "kind": str(kind),
            "tokens": verdict.tokens,
            "start": start,
            "end": end,
            "part": str(verdict.part),
            "reason": verdict.reason,
            "text": str(verdict),
        },
        "claimed_depth": 20416 if resumed else None,
        "state_depth": depth,
        "conv_depth": depth,
        "cached_tokens": cached,
        "reusable_tokens": 19968 if resumed else 0,
        "donations": [
            {"claimed_depth": 16384, "node_depth": 16384, "fate": "attached"},
            {"claimed_depth": 20416, "node_depth": 19968, "fate": "attached" if resumed else "refused"},
        ],
        "located": _located(depth, unknown) if resumed else None,
        "ledger": _ledger(depth, cached) if resumed and not unknown else None,
        "diff": _diff(kind is Kind.OK) if resumed else None,
        "taken": [
            {"start": 0, "end": 16384, "index": None, "depth": 16384, "conv_depth": 16384},
            {"start": 16384, "end": LENGTH, "index": 63, "depth": 20416, "conv_depth": 20352},
        ],
        "prefill": [16384, 4066],
        "decode": 0,
        "next_turn": 0,
        "branch": None,
        "reproduce": "mamba-replay-check --chunk 64 --page 64 --dcp 8 --interval 256 --prompt 16384+4066",
        "against_baseline": None,
        "details": _details(cached) if details and resumed else None,
    }
    return {**made, **fields}


def document(cells: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A run of these cells."""
    found = any(Kind(each["verdict"]["kind"]).is_discrepancy for each in cells)
    made = {
        "schema": 1,
        "complete": True,
        "exit_status": 1 if found else 0,
        "planned": len(cells),
        "under_test": {
            "engine": "model:sglang-0.5.17",
            "guard": False,
            "model": "kimi-linear",
            "dtype": "float32",
            "device": "CPU, batched interpreter",
            "executor": "batched",
            "seed": 0,
            "shared": True,
            "versions": {"python": "3.11.7", "mamba-replay-check": "0.1.0"},
        },
        "cells": cells,
        "baseline": None,
    }
    return {**made, **fields}


def every_kind() -> dict[str, Any]:
    """One cell of each kind, on a grid of three page sizes and four dcp sizes."""
    kinds = list(Kind)
    cells = [cell(kind, page=64 << i // 4, dcp=1 << i % 4) for i, kind in enumerate(kinds)]
    return document(cells)


def edges() -> dict[str, Any]:
    """Legal and rare: nothing differs at all, errors that are no numbers, a window, a very short prompt, no curve."""
    exact = cell(Kind.OK)
    exact["diff"].update(largest=0.0, over_noise=0.0, noise_clean=0.0, noise_rounding=0.0)
    exact["details"]["errors"] = [[0.0] * 300] * 4
    broken = cell(Kind.FOREIGN, dcp=4)
    broken["diff"].update(largest=None, over_noise=None, noise_rounding=None)
    broken["details"]["errors"] = [[None] * 300] * 4
    window = cell(dcp=2, part=Part.WINDOW, state_depth=19968, claimed_depth=19968)
    window["located"].update(depth=19968, windows=[20416])
    window["ledger"] = [{"start": 0, "end": LENGTH, "times": 1}]
    single = {
        "prompt": "1",
        "length": 1,
        "prefill": [1],
        "taken": [],
        "donations": [],
        "chunk": 16,
        "page": 1,
        "tree_page": 1,
    }
    one = cell(Kind.VACUOUS, dcp=1, **single)
    empty = cell(
        Kind.REUSE_LOST, claimed_depth=None, state_depth=None, cached_tokens=0, located=None, ledger=None, diff=None
    )
    unlocated = cell(Kind.OK, page=128)
    del unlocated["details"]["depths"], unlocated["details"]["distances"]
    return document([exact, broken, window, one, {**empty, "details": None, "dcp": 16}, unlocated])


def seed_run() -> dict[str, Any]:
    """A small failing run: two page sizes, two dcp sizes, two prompts."""
    cells = []
    for page in (64, 128):
        for dcp in (1, 8):
            kind = Kind.OK if dcp == 1 else Kind.DOUBLE_COMPUTED if page == 64 else Kind.SKIPPED
            command = f"mamba-replay-check --page {page} --dcp {dcp}"
            cells.append(cell(kind, page=page, dcp=dcp, reproduce=command))
            short = {"prompt": "63", "length": 63, "prefill": [63], "taken": [], "donations": []}
            cells.append(cell(Kind.VACUOUS, page=page, dcp=dcp, **short))
    return document(cells)


def hostile() -> dict[str, Any]:
    """Markup and script in every place that text from outside can reach."""
    cells = [
        cell(Kind.FOREIGN, reason=HOSTILE, label=HOSTILE),
        cell(Kind.ENGINE_FAILURE, reason=HOSTILE, stream=HOSTILE, dcp=4),
        cell(Kind.DOUBLE_COMPUTED, prompt=HOSTILE, reproduce=HOSTILE, dcp=2),
    ]
    made = document(cells)
    made["under_test"].update(engine=HOSTILE, model=HOSTILE, device=HOSTILE, versions={HOSTILE: HOSTILE})
    return made


def thousands(count: int = 2000) -> dict[str, Any]:
    """As many cells as the program's own limits are stated for: 200 findings and 20 others with curves."""
    cells = []
    for i in range(count):
        kind = Kind.DOUBLE_COMPUTED if i < count // 4 else Kind.VACUOUS if i % 3 == 0 else Kind.OK
        kept = i < 200 or count // 2 <= i < count // 2 + 30
        place = {"page": 32 << i % 5, "dcp": 1 + i // 5 % 10, "interval": 256 * (1 + i // 50 % 4)}
        cells.append(cell(kind, details=kept, label=f"edge {i // 200}", **place))
    return document(cells)


def _state_depth(kind: Kind) -> int:
    return {Kind.DOUBLE_COMPUTED: 20416, Kind.SKIPPED: 18368}.get(kind, 19968)


def _located(depth: int, unknown: bool) -> dict[str, Any]:
    if unknown:
        return {"standing": "nowhere", "depth": None, "distance": None, "windows": [], "window_distance": None}
    return {"standing": "at a depth", "depth": depth, "distance": 0.0, "windows": [depth], "window_distance": 0.0}


def _ledger(depth: int, cached: int) -> list[dict[str, int]]:
    low, high = sorted((depth, cached))
    pieces = [(0, low, 1), (low, high, 2 if depth > cached else 0), (high, LENGTH, 1)]
    return [{"start": start, "end": end, "times": times} for start, end, times in pieces if start < end]


def _diff(clean: bool) -> dict[str, Any]:
    return {
        "largest": 3e-7 if clean else 1.2,
        "first_wrong": None if clean else 19968,
        "last_wrong": None if clean else LENGTH - 1,
        "over_noise": 0.2 if clean else 7e5,
        "noise_clean": 3.3e-7,
        "noise_rounding": 1.7e-6,
        "against_oracle": 1.2,
    }


def _details(start: int) -> dict[str, Any]:
    tokens = [start + round(i * (LENGTH - start) / 300) for i in range(300)]
    errors = [
        [float(f"{math.exp(-i / 30) * (1 + 0.3 * math.sin(i + layer)):.3e}") for i in range(300)] for layer in range(4)
    ]
    depths = [64 * i for i in range(LENGTH // 64 + 1)]
    distances = [None, *(float(f"{1.25 + 0.1 * math.sin(i):.3e}") for i in range(1, len(depths)))]
    distances[20416 // 64] = 0.0
    return {"tokens": tokens, "errors": errors, "depths": depths, "distances": distances}

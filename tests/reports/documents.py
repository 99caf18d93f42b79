"""Runs made by hand, one cell for every kind of verdict, as a check would have left them: no kernel is run.

The sizes are those of SGLang PR 34808: a tree page of 512, a donor that absorbed 16384 + 4066 tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from mamba_replay_check.checker.cells import Cell, CellResult, Replay, Run, Taken, UnderTest
from mamba_replay_check.checker.diff import Diff, Noise
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.checker.ledger import Ledger
from mamba_replay_check.checker.locate import Location, Standing
from mamba_replay_check.checker.verdict import Kind, Part, Verdict
from mamba_replay_check.engines.base import Donation, Fate
from mamba_replay_check.reports.document import run_as_dict
from mamba_replay_check.scenarios.prompt import Prompt

HOSTILE = "<script>alert(1)</script> ]]> ::error::x | `tick` ``` [a](b) {0} % \r\n\x00\x1b[31m\x85\u202e\ud800\uffff"
"""Text that takes over a format which does not escape: markup, ends of sections, commands, control characters."""

GEOMETRY = Geometry(chunk=64, page=64, dcp=8, interval=256)
PROMPT = Prompt((16384, 4066))
NODE, DEEPER, SHALLOWER = 19968, 20416, 18432

UNDER_TEST = UnderTest(
    engine="model:sglang-0.5.17",
    guard=False,
    model="kimi-linear",
    dtype="float32",
    device="CPU, batched interpreter",
    executor="batched",
    seed=0,
    shared=True,
    versions={"python": "3.11.7", "mamba-replay-check": "0.1.0", "torch": "2.13.0"},
)

VERDICTS = {
    Kind.OK: Verdict(Kind.OK),
    Kind.DOUBLE_COMPUTED: Verdict(Kind.DOUBLE_COMPUTED, NODE, DEEPER),
    Kind.SKIPPED: Verdict(Kind.SKIPPED, SHALLOWER, NODE),
    Kind.UNWRITTEN: Verdict(Kind.UNWRITTEN, reason="nothing was ever written to the slot that the state came from"),
    Kind.FOREIGN: Verdict(Kind.FOREIGN, reason="the state matches the prompt at no depth"),
    Kind.PRECISION: Verdict(Kind.PRECISION, reason="the state was rounded by 1.0e-03"),
    Kind.REFUSED: Verdict(Kind.REFUSED, 16384, NODE, "a guard rejected the state of depth 20416"),
    Kind.REUSE_LOST: Verdict(Kind.REUSE_LOST, 16384, NODE),
    Kind.VACUOUS: Verdict(Kind.VACUOUS, reason="the prompt of 63 tokens fills no tree page of 512"),
    Kind.ENGINE_FAILURE: Verdict(Kind.ENGINE_FAILURE, reason="IndexError: slot 7"),
    Kind.DISAGREEMENT: Verdict(Kind.DISAGREEMENT, reason="the snapshot is tagged 19968, its numbers stand at 20416"),
}

STATE_DEPTH = {Kind.DOUBLE_COMPUTED: DEEPER, Kind.SKIPPED: SHALLOWER, Kind.DISAGREEMENT: DEEPER}
"""Where the numbers of a resumed cell stand, unless at the cached tokens."""


def result(
    kind: Kind, *, verdict: Verdict | None = None, stream: str = "seeded", label: str = "", dcp: int = 8
) -> CellResult:
    """A cell that was found to be of this kind."""
    verdict = verdict or VERDICTS[kind]
    geometry = replace(GEOMETRY, dcp=dcp)
    if kind is Kind.VACUOUS:
        return CellResult(Cell(geometry, Prompt((63,)), stream, label), Replay(0, None, None, None, ()), verdict)
    cell = Cell(geometry, PROMPT, stream, label)
    if kind is Kind.ENGINE_FAILURE:
        return CellResult(cell, Replay(0, None, None, None, (), failure=verdict.reason), verdict)
    cached = 16384 if kind in (Kind.REFUSED, Kind.REUSE_LOST) else NODE
    depth = STATE_DEPTH.get(kind, cached)
    on_window = verdict.part is Part.WINDOW
    tag = NODE if kind is Kind.DISAGREEMENT or on_window else depth
    fate = Fate.REFUSED if kind is Kind.REFUSED else Fate.ATTACHED
    donations = (Donation(1, 16384, 16384, Fate.ATTACHED), Donation(1, DEEPER, NODE, fate))
    taken = (Taken(0, 16384, None, 16384, 16384), Taken(16384, 20450, 63, depth, depth))
    replay = Replay(cached, DEEPER if cached == NODE else cached, tag, depth, donations, taken)
    wrong = kind not in (Kind.OK, Kind.REFUSED, Kind.REUSE_LOST)
    located = {
        Kind.UNWRITTEN: Location(Standing.UNWRITTEN, None, (), float("inf"), (), {0: None}),
        Kind.FOREIGN: Location(Standing.NOWHERE, None, (), float("inf"), (), {0: None}),
    }.get(
        kind,
        Location(Standing.AT, tag if on_window else depth, (tag if on_window else depth,), 0.0, (depth,), {0: depth}),
    )
    ledger = Ledger(located.depth, cached, 20450) if located.depth is not None else None
    return CellResult(cell, replay, verdict, ledger, located, _diff(cached, wrong), np.array([np.nan, 0.5, 0.25]))


def _diff(start: int, wrong: bool) -> Diff:
    errors = np.full((2, 20450 - start), 1e-7, dtype=np.float32)
    if wrong:
        errors[:, :700] = 0.5
    return Diff(start, errors, Noise(1e-7, 2e-6), 0.5 if wrong else 2e-6)


def run_of(*results: CellResult, complete: bool = True, **under_test: Any) -> Run:
    """A run with these results; `under_test` replaces fields of what was tested."""
    return Run(replace(UNDER_TEST, **under_test), len(results) + (not complete), list(results), complete)


def document(*kinds: Kind, complete: bool = True, **under_test: Any) -> dict[str, Any]:
    """The document of a run with one cell of each of these kinds."""
    return run_as_dict(run_of(*map(result, kinds), complete=complete, **under_test))


def cell(kind: Kind, **options: Any) -> dict[str, Any]:
    """The one cell of such a document."""
    return run_as_dict(run_of(result(kind, **options)))["cells"][0]


def hostile_document() -> dict[str, Any]:
    """A run in which everything that comes from outside is `HOSTILE`: engine, versions, reasons, label and stream."""
    reasons = [
        result(kind, verdict=replace(VERDICTS[kind], reason=HOSTILE), stream=f"{HOSTILE}:3", label=HOSTILE)
        for kind in Kind
    ]
    return run_as_dict(run_of(*reasons, engine=HOSTILE, device=HOSTILE, model=HOSTILE, versions={HOSTILE: HOSTILE}))

"""One cell of the grid, what became of it, and the run they make up. Plain values: every report renders from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..engines.base import Donation
from ..scenarios.prompt import Prompt
from .geometry import Geometry, floor_to
from .ledger import Ledger
from .verdict import Verdict, exit_status

if TYPE_CHECKING:  # planning a grid must not cost the seconds that torch takes to load
    import numpy as np

    from .diff import Diff
    from .locate import Location


@dataclass(frozen=True, slots=True)
class Cell:
    """One (geometry, prompt) to be replayed through the engine under test.

    stream: the name of the token stream that the prompt is a prefix of.
    label:  why this prompt is in the grid, e.g. "one token after the grid"; "" for the user's own.
    """

    geometry: Geometry
    prompt: Prompt
    stream: str
    label: str = ""

    @property
    def reusable(self) -> int:
        """The deepest state that the donor's history allows the resuming prompt to start from; 0 for none.

        An engine keeps the deepest state of each prefill pass, in whole cache chunks from where the pass begins, and
        the last one of decoding, at a safe interval. The tree can name it on a tree page, and a match stops one token
        before the end of the prompt. Where the prompts part, it is the deepest of these in what they share: nobody knew
        where they would, but whoever keeps only what lies behind it loses all.
        """
        geometry, limit = self.geometry, self.prompt.resume_length - 1
        shared = self.prompt.shared_length
        start, depths = 0, [0]
        for size in self.prompt.prefill:
            within = max(0, min(size, shared - start))
            kept = range(start + floor_to(within, geometry.cache_chunk), start, -geometry.cache_chunk)
            depths.append(next((depth for depth in kept if depth % geometry.tree_page == 0), 0))
            start += size
        decoded = floor_to(shared, self.geometry.safe_interval)
        depths.append(decoded if decoded > start else 0)
        return max(depth for depth in depths if depth <= limit)


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that the engine took during the donor's pass over tokens [start, end).

    index: the intermediate state it asked for, None for the final one. depth and conv_depth: what it got, truly.
    """

    start: int
    end: int
    index: int | None
    depth: int
    conv_depth: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What the engine under test did with a cell, by its own books and by the tags that snapshots carry.

    claimed_depth: where the engine says the state stands that it handed back; None if it handed back none.
    state_depth, conv_depth: where that snapshot was taken, by its tag.
    failure: what the engine died of, if it did.
    """

    cached_tokens: int
    claimed_depth: int | None
    state_depth: int | None
    conv_depth: int | None
    donations: tuple[Donation, ...]
    taken: tuple[Taken, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class CellResult:
    """Everything that is known about a cell after it was checked. The numbers are None where nothing was resumed.

    distances: [chunks], how far the donated state is from the cold one at each kernel-chunk boundary, relative to that.
    """

    cell: Cell
    replay: Replay
    verdict: Verdict
    ledger: Ledger | None = None
    location: Location | None = None
    diff: Diff | None = None
    distances: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class UnderTest:
    """What a run checked, and with what: the head of every report.

    payload:       what an engine in a process of its own moved, "tag" or "tensors"; "" for one in this process.
    engine_python: the interpreter that the user named for it, "" if none.
    settings:      choices came from a settings file, too: a command line that repeats the run must set it aside.
    """

    engine: str
    guard: bool
    model: str
    dtype: str
    device: str
    executor: str
    seed: int
    shared: bool
    versions: Mapping[str, str]
    tokenizer: str = ""
    payload: str = ""
    engine_python: str = ""
    settings: bool = False


@dataclass(slots=True)
class Run:
    """A check from beginning to end. Results are added as cells are finished; `complete` says that all of them are."""

    under_test: UnderTest
    planned: int
    results: list[CellResult] = field(default_factory=list)
    complete: bool = False

    @property
    def verdicts(self) -> list[Verdict]:
        return [result.verdict for result in self.results]

    @property
    def exit_status(self) -> int:
        """See `verdict.exit_status`. A run that was stopped cannot say that all is well: it is inconclusive at best."""
        status = exit_status(self.verdicts)
        return 3 if status == 0 and not self.complete else status

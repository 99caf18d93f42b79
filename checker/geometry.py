"""The four sizes that decide where a recurrent state can be cut, and the depths they allow.

Everything a checker, an engine or a report says about depths derives from one `Geometry`. All lengths are in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

DEFAULT_INTERVAL = 256
"""Decode steps between two snapshots, SGLang's default (`--mamba-track-interval`)."""


class GeometryError(ValueError):
    """A size that no engine could run with; the message names it and says what is accepted."""


@dataclass(frozen=True, slots=True, order=True)
class Geometry:
    """One (kernel chunk, page, dcp, track interval) choice.

    chunk:    tokens per chunk inside the linear-attention kernel; the kernel keeps a state at each multiple.
    page:     tokens per KV page.
    dcp:      ranks of decode context parallelism; they widen the page that the radix tree sees.
    interval: decode steps between two snapshots.
    """

    chunk: int
    page: int
    dcp: int
    interval: int

    def __post_init__(self) -> None:
        for name in ("chunk", "page", "dcp", "interval"):
            if getattr(self, name) < 1:
                raise GeometryError(f"{name} {getattr(self, name)} is not a size: give a whole number of at least 1")
        if self.page % self.chunk and self.chunk % self.page:
            raise GeometryError(
                f"page {self.page} does not fit kernel chunk {self.chunk}: "
                "one must be a multiple of the other, or no snapshot could be both on a page and on a chunk"
            )
        if self.interval % self.cache_chunk:
            raise GeometryError(
                f"interval {self.interval} is not a multiple of {self.cache_chunk} (the larger of chunk {self.chunk} "
                f"and page {self.page}): use a multiple of {self.cache_chunk}"
            )

    @classmethod
    def with_default_interval(cls, chunk: int, page: int, dcp: int) -> Geometry:
        """The geometry an engine gets when nobody names an interval: the smallest legal multiple of the default."""
        return cls(chunk, page, dcp, lcm(DEFAULT_INTERVAL, max(chunk, page, 1)))

    @property
    def tree_page(self) -> int:
        """T: the radix tree only names multiples of it."""
        return self.page * self.dcp

    @property
    def cache_chunk(self) -> int:
        """C: the engine's own snapshot granularity."""
        return max(self.chunk, self.page)

    @property
    def checkpoint_grid(self) -> int:
        """G: the depths that kernel and tree can both name."""
        return lcm(self.cache_chunk, self.tree_page)

    @property
    def safe_interval(self) -> int:
        """The decode steps after which a snapshot also stands on the checkpoint grid."""
        return lcm(self.checkpoint_grid, self.interval)

    def __str__(self) -> str:
        return f"chunk {self.chunk}, page {self.page}, dcp {self.dcp}, interval {self.interval}"


def floor_to(depth: int, grid: int) -> int:
    """The deepest multiple of `grid` that is not beyond `depth`."""
    return depth // grid * grid

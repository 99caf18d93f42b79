"""The named prompts: the case that this program was made for, and those that sit on the edges of a geometry."""

from __future__ import annotations

from ..checker.geometry import Geometry
from .prompt import Prompt

SEED = Prompt((16384, 4066))
"""The history of SGLang PR 34808: two prefill chunks, the same prompt sent again."""


def edge_prompts(geometry: Geometry) -> list[tuple[str, Prompt]]:
    """(name, prompt) for each edge that the geometry has.

    The resuming prompt is a kernel chunk and one token longer than the donor's: a match stops one token before the end,
    so what ends on the grid can only be reached by a longer prompt.
    """
    grid, page, chunk = 2 * geometry.checkpoint_grid, geometry.tree_page, geometry.chunk
    lengths = {
        "ends on the checkpoint grid": grid,
        "one token before the grid": grid - 1,
        "one token after the grid": grid + 1,
        "one kernel chunk past the last tree page": grid + chunk if chunk < page else 0,
        "shorter than one tree page": page - 1,
        "shorter than one kernel chunk": min(chunk, page) - 1,
    }
    named: dict[int, str] = {}
    for name, length in lengths.items():
        if length > 0:
            named.setdefault(length, name)
    # A donor shorter than a page proves something only if the resuming prompt does not fill the page either.
    return [(name, Prompt((n,), next_turn=chunk + 1 if n >= page else 0)) for n, name in named.items()]


def default_prompts(geometry: Geometry) -> list[tuple[str, Prompt]]:
    """What a geometry is checked with when nobody names a prompt."""
    return [("the case of SGLang PR 34808", SEED), *edge_prompts(geometry)]

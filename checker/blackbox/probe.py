"""At which depths does a server resume? Asked of the server itself, for users who do not know."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ...engines.server.base import Server
from .cases import Case, History, Stream
from .measure import Effort, Spaces

LADDER = (192, 384, 768, 1536, 3072, 6144)
"""Prompt lengths, tried in order until one is reused."""


@dataclass(frozen=True, slots=True)
class Probed:
    """block: the largest number of which all counts were multiples; least: the shortest prompt that was reused."""

    block: int
    least: int


def probe(
    server: Server, stream: Stream, effort: Effort, most: int, tick: Callable[[str], None] = lambda _: None
) -> Probed | None:
    """Send prompts of growing length again and again until one is reused, then three more lengths. None: never.

    Raises ServerError. The block is a multiple of the server's own: no count that was seen contradicts it.
    """
    spaces = Spaces(server, effort.salted)

    def reused(length: int) -> int:
        tick(f"probing {length} tokens")
        tokens, space = stream.tokens(Case(History.RESEND, length), 0), spaces.fresh()
        for _ in range(effort.sends):
            if found := server.cached(tokens, space):
                return found
        return 0

    for length in (each for each in LADDER if each <= most):
        if found := reused(length):
            more = [n for n in (length * 5 // 4, length * 3 // 2, length * 2) if n <= most]
            counts = [found, *(reused(n) for n in more)]
            return Probed(math.gcd(*counts), found + 1)
    return None

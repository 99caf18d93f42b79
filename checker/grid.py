"""The grid of geometries, from the way sizes are written on a command line."""

from __future__ import annotations

import re
from itertools import product

from .geometry import Geometry, GeometryError

MOST_VALUES = 10_000
MOST_GEOMETRIES = 100_000
MOST_DIGITS = 15
"""Sizes beyond any machine are turned away while they are still text: Python itself refuses to read very long ones."""

_NUMBER = re.compile(r"[0-9]+")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)(?:\.\.(x?)([0-9]+))?")
_ACCEPTED = "give sizes of at least 1: one (64), a list (1,16,64), a range (1..8 or 64..512..64), or 1..128..x2"


class GridError(ValueError):
    """Sizes that cannot be read; the message names the option, the piece and what is accepted."""


def parse_sizes(option: str, text: str) -> list[int]:
    """The sizes that `text` writes, sorted, each once. Raises GridError.

    A piece is a number, `A..B` (step 1), `A..B..S` (step S) or `A..B..xS` (times S); ends are included. Pieces are
    joined by commas.
    """
    sizes: set[int] = set()
    for piece in text.split(","):
        sizes |= set(_piece(option, piece.strip()))
        if len(sizes) > MOST_VALUES:
            raise GridError(f"{option} {text}: more than {MOST_VALUES} sizes; use a larger step")
    return sorted(sizes)


def _piece(option: str, piece: str) -> range | list[int]:
    if any(len(digits) > MOST_DIGITS for digits in _NUMBER.findall(piece)):
        raise GridError(f"{option}: a size of more than {MOST_DIGITS} digits is beyond any machine: {_ACCEPTED}")
    if _NUMBER.fullmatch(piece):
        if int(piece) < 1:
            raise GridError(f"{option} {piece} is not a size: {_ACCEPTED}")
        return [int(piece)]
    form = _RANGE.fullmatch(piece)
    if form is None:
        raise GridError(f"{option} {piece!r} cannot be read: {_ACCEPTED}")
    first, last, step = int(form[1]), int(form[2]), int(form[4] or 1)
    if first < 1 or step < 1 or (form[3] and step < 2):
        raise GridError(f"{option} {piece} does not get anywhere: {_ACCEPTED}")
    if first > last:
        raise GridError(f"{option} {piece} is an empty range: its end comes before its beginning")
    if not form[3]:
        if (last - first) // step >= MOST_VALUES:
            raise GridError(f"{option} {piece}: more than {MOST_VALUES} sizes; use a larger step")
        return range(first, last + 1, step)
    sizes = [first]
    while sizes[-1] * step <= last:
        sizes.append(sizes[-1] * step)
    return sizes


def grid(chunks: list[int], pages: list[int], dcps: list[int], intervals: list[int] | None) -> list[Geometry]:
    """Every combination, in order. Without intervals each gets its default one. Raises GridError and GeometryError."""
    many = len(chunks) * len(pages) * len(dcps) * len(intervals or [None])
    if many > MOST_GEOMETRIES:
        raise GridError(f"{many} combinations of sizes: at most {MOST_GEOMETRIES} are run at once; use larger steps")
    geometries = []
    for chunk, page, dcp in product(chunks, pages, dcps):
        try:
            if intervals is None:
                geometries.append(Geometry.with_default_interval(chunk, page, dcp))
            else:
                geometries += [Geometry(chunk, page, dcp, interval) for interval in intervals]
        except GeometryError as error:
            raise GeometryError(f"chunk {chunk} with page {page} and dcp {dcp}: {error}") from None
    return geometries

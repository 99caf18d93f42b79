"""The history that an engine is driven through: the donor's passes, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .prompt import Prompt


@dataclass(frozen=True, slots=True)
class Extend:
    """A prefill pass over the prompt's tokens [start, end)."""

    start: int
    end: int

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode step that absorbs the token at this position."""

    position: int


Step = Extend | Decode


def steps(prompt: Prompt, cached_tokens: int = 0) -> Iterator[Step]:
    """The donor's passes, in order. What its own first match already holds is not computed again."""
    start = 0
    for size in prompt.prefill:
        end = start + size
        if end > cached_tokens:
            yield Extend(max(start, cached_tokens), end)
        start = end
    for step in range(prompt.decode):
        yield Decode(start + step)

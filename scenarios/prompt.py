"""A prompt to be replayed, by its sizes: how the donor absorbs it, and how much longer the resuming prompt is."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_DIGITS = 15
"""Sizes beyond any machine are turned away while they are still text: Python itself refuses to read very long ones."""

_SIZE = re.compile(r"[0-9]+")
_FORM = re.compile(r"(?P<prefill>[0-9]+(?:\+[0-9]+)*)(?:d(?P<decode>[0-9]+))?(?:n(?P<next_turn>[0-9]+))?")
_ACCEPTED = (
    "give the prefill chunks joined by +, then d and decode steps, then n and the next turn's tokens, "
    "each at least 1: 16384+4066, 500d300, 512n65"
)


class PromptError(ValueError):
    """A prompt that cannot be replayed; the message is one line and says what is accepted."""


@dataclass(frozen=True, slots=True, order=True)
class Prompt:
    """One donor and one resuming prompt, both prefixes of the same tokens. All sizes in tokens.

    prefill:   the donor's prompt, cut into prefill chunks.
    decode:    decode steps that the donor takes after it.
    next_turn: by how much the resuming prompt is longer than all that the donor absorbed; 0 sends the very same tokens.
    """

    prefill: tuple[int, ...]
    decode: int = 0
    next_turn: int = 0

    def __post_init__(self) -> None:
        if not self.prefill or min(self.prefill) < 1 or self.decode < 0 or self.next_turn < 0:
            raise PromptError(f"prompt {self}: {_ACCEPTED}")

    @classmethod
    def parse(cls, text: str) -> Prompt:
        """Read the form that `str` writes: `16384+4066`, `500+41d300n64`. Raises PromptError."""
        written = _SIZE.findall(text)
        if any(len(size) > MOST_DIGITS for size in written):
            raise PromptError(
                f"a prompt with a size of more than {MOST_DIGITS} digits is beyond any machine: {_ACCEPTED}"
            )
        form = _FORM.fullmatch(text.strip())
        if form is None or not all(map(int, written)):
            raise PromptError(f"prompt {text!r} cannot be read: {_ACCEPTED}")
        sizes = tuple(int(size) for size in form["prefill"].split("+"))
        return cls(sizes, int(form["decode"] or 0), int(form["next_turn"] or 0))

    @property
    def prompt_length(self) -> int:
        """The donor's prompt."""
        return sum(self.prefill)

    @property
    def donor_length(self) -> int:
        """All that the donor absorbs: its prompt and what it decodes."""
        return self.prompt_length + self.decode

    @property
    def resume_length(self) -> int:
        """The resuming prompt."""
        return self.donor_length + self.next_turn

    def __str__(self) -> str:
        decode = f"d{self.decode}" if self.decode else ""
        return "+".join(map(str, self.prefill)) + decode + (f"n{self.next_turn}" if self.next_turn else "")

"""A prompt to be replayed, by its sizes: how the donor absorbs it, and how much longer the resuming prompt is."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_DIGITS = 15
"""Sizes beyond any machine are turned away while they are still text: Python itself refuses to read very long ones."""

_SIZE = re.compile(r"[0-9]+")
_FORM = re.compile(
    r"(?P<prefill>[0-9]+(?:\+[0-9]+)*)(?:d(?P<decode>[0-9]+))?(?:b(?P<branch>[0-9]+))?(?:n(?P<next_turn>[0-9]+))?"
)
_ACCEPTED = (
    "give the prefill chunks joined by +, then d and decode steps, then b and the tokens that both prompts share, "
    "then n and the next turn's tokens, each at least 1: 16384+4066, 500d300, 512n65, 2200b1600n600"
)


class PromptError(ValueError):
    """A prompt that cannot be replayed; the message is one line and says what is accepted."""


@dataclass(frozen=True, slots=True, order=True)
class Prompt:
    """One donor and one resuming prompt, which begin with the same tokens. All sizes in tokens.

    prefill:   the donor's prompt, cut into prefill chunks.
    decode:    decode steps that the donor takes after it.
    next_turn: by how much the resuming prompt is longer than what it shares with the donor; 0 sends the same again.
    branch:    where the two part: the resuming prompt goes on with tokens of its own. None where all that the donor
               absorbed is shared.
    """

    prefill: tuple[int, ...]
    decode: int = 0
    next_turn: int = 0
    branch: int | None = None

    def __post_init__(self) -> None:
        if not self.prefill or min(self.prefill) < 1 or self.decode < 0 or self.next_turn < 0:
            raise PromptError(f"prompt {self}: {_ACCEPTED}")
        if self.branch is not None and not (0 < self.branch < self.donor_length and self.next_turn):
            raise PromptError(
                f"prompt {self}: b{self.branch} has to lie within the {self.donor_length} tokens of the donor, and n "
                "has to say how many tokens of its own the resuming prompt goes on with: 2200b1600n600"
            )

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
        branch = int(form["branch"]) if form["branch"] else None
        return cls(sizes, int(form["decode"] or 0), int(form["next_turn"] or 0), branch)

    @property
    def prompt_length(self) -> int:
        """The donor's prompt."""
        return sum(self.prefill)

    @property
    def donor_length(self) -> int:
        """All that the donor absorbs: its prompt and what it decodes."""
        return self.prompt_length + self.decode

    @property
    def shared_length(self) -> int:
        """The tokens with which both begin."""
        return self.donor_length if self.branch is None else self.branch

    @property
    def resume_length(self) -> int:
        """The resuming prompt."""
        return self.shared_length + self.next_turn

    @property
    def longest(self) -> int:
        """The longer of what the donor absorbs and the resuming prompt."""
        return max(self.donor_length, self.resume_length)

    def __str__(self) -> str:
        decode = f"d{self.decode}" if self.decode else ""
        branch = "" if self.branch is None else f"b{self.branch}"
        return "+".join(map(str, self.prefill)) + decode + branch + (f"n{self.next_turn}" if self.next_turn else "")

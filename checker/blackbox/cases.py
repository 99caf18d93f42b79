"""What is asked of a running server: histories of requests in which a later prompt can resume from an earlier one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

FIRST_TOKEN = 3
"""Lower token ids are often special: padding, beginning and end."""

TAIL = 64
"""Tokens of a prompt that no donor has: the next turn, or what tells siblings apart."""


class CaseError(ValueError):
    """A case that cannot be read; the message says what is accepted."""


class History(StrEnum):
    """How the resuming prompt is related to its donors."""

    RESEND = "resend"
    """The same prompt again."""
    TURN = "turn"
    """The donor's prompt, and TAIL tokens more."""
    SIBLING = "sibling"
    """A prompt that shares all but the last TAIL tokens with each donor."""


@dataclass(frozen=True, slots=True)
class Case:
    """One history. `length` is the donor's, in tokens; the resuming prompt may be longer."""

    history: History
    length: int

    @property
    def target_length(self) -> int:
        """Tokens of the resuming prompt."""
        return self.length + (TAIL if self.history is History.TURN else 0)

    @property
    def shared(self) -> int:
        """How many tokens the resuming prompt and its donors have in common."""
        return self.length - (TAIL if self.history is History.SIBLING else 0)

    @property
    def most_reusable(self) -> int:
        """No match is longer: at least one token must be left to compute."""
        return min(self.shared, self.target_length - 1)

    def __str__(self) -> str:
        """As `parse` reads it: `resend:3000`."""
        return f"{self.history}:{self.length}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case that `text` writes. Raises CaseError."""
        history, _, length = text.partition(":")
        try:
            case = cls(History(history), int(length) if len(length) < 9 else 0)
        except ValueError:
            case = None
        if case is None or case.shared < 1 or length.strip() != length:
            kinds = ", ".join(f"{each}:3000" for each in History)
            raise CaseError(
                f"--case {text!r:.80} cannot be read: give a history and the donor's tokens, as {kinds} "
                f"(more than {TAIL} for a sibling)"
            )
        return case


class Stream:
    """Seeded tokens in a vocabulary of `vocab`: a stream per case, from which a sibling's donors part at the end."""

    def __init__(self, seed: int, vocab: int) -> None:
        self._seed, self._vocab = seed, vocab

    def tokens(self, case: Case, more: int) -> list[int]:
        """The resuming prompt of the case, continued by `more` tokens."""
        return self._draw((*self._key(case), 0), case.target_length + more)

    def donors(self, case: Case) -> Iterator[list[int]]:
        """The donor's prompts, one after another, without end."""
        shared, number = self.tokens(case, 0)[: case.shared], 0
        while True:
            number += 1
            own = self._draw((*self._key(case), number), case.length - case.shared)
            yield shared + own

    def _key(self, case: Case) -> tuple[int, ...]:
        return (self._seed, list(History).index(case.history), case.length)

    def _draw(self, key: tuple[int, ...], many: int) -> list[int]:
        return np.random.default_rng(key).integers(FIRST_TOKEN, self._vocab, many).tolist()


def plan(block: int, least: int, most: int) -> list[Case]:
    """Cases around the edges of a server that reuses multiples of `block` tokens.

    least: no shorter prompt was seen to be reused (1 if none was tried).
    most:  no prompt may be longer.
    """
    # Two blocks at least, and two kernel chunks: a state that stands wrong by one still has something to stand on.
    base = block * math.ceil(max(2 * block, 2 * TAIL, least) / block)
    wanted = [
        Case(History.RESEND, base + block // 2 + 1),
        Case(History.RESEND, base + 1),
        Case(History.RESEND, base),
        Case(History.TURN, base),
        Case(History.TURN, base + block // 2 + 1),
        Case(History.RESEND, base + block + block // 4 + 1),
        Case(History.SIBLING, base + TAIL),
    ]
    fitting = [case for case in wanted if case.length > TAIL and case.target_length + 4 * TAIL <= most]
    return list(dict.fromkeys(fitting))

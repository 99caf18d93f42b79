"""How often the recurrent state absorbed each token of a resumed prompt: 1 is right, 2 double-computed, 0 skipped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens [start, end), all absorbed `times` times."""

    start: int
    end: int
    times: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """The account of one resumed run over tokens [0, length).

    The state that the run starts from has absorbed [0, state_depth); the run itself feeds it [cached_tokens, length).
    """

    state_depth: int
    cached_tokens: int
    length: int

    def __post_init__(self) -> None:
        assert 0 <= self.state_depth <= self.length, "a state cannot hold tokens that the prompt does not have"
        assert 0 <= self.cached_tokens < self.length, "at least one token is computed, or there is no output"

    @property
    def double_computed(self) -> int:
        """Tokens that went through the linear layers twice."""
        return max(0, self.state_depth - self.cached_tokens)

    @property
    def skipped(self) -> int:
        """Tokens that the linear layers never saw."""
        return max(0, self.cached_tokens - self.state_depth)

    @property
    def stretches(self) -> list[Stretch]:
        """The prompt cut where the count changes, in order, without empty pieces."""
        low, high = sorted((self.state_depth, self.cached_tokens))
        if low == high:
            return [Stretch(0, self.length, 1)]
        middle = 2 if self.state_depth > self.cached_tokens else 0
        pieces = [Stretch(0, low, 1), Stretch(low, high, middle), Stretch(high, self.length, 1)]
        return [piece for piece in pieces if piece.start < piece.end]

    def times(self, token: int) -> int:
        """How often the token at this position was absorbed."""
        return (token < self.state_depth) + (token >= self.cached_tokens)

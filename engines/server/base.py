"""A running server as the black-box check sees it: what was reused, and log-probabilities behind a resume boundary.

The two servers that are supported answer the same three questions in different ways; each module explains its own.
Positions are token indices: the log-probability **at** position p is that of the prompt's own token p, given the tokens
before it. A request that resumes at `cached` tokens computes positions from cached + 1 on: the distribution over token
`cached` itself was computed by whoever filled the cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from .http import Http, ServerError


class NoCounts(ServerError):
    """The server keeps its number of cached tokens to itself, so nothing can be checked."""


@dataclass(frozen=True, slots=True)
class Point:
    """One log-probability, and how it came about.

    end:      the length of the prompt of the request that gave it.
    position: of which token of the stream.
    cached:   how many tokens the request reused, by the server's own count.
    logprob:  natural logarithm; NaN where the server gave no number.
    """

    end: int
    position: int
    cached: int
    logprob: float


class Server(ABC):
    """One server. Its methods may be called from several threads, and raise ServerError.

    space: a name that keeps cached prefixes apart. Requests of one space may reuse each other's prefixes, and those of
           different spaces never; the empty one is everybody's.
    """

    kind: str
    """`vllm` or `sglang`."""

    def __init__(self, http: Http, model: str, version: str, longest: int | None) -> None:
        """longest: the model's context in tokens, if the server tells it."""
        self.http, self.model, self.version, self.longest = http, model, version, longest

    @abstractmethod
    def ends(self, boundary: int, behind: Sequence[int], longest: int) -> list[int]:
        """The lengths of the prompts that must be asked to see the positions boundary + 1 .. longest.

        behind: distances behind the boundary at which to look, where every look costs a request.
        """

    @abstractmethod
    def cached(self, tokens: Sequence[int], space: str) -> int:
        """Serve a prompt, and say how many of its tokens were reused."""

    @abstractmethod
    def ask(self, tokens: Sequence[int], boundary: int, end: int, space: str) -> list[Point]:
        """Serve tokens[:end], of which up to `boundary` tokens may be reused; `tokens` holds more than `end`."""

    @abstractmethod
    def whole(self, tokens: Sequence[int], start: int, space: str) -> list[Point]:
        """All positions start + 1 .. len(tokens) - 1, from one request in a space that was not used before."""

    @abstractmethod
    def decode(self, tokens: Sequence[int], steps: int, space: str) -> tuple[list[int], list[float]]:
        """The tokens that follow by decoding, `steps` of them, and their log-probabilities."""

    @abstractmethod
    def reset(self) -> None:
        """Drop all cached prefixes."""

    def close(self) -> None:
        self.http.close()


def number(value: object, what: str) -> float:
    """A log-probability as a number; null is NaN, as JSON has no other way to say it. Raises ServerError."""
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ServerError(f"{what} is {value!r:.80}, not a number")
    return float(value)


def count(value: object, what: str, most: int) -> int:
    """A number of tokens between 0 and `most`. Raises ServerError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ServerError(f"{what} is {value!r:.80}, not a number of tokens from 0 to {most}")
    return value

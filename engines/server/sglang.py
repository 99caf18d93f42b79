"""SGLang over its `/generate`.

**Asking for prompt log-probabilities cuts the cache hit**: a match may be no longer than `logprob_start_len`, because
positions that were not computed have no log-probabilities. With `logprob_start_len` at the resume boundary itself
nothing is cut. So a plain request (`logprob_start_len` -1: only generated tokens, no cut) tells how far the cache
reaches, and a second one asks from there on: it resumes from the same node, and one request gives every position
behind the boundary. The boundary it really resumed at stands in `meta_info.cached_tokens` of that very request, and is
reported beside each position.

The distribution behind the prompt's last token, which is all there is when one token is left to compute, comes from
`token_ids_logprob` at the generated token.

Prefixes are kept apart by `extra_key`, which becomes part of the radix tree's key. `/flush_cache` drops everything,
while no request is running.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import Point, Server, count, number
from .http import ServerError


class SGLang(Server):
    """A running SGLang."""

    kind = "sglang"

    def ends(self, boundary: int, behind: Sequence[int], longest: int) -> list[int]:
        return sorted({min(boundary + 1, longest), longest})

    def cached(self, tokens: Sequence[int], space: str) -> int:
        return self._serve(tokens, space)[1]

    def ask(self, tokens: Sequence[int], boundary: int, end: int, space: str) -> list[Point]:
        meta, cached = self._serve(
            tokens[:end], space, logprob_start_len=boundary, return_logprob=True, token_ids_logprob=[tokens[end]]
        )
        points = self._inputs(meta, tokens[:end], boundary, cached)
        try:
            last = meta["output_token_ids_logprobs"][0][0][0]
        except (KeyError, IndexError, TypeError):
            raise ServerError("the answer has no output_token_ids_logprobs for the token that was asked for") from None
        return [*points, Point(end, end, cached, number(last, "an output logprob"))]

    def whole(self, tokens: Sequence[int], start: int, space: str) -> list[Point]:
        meta, cached = self._serve(tokens, space, logprob_start_len=start, return_logprob=True)
        return self._inputs(meta, tokens, start, cached)

    def decode(self, tokens: Sequence[int], steps: int, space: str) -> tuple[list[int], list[float]]:
        meta, _ = self._serve(tokens, space, steps, return_logprob=True)
        listed = meta.get("output_token_logprobs")
        if not isinstance(listed, list) or len(listed) != steps:
            raise ServerError(f"the answer has no output_token_logprobs for {steps} generated tokens")
        pairs = [_pair(each) for each in listed]
        return [token for _, token in pairs], [logprob for logprob, _ in pairs]

    def reset(self) -> None:
        self.http.text("POST", "/flush_cache")

    def _serve(self, tokens: Sequence[int], space: str, steps: int = 1, **more: Any) -> tuple[dict[str, Any], int]:
        """The answer's meta_info, and the number of cached tokens."""
        sampling = {"temperature": 0.0, "max_new_tokens": steps, "ignore_eos": True}
        body = {"input_ids": list(tokens), "sampling_params": sampling} | more | ({"extra_key": space} if space else {})
        answer = self.http.post("/generate", body)
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(meta, dict):
            raise ServerError("POST /generate: the answer has no meta_info")
        return meta, count(meta.get("cached_tokens"), "meta_info.cached_tokens", len(tokens))

    @staticmethod
    def _inputs(meta: dict[str, Any], tokens: Sequence[int], start: int, cached: int) -> list[Point]:
        """Positions start + 1 .. len(tokens) - 1. The list begins at `start`, which has no log-probability."""
        listed = meta.get("input_token_logprobs")
        if not isinstance(listed, list) or len(listed) != len(tokens) - start:
            raise ServerError(f"the answer has no input_token_logprobs from position {start} on")
        points = []
        for position, each in enumerate(listed[1:], start + 1):
            logprob, token = _pair(each)
            if token != tokens[position]:
                raise ServerError(
                    f"input_token_logprobs has token {token} at {position}, the prompt {tokens[position]}"
                )
            points.append(Point(len(tokens), position, cached, logprob))
        return points


def _pair(each: object) -> tuple[float, int]:
    """(log-probability, token) from SGLang's triple of both and a text."""
    if not isinstance(each, list) or len(each) < 2 or not isinstance(each[1], int):
        raise ServerError(f"a log-probability is {each!r:.80}, not [number, token, text]")
    return number(each[0], "a logprob"), each[1]

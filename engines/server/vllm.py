"""vLLM over its `/v1/completions`.

**Prompt log-probabilities of a resumed run cannot be had directly.** A request with `prompt_logprobs` does not read
the prefix cache at all (`skip_reading_prefix_cache` in its sampling parameters, which the HTTP interface does not let
one set), and if it did, positions before the boundary would be left unwritten. So the resumed run is observed one
position a request: a prompt that ends just before token p, with `allowed_token_ids` set to that token and one token
to generate. The token is then certain, and the log-probability reported for it is the model's own, taken before the
restriction is applied (`logprobs_mode` raw_logprobs, the default). It is what `prompt_logprobs` would have said. A
prompt of b + j tokens resumes at b, and computes only j tokens: damage behind the boundary is seen where it is.

`prompt_logprobs` itself makes the reference in another shape (`whole`): one cold request over all positions.

Cached tokens stand in `usage.prompt_tokens_details`, if the server was started with `--enable-prompt-tokens-details`.
Prefixes are kept apart by `cache_salt`. `/reset_prefix_cache` exists only in vLLM's development mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import NoCounts, Point, Server, count, number
from .http import Refused, ServerError

NO_COUNTS = (
    "the server does not say how many tokens it reused: start vLLM with --enable-prompt-tokens-details "
    "(and without --no-enable-prefix-caching)"
)


class Vllm(Server):
    """A running vLLM."""

    kind = "vllm"

    def ends(self, boundary: int, behind: Sequence[int], longest: int) -> list[int]:
        return sorted({*(boundary + each for each in behind if boundary + each < longest), longest})

    def cached(self, tokens: Sequence[int], space: str) -> int:
        return self._serve(tokens, space)[1]

    def ask(self, tokens: Sequence[int], boundary: int, end: int, space: str) -> list[Point]:
        choice, cached = self._serve(tokens[:end], space, logprobs=0, allowed_token_ids=[tokens[end]])
        return [Point(end, end, cached, self._generated(choice, 1)[0])]

    def whole(self, tokens: Sequence[int], start: int, space: str) -> list[Point]:
        choice, cached = self._serve(tokens, space, prompt_logprobs=0)
        listed, points = choice.get("prompt_logprobs"), []
        if not isinstance(listed, list) or len(listed) != len(tokens):
            raise ServerError("the answer has no prompt_logprobs for every token of the prompt")
        for position in range(start + 1, len(tokens)):
            own = listed[position].get(str(tokens[position])) if isinstance(listed[position], dict) else None
            if not isinstance(own, dict):
                raise ServerError(f"prompt_logprobs lacks the prompt's own token at position {position}")
            points.append(Point(len(tokens), position, cached, number(own.get("logprob"), "a prompt logprob")))
        return points

    def decode(self, tokens: Sequence[int], steps: int, space: str) -> tuple[list[int], list[float]]:
        choice, _ = self._serve(tokens, space, steps, logprobs=0, return_token_ids=True)
        ids = choice.get("token_ids")
        if not isinstance(ids, list) or len(ids) != steps or not all(isinstance(each, int) for each in ids):
            raise ServerError(f"the answer has no token_ids for {steps} generated tokens")
        return ids, self._generated(choice, steps)

    def reset(self) -> None:
        try:
            self.http.text("POST", "/reset_prefix_cache")
        except Refused as error:
            if error.status != 404:
                raise
            raise ServerError(
                "the server has no /reset_prefix_cache: start vLLM with VLLM_SERVER_DEV_MODE=1, or use --cold salt"
            ) from None

    def _serve(self, tokens: Sequence[int], space: str, steps: int = 1, **more: Any) -> tuple[dict[str, Any], int]:
        """The answer's only choice, and the number of cached tokens."""
        body = {
            "model": self.model,
            "prompt": list(tokens),
            "max_tokens": steps,
            "temperature": 0.0,
            "ignore_eos": True,
        }
        # Tokens as numbers: a server may run without a tokenizer.
        body |= {"return_tokens_as_token_ids": True} | more | ({"cache_salt": space} if space else {})
        answer = self.http.post("/v1/completions", body)
        try:
            choice, usage = answer["choices"][0], answer["usage"]
            details = usage.get("prompt_tokens_details")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ServerError("POST /v1/completions: the answer has no choices and usage") from None
        if not isinstance(choice, dict):
            raise ServerError("POST /v1/completions: the answer's choice is not an object")
        if not isinstance(details, dict):
            raise NoCounts(NO_COUNTS)
        return choice, count(details.get("cached_tokens") or 0, "cached_tokens", len(tokens))

    @staticmethod
    def _generated(choice: dict[str, Any], steps: int) -> list[float]:
        listed = (choice.get("logprobs") or {}).get("token_logprobs")
        if not isinstance(listed, list) or len(listed) != steps:
            raise ServerError(f"the answer has no token_logprobs for {steps} generated tokens")
        return [number(each, "a token logprob") for each in listed]

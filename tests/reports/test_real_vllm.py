"""The command with vLLM's own engine core, as the README shows it: `pytest -m vllm` installs it on first use."""

from __future__ import annotations

import pytest

from .conftest import Call

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm")]

VLLM = ("--engine", "vllm==0.32.0", "--model", "qwen3-next")


@pytest.mark.parametrize("payload", ["tag", "tensors"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right(call: Call, payload: str, dtype: str) -> None:
    prompts = ("--prompt", "1024+541", "--prompt", "500n65", "--prompt", "2200b2190n100")
    done = call(*VLLM, "--page", "64", *prompts, "--payload", payload, "--dtype", dtype)
    assert [(cell["verdict"]["kind"], cell["cached_tokens"]) for cell in done.cells] == [
        ("ok", 1536),
        ("ok", 448),
        ("ok", 2176),
    ]
    assert (done.status, done.document["under_test"]["versions"]["vLLM: vllm"]) == (0, "0.32.0")


def test_a_state_in_tokens_of_ones_own(call: Call) -> None:
    """vLLM 45238."""
    case = ("--chunk", "16", "--page", "528", "--prompt", "1584+616b1500n700", "--prompt", "1584+616b2150n700")
    done = call(*VLLM, *case)
    assert [cell["verdict"]["text"] for cell in done.cells] == ["reuse lost 1056 [0, 1056)", "ok"]
    assert done.status == 1


def test_a_block_that_was_raised(call: Call) -> None:
    case = ("--page", "1152", "--prompt", "2048+452", "--model", "qwen3-next")
    wrong = call(*case, "--engine", "vllm==0.32.0 --raised")
    assert [cell["verdict"]["text"] for cell in wrong.cells] == ["skipped 256 [2048, 2304)"]
    assert wrong.cells[0]["located"]["depth"] == 2048
    assert "--engine 'vllm==0.32.0 --raised'" in wrong.cells[0]["reproduce"]
    right = call(*case, "--engine", "vllm==0.32.0")
    assert [cell["verdict"]["text"] for cell in right.cells] == ["ok"]


def test_the_driver_keeps_the_protocol(call: Call) -> None:
    done = call("conform", "--engine", "vllm==0.32.0", json_too=False)
    assert (done.status, done.out.splitlines()[-1]) == (0, "The driver keeps all 18 rules.")


def test_an_option_that_there_is_not(call: Call) -> None:
    done = call(*VLLM[2:], "--prompt", "500", "--engine", "vllm==0.32.0 --rised")
    assert done.status == 2
    assert "unrecognized arguments: --rised" in done.err

"""The command with real engines, as the README shows it: `pytest -m sglang` installs what it needs on first use."""

from __future__ import annotations

import shlex
import sys

import pytest
from mamba_replay_check.engines.environments import ensure

from .conftest import Call

pytestmark = [pytest.mark.sglang, pytest.mark.xdist_group("sglang")]

CASE = ("--dcp", "8", "--page", "64")


@pytest.mark.parametrize("payload", ["tag", "tensors"])
def test_before_34808(call: Call, payload: str) -> None:
    """With tensors the state went through SGLang's own pool, in its own number formats."""
    done = call(*CASE, "--engine", "sglang==0.5.17", "--payload", payload)
    assert done.status == 1, done.err
    cell = done.cells[0]
    assert cell["verdict"]["text"] == "double-computed 448 [19968, 20416)"
    assert (cell["claimed_depth"], cell["state_depth"], cell["cached_tokens"]) == (20416, 20416, 19968)
    assert cell["located"]["depth"] == 20416
    assert done.document["under_test"]["versions"]["SGLang: sglang"] == "0.5.17"
    assert "--engine sglang==0.5.17" in cell["reproduce"]


def test_since_34808(call: Call) -> None:
    done = call(*CASE, "--engine", "sglang==0.5.18")
    assert done.status == 0, done.out
    assert {cell["verdict"]["kind"] for cell in done.cells} == {"ok", "vacuous"}
    assert done.cells[0]["cached_tokens"] == 19968


def test_the_model_is_the_release(call: Call) -> None:
    """Cell by cell, all that is said of it."""
    case = ("--page", "64,128", "--dcp", "1,8", "--prompt", "64+541", "--prompt", "1900d300n64", "--prompt", "1023n65")
    real, model = (call(*case, "--engine", name) for name in ("sglang==0.5.17", "model:sglang-0.5.17"))
    for cell in (*real.cells, *model.cells):
        del cell["reproduce"]
    assert real.cells == model.cells


@pytest.mark.parametrize("release", ["0.5.17", "0.5.18"])
def test_the_driver_keeps_the_protocol(call: Call, release: str) -> None:
    done = call("conform", "--engine", f"sglang=={release}", json_too=False)
    assert (done.status, done.out.splitlines()[-1]) == (0, "The driver keeps all 18 rules.")


def test_a_python_that_has_the_engine(call: Call) -> None:
    python = str(ensure("sglang==0.5.18", lambda step, line: None))
    done = call(*CASE, "--prompt", "600n64", "--engine", "sglang", "--engine-python", python)
    assert (done.status, done.cells[0]["verdict"]["kind"]) == (0, "ok"), done.err
    again = call(*shlex.split(done.cells[0]["reproduce"])[1:])
    assert again.cells == done.cells


def test_a_python_that_has_it_not(call: Call) -> None:
    done = call(*CASE, "--engine", "sglang", "--engine-python", sys.executable)
    assert done.status == 2
    assert "No module named 'sglang" in done.err

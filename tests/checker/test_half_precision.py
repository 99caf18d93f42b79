"""Half-precision models: their rounding is thousands of times coarser than float32's, and is still no fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.checker.verdict import Kind
from mamba_replay_check.engines.base import Match
from mamba_replay_check.kernels.mixers import RecurrentState
from mamba_replay_check.kernels.stack import StackState
from mamba_replay_check.scenarios.prompt import Prompt

from .conftest import GEOMETRY, modelled, result_of
from .test_planted_faults import tampered

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
MODELS = pytest.mark.parametrize("model", ["qwen3-next", "kimi-linear"])


@HALVES
@MODELS
def test_clean_twin(model: str, dtype: torch.dtype) -> None:
    found = result_of(modelled(), model=model, dtype=dtype)
    assert found.verdict.kind is Kind.OK
    assert found.location.distance == 0
    assert found.diff.noise.floor > 1e-3, "else this would be float32, and the test would show nothing"


@MODELS
def test_one_chunk_double_computed(model: str) -> None:
    geometry = Geometry(64, 64, 2, 256)
    found = result_of(modelled("0.5.17"), Prompt((512, 320), next_turn=70), geometry, model=model, dtype=torch.bfloat16)
    assert str(found.verdict) == "double-computed 64 [768, 832)"
    assert found.location.depth == 832
    assert found.diff.first_wrong == 768


@HALVES
def test_the_rounding_of_an_honest_donor_is_no_fault(dtype: torch.dtype) -> None:
    """Off the kernel chunk, with the donor's passes really made: each rounds the states that it hands on."""
    prompt, geometry = Prompt((100, 541, 33), next_turn=70), Geometry(64, 1, 1, 64)
    found = result_of(modelled(), prompt, geometry, dtype=dtype, share=False)
    assert found.verdict.kind is Kind.OK
    assert found.location.depth == 612
    assert found.location.distance > 1e-3


@pytest.mark.parametrize("model", ["qwen3-next", "kimi-linear"])
def test_states_kept_in_the_type_of_the_model_are_no_fault(model: str) -> None:
    """A bfloat16 model's intermediate states are bfloat16 already, so that keeping them so loses nothing."""

    def answer(match: Match) -> Match:
        read = match.payload.read

        def rounded() -> StackState:
            return {i: RecurrentState(s.recurrent.bfloat16().float(), s.window) for i, s in read().items()}

        return replace(match, payload=replace(match.payload, read=rounded))

    found = result_of(tampered(answer=answer), model=model, dtype=torch.bfloat16)
    assert found.verdict.kind is Kind.OK
    assert result_of(tampered(answer=answer), model=model).verdict.kind is Kind.PRECISION, "in float32 it is one"


@pytest.mark.parametrize("model, dtype", [("kimi-linear", torch.float32), ("qwen3-next", torch.bfloat16)])
def test_one_token_left_to_compute(model: str, dtype: torch.dtype) -> None:
    found = result_of(modelled(), Prompt((512,), next_turn=1), GEOMETRY, model=model, dtype=dtype)
    assert found.verdict.kind is Kind.OK
    assert (found.replay.cached_tokens, found.diff.errors.shape[1]) == (512, 1)


def test_a_state_that_holds_the_whole_prompt_already() -> None:
    """0.5.17 hands back the state of all 576 tokens for the node at 512: every token that is left went in before."""
    found = result_of(modelled("0.5.17"), Prompt((576,)), Geometry(64, 64, 8, 256))
    assert str(found.verdict) == "double-computed 64 [512, 576)"
    assert [(s.start, s.end, s.times) for s in found.ledger.stretches] == [(0, 512, 1), (512, 576, 2)]

"""Prompts that repeat themselves: states settle, come back to the same bytes, and must not fool the locator."""

from __future__ import annotations

import pytest
import torch
from mamba_replay_check.checker.locate import locate
from mamba_replay_check.checker.trajectory import Trajectory
from mamba_replay_check.checker.verdict import Kind
from mamba_replay_check.scenarios.prompt import Prompt

from .conftest import GEOMETRY, modelled, result_of, stack

LONG = Prompt((2048, 500), next_turn=70)
SHORT = Prompt((512, 400), next_turn=70)

ONE, TWO, CHUNK = [7], [7, 9], list(range(64))


@pytest.mark.parametrize(
    "model, loop, prompt",
    [
        ("qwen3-next", ONE, LONG),
        ("qwen3-next", TWO, LONG),
        ("qwen3-next", TWO, SHORT),
        ("qwen3-next", CHUNK, LONG),
        ("kimi-linear", ONE, LONG),
    ],
)
def test_a_right_state_is_right(model: str, loop: list[int], prompt: Prompt) -> None:
    found = result_of(modelled(), prompt, model=model, tokens=loop * 3000)
    assert found.verdict.kind is Kind.OK
    assert found.location.depth == found.replay.cached_tokens
    assert found.location.distance == 0


@pytest.mark.parametrize("model, loop", [("qwen3-next", ONE), ("qwen3-next", TWO), ("kimi-linear", TWO)])
def test_a_wrong_state_is_never_ok(model: str, loop: list[int]) -> None:
    """Where the states have settled there may be nothing to see, and the engine's books are wrong all the same."""
    found = result_of(modelled("0.5.17"), LONG, GEOMETRY, model=model, tokens=loop * 3000)
    assert found.verdict.kind in (Kind.DOUBLE_COMPUTED, Kind.DISAGREEMENT)
    assert found.location.depth == found.replay.state_depth == 2496


def test_states_that_have_settled_are_found_at_all_their_depths() -> None:
    """Settled here by hand: whether sums settle to the last bit is up to the processor."""
    trajectory = Trajectory("seeded", [7, 9] * 600, 1200, stack())
    with torch.inference_mode():  # as the pass that made them
        for trace in trajectory.cold.recurrent.values():
            trace.chunks[8:] = trace.chunks[8].clone()
    found = locate(trajectory.state(1024), trajectory)
    assert found.depths == tuple(range(512, 1200, 64))
    assert found.distance == 0
    assert found.meant(1024).depth == 1024


def test_a_wrong_state_before_they_settle_is_told_to_the_token() -> None:
    found = result_of(modelled("0.5.17"), SHORT, tokens=[7] * 3000)
    assert str(found.verdict) == "double-computed 128 [768, 896)"
    assert found.location.depths == (896,)

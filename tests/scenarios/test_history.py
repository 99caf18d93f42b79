"""The donor's passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mamba_replay_check.scenarios.history import Decode, Extend, steps
from mamba_replay_check.scenarios.prompt import Prompt

prompts = st.builds(
    Prompt, st.lists(st.integers(1, 300), min_size=1, max_size=5).map(tuple), st.integers(0, 30), st.integers(0, 30)
)


@given(prompts, st.data())
def test_every_token_is_absorbed_once_and_in_order(prompt: Prompt, data: st.DataObject) -> None:
    cached = data.draw(st.integers(0, prompt.prompt_length - 1))
    reached = cached
    for step in steps(prompt, cached):
        match step:
            case Extend(start, end):
                assert start == reached
                reached = end
            case Decode(position):
                assert position == reached >= prompt.prompt_length
                reached += 1
    assert reached == prompt.donor_length


@given(prompts)
def test_prefill_is_cut_as_the_prompt_says(prompt: Prompt) -> None:
    passes = [step for step in steps(prompt) if isinstance(step, Extend)]
    assert tuple(step.end - step.start for step in passes) == prompt.prefill


@pytest.mark.parametrize(
    "cached, first",
    [(0, Extend(0, 100)), (99, Extend(99, 100)), (100, Extend(100, 641)), (400, Extend(400, 641))],
)
def test_what_is_cached_is_not_computed(cached: int, first: Extend) -> None:
    assert next(steps(Prompt((100, 541)), cached)) == first


def test_decode_steps_follow_the_prompt() -> None:
    assert list(steps(Prompt((5,), decode=2, next_turn=9))) == [Extend(0, 5), Decode(5), Decode(6)]

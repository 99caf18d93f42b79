"""Prompts by their sizes: what is written is what is read, and what cannot be read is refused in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mamba_replay_check.scenarios.prompt import Prompt, PromptError

sizes = st.integers(1, 10**12)
prompts = st.builds(
    Prompt,
    prefill=st.lists(sizes, min_size=1, max_size=5).map(tuple),
    decode=st.integers(0, 10**6),
    next_turn=st.integers(0, 10**6),
)
parting = prompts.filter(lambda prompt: prompt.next_turn and prompt.donor_length > 1).flatmap(
    lambda prompt: st.integers(1, prompt.donor_length - 1).map(lambda branch: replace(prompt, branch=branch))
)


@given(prompts | parting)
def test_what_str_writes_parse_reads(prompt: Prompt) -> None:
    assert Prompt.parse(str(prompt)) == prompt
    assert Prompt.parse(f"  {prompt}\n") == prompt


@given(prompts)
def test_lengths_add_up(prompt: Prompt) -> None:
    assert prompt.prompt_length == sum(prompt.prefill)
    assert prompt.donor_length - prompt.prompt_length == prompt.decode
    assert prompt.resume_length - prompt.donor_length == prompt.next_turn


@given(parting)
def test_prompts_that_part(prompt: Prompt) -> None:
    assert prompt.shared_length == prompt.branch < prompt.donor_length
    assert prompt.resume_length - prompt.branch == prompt.next_turn
    assert prompt.longest == max(prompt.donor_length, prompt.resume_length)


@pytest.mark.parametrize(
    "text, prompt",
    [
        ("16384+4066", Prompt((16384, 4066))),
        ("500d300", Prompt((500,), decode=300)),
        ("512n65", Prompt((512,), next_turn=65)),
        ("100+541+33d80n64", Prompt((100, 541, 33), 80, 64)),
        ("2200d3b1600n600", Prompt((2200,), 3, 600, 1600)),
    ],
)
def test_forms(text: str, prompt: Prompt) -> None:
    assert Prompt.parse(text) == prompt
    assert str(prompt) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "0",
        "5+",
        "+5",
        "5++5",
        "0+5",
        "5+0",
        "5d0",
        "5b0n1",
        "5n1b3",
        "5n0",
        "5n3d3",
        "5d",
        "-5",
        "5-5",
        "5.0",
        "1e3",
        "5 + 5",
        "x",
    ],
)
def test_what_is_no_prompt(text: str) -> None:
    with pytest.raises(PromptError, match="cannot be read: give the prefill chunks"):
        Prompt.parse(text)


@pytest.mark.parametrize("text", ["\u0665", "512+\u0663", "5d\uff13"])
def test_only_plain_digits_are_sizes(text: str) -> None:
    with pytest.raises(PromptError):
        Prompt.parse(text)


@pytest.mark.parametrize("digits", [16, 400, 5000])
def test_sizes_beyond_any_machine(digits: int) -> None:
    with pytest.raises(PromptError, match="more than 15 digits") as error:
        Prompt.parse("9" * digits)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("fields", [((),), ((0,),), ((5, -1),), ((5,), -1), ((5,), 0, -1)])
def test_no_prompt_without_tokens_is_ever_made(fields: tuple) -> None:
    with pytest.raises(PromptError):
        Prompt(*fields)


@pytest.mark.parametrize("text", ["5b3", "5b5n1", "5b6n1"])
def test_where_prompts_cannot_part(text: str) -> None:
    with pytest.raises(PromptError, match="has to lie within the 5 tokens of the donor, and n has to say how many"):
        Prompt.parse(text)

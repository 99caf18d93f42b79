"""Token streams and prompt files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mamba_replay_check.scenarios.prompt import Prompt
from mamba_replay_check.scenarios.tokens import FilePrompt, PromptFileError, read_prompts, seeded_stream
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

VOCAB = 1000

LONG = "9" * 4300
"""The longest number that Python reads; the sum of two can no longer be written."""


@pytest.fixture
def write(tmp_path: Path):
    """write(text or bytes) -> the path of a prompts file that holds it."""

    def write_it(content: str | bytes) -> Path:
        path = tmp_path / "prompts.jsonl"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_it


def read(path: Path, tokenizer: Path | None = None) -> list[FilePrompt]:
    return read_prompts(path, tokenizer, VOCAB)


def words(tmp_path: Path, vocab: dict[str, int], unknown: str | None) -> Path:
    """A tokenizer file that knows whole words."""
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=unknown) if unknown else WordLevel(vocab, unk_token=""))
    tokenizer.pre_tokenizer = Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


# ---- the seeded stream ----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**70), st.integers(0, 9000), st.integers(0, 9000), st.sampled_from([2, 100, 163_840]))
def test_a_longer_stream_begins_with_the_shorter(seed: int, a: int, b: int, vocab: int) -> None:
    short, long = (seeded_stream(seed, length, vocab) for length in sorted((a, b)))
    assert len(short) == min(a, b) and len(long) == max(a, b)
    assert np.array_equal(long[: len(short)], short)
    assert short.dtype == np.int64
    assert ((long >= 0) & (long < vocab)).all()


def test_seeds_give_different_streams() -> None:
    assert not np.array_equal(seeded_stream(0, 100, VOCAB), seeded_stream(1, 100, VOCAB))


def test_the_stream_of_a_seed_stays_what_it_is() -> None:
    """A finding's reproduce line is worth nothing if the tokens behind it change."""
    assert seeded_stream(0, 4, 163_840).tolist() == [139_366, 104_359, 83_744, 44_201]


# ---- prompt files: what is read -------------------------------------------------------------------------------------


def test_lines_become_prompts(write) -> None:
    path = write(
        '{"tokens": [1, 2, 3]}\n\n  \n{"text": "héé"}\n'
        '{"tokens": [5,6,7,8,9], "prefill": [1, 2], "decode": 1, "next_turn": 1}'
    )
    first, second, third = read(path)
    assert (first.name, list(first.tokens), first.prompt) == (f"{path}:1", [1, 2, 3], Prompt((3,)))
    assert (second.name, list(second.tokens)) == (f"{path}:4", list("héé".encode()))
    assert (third.name, third.prompt) == (f"{path}:5", Prompt((1, 2), 1, 1))


def test_rest_is_one_prefill_chunk(write) -> None:
    (only,) = read(write('{"tokens": [1, 2, 3, 4, 5], "decode": 1, "next_turn": 2}'))
    assert only.prompt == Prompt((2,), 1, 2)


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85", "\u00a0"])
def test_a_line_ends_at_a_newline_only(write, inside: str) -> None:
    text = f"a{inside}b"
    (only,) = read(write(json.dumps({"text": text}, ensure_ascii=False) + "\n"))
    assert bytes(only.tokens).decode() == text


def test_windows_files(write) -> None:
    assert [p.prompt.prompt_length for p in read(write(b'\xef\xbb\xbf{"tokens": [1]}\r\n{"tokens": [1, 2]}\r\n'))] == [
        1,
        2,
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4))
def test_any_text_comes_through(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("any") / "p.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}) for t in texts), encoding="utf-8")
    assert [bytes(p.tokens).decode() for p in read(path)] == texts


def test_text_through_a_tokenizer(write, tmp_path: Path) -> None:
    tokenizer = words(tmp_path, {"the": 3, "state": 5, "?": 0}, "?")
    (only,) = read(write('{"text": "the state forgets"}'), tokenizer)
    assert list(only.tokens) == [3, 5, 0]


# ---- prompt files: what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, said",
    [
        ('{"tokens": [1,', "is not JSON"),
        ("tokens: 1", "is not JSON"),
        ('{"tokens": [1' + "0" * 5000 + "]}", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1, 2]", "is not an object"),
        ('"text"', "is not an object"),
        ('{"token": [1]}', "unknown key 'token': did you mean 'tokens'?"),
        ('{"tokens": [1], "Prefil": [1]}', "did you mean 'prefill'?"),
        ('{"zzz": 1}', "unknown key 'zzz': known keys are tokens, text"),
        ('{"tokens": [1], "text": "a"}', 'give either "tokens" or "text"'),
        ('{"decode": 1}', 'give either "tokens" or "text"'),
        ('{"tokens": []}', "is empty"),
        ('{"text": ""}', "is empty"),
        ('{"tokens": 5}', '"tokens" must hold whole numbers of at least 0'),
        ('{"tokens": "1 2"}', '"tokens" must hold whole numbers'),
        ('{"tokens": [1, true]}', '"tokens" must hold whole numbers'),
        ('{"tokens": [1, 2.0]}', '"tokens" must hold whole numbers'),
        ('{"tokens": [1, NaN]}', '"tokens" must hold whole numbers'),
        ('{"tokens": [1, -1]}', '"tokens" must hold whole numbers'),
        ('{"tokens": [1, null]}', '"tokens" must hold whole numbers'),
        ('{"tokens": [[1]]}', '"tokens" must hold whole numbers'),
        ('{"tokens": [1, 1000]}', "has token 1000, and the model's vocabulary ends at 999"),
        ('{"text": 5}', '"text" must be a string'),
        ('{"text": null}', '"text" must be a string'),
        (r'{"text": "\ud800"}', "half of a surrogate pair"),
        ('{"tokens": [1, 2], "prefill": [1]}', "must add up to its 2 tokens"),
        ('{"tokens": [1, 2], "prefill": [0, 2]}', '"prefill" must hold whole numbers of at least 1'),
        ('{"tokens": [1, 2], "prefill": 2}', '"prefill" must hold whole numbers'),
        ('{"tokens": [1, 2], "decode": -1}', '"decode" must hold whole numbers of at least 0'),
        ('{"tokens": [1, 2], "decode": true}', '"decode" must hold whole numbers'),
        ('{"tokens": [1, 2], "next_turn": "1"}', '"next_turn" must hold whole numbers'),
        ('{"tokens": [1, 2], "decode": 2}', "decode 2 and next_turn 0 leave none of its 2 tokens for the prefill"),
        ('{"tokens": [1, 2], "decode": 1, "next_turn": 8}', "decode 1 and next_turn 8 leave none of its 2 tokens"),
        ('{"tokens": [1, 2], "prefill": [], "decode": 2}', "leave none of its 2 tokens for the prefill"),
        ('{"tokens": [1, 2], "prefill": []}', "prefill 0, decode 0 and next_turn 0 must add up to its 2 tokens"),
        (f'{{"tokens": [1, {LONG}]}}', '"tokens" must hold whole numbers of at least 0, of at most 15 digits'),
        (f'{{"tokens": [1, 2], "prefill": [{LONG}, {LONG}]}}', "of at most 15 digits"),
        (f'{{"tokens": [1, 2], "decode": {LONG}, "next_turn": {LONG}}}', "of at most 15 digits"),
        ('{"tokens": [1, 2], "decode": 1' + "0" * 15 + "}", "of at most 15 digits"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(write, line: str, said: str) -> None:
    path = write(f'{{"tokens": [1]}}\n\n{line}\n')
    with pytest.raises(PromptFileError) as error:
        read(path)
    message = str(error.value)
    assert f"{path}:3" in message
    assert said in message
    assert "\n" not in message and len(message) < 500


def test_broken_json_is_said_with_one_line_number(write) -> None:
    """JSON counts lines from 1 within what it is given, which is one line of the file."""
    path = write('{"tokens": [1]}\n\n{"tokens": [1,\n')
    with pytest.raises(PromptFileError) as error:
        read(path)
    assert str(error.value) == f"{path}:3 is not JSON (Expecting value at column 15): one object a line"


@pytest.mark.parametrize("content", ["", "\n\n  \n", b"\xef\xbb\xbf"])
def test_a_file_without_prompts(write, content: str | bytes) -> None:
    with pytest.raises(PromptFileError, match="has no prompts"):
        read(write(content))


def test_not_utf8(write) -> None:
    with pytest.raises(PromptFileError, match=r"not UTF-8 text \(byte 10\)"):
        read(write(b'{"text": "\xff\xfe"}'))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match="No such file"):
        read(tmp_path / "none.jsonl")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match="directory"):
        read(tmp_path)


def test_no_tokenizer_file(write, tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(PromptFileError, match="no tokenizer file"):
            read(write('{"text": "a"}'), path)


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"model": {"type": "Nonsense"}}', b"\xff\xfe"])
def test_no_tokenizer_in_the_file(write, tmp_path: Path, content: bytes) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(content)
    with pytest.raises(PromptFileError, match="is not a tokenizer file"):
        read(write('{"text": "a"}'), tokenizer)


def test_a_tokenizer_of_another_model(write, tmp_path: Path) -> None:
    tokenizer = words(tmp_path, {"the": 3, "state": 1000, "?": 0}, "?")
    with pytest.raises(PromptFileError, match=":1 has token 1000, and the model's vocabulary ends at 999"):
        read(write('{"text": "the state"}'), tokenizer)


def test_a_tokenizer_that_cannot(write, tmp_path: Path) -> None:
    """It has no token for words that it does not know, and raises."""
    tokenizer = words(tmp_path, {"the": 3}, None)
    with pytest.raises(PromptFileError, match=r":2: the tokenizer .* cannot encode its text"):
        read(write('{"text": "the"}\n{"text": "state"}'), tokenizer)


def test_half_a_surrogate_pair_through_a_tokenizer(write, tmp_path: Path) -> None:
    tokenizer = words(tmp_path, {"the": 3, "?": 0}, "?")
    with pytest.raises(PromptFileError, match="half of a surrogate pair"):
        read(write(r'{"text": "\udc00"}'), tokenizer)


# ---- what it costs to be told of a mistake --------------------------------------------------------------------------


def test_prompt_files_are_read_without_numpy() -> None:
    """The command line is checked before anything heavy is loaded."""
    code = "import sys, mamba_replay_check.scenarios.tokens; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Where tokens come from: a seeded stream, or a file of prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .prompt import MOST_DIGITS, Prompt

if TYPE_CHECKING:  # a mistake in a prompts file is answered without the time that numpy takes to load
    import numpy as np

Encode = Callable[[str], list[int]]

_KEYS = ("tokens", "text", "prefill", "decode", "next_turn")


class PromptFileError(ValueError):
    """A prompts file that cannot be used; the message names file and line, and says what is accepted."""


@dataclass(frozen=True, slots=True, eq=False)
class FilePrompt:
    """A prompt from a file: its tokens, and how they are cut. `name` is FILE:LINE."""

    name: str
    tokens: Sequence[int]
    prompt: Prompt


def seeded_stream(seed: int, length: int, vocab: int) -> np.ndarray:
    """[length] int64 token ids below `vocab`. A longer stream of the same seed begins with the shorter one."""
    import numpy as np

    # Drawn in blocks of fixed size: numpy may use up its bits differently for arrays of different lengths.
    block = 4096
    generator = np.random.Generator(np.random.PCG64(seed))
    blocks = [generator.integers(0, vocab, block) for _ in range(-(-length // block))]
    return np.concatenate(blocks)[:length] if blocks else np.empty(0, np.int64)


def parted(tokens: Sequence[int], branch: int) -> list[int]:
    """The same tokens up to `branch`, and others behind it: each id's neighbour, so that they differ from the first on.

    Below an even vocabulary the neighbour is one of its ids.
    """
    return [*tokens[:branch], *(token ^ 1 for token in tokens[branch:])]


def read_prompts(path: Path, tokenizer: Path | None, vocab: int) -> list[FilePrompt]:
    """Read JSON lines, each `{"tokens": [...]}` or `{"text": "..."}`. Blank lines are skipped.

    Text goes through the tokenizer file of the `tokenizers` library, or is taken as UTF-8 bytes. A line may say how its
    tokens are replayed: `prefill` (chunk sizes), `decode` and `next_turn`, which must add up to all tokens; by default
    they are one prefill chunk. Raises PromptFileError.
    """
    try:
        # Lines end where a newline says so: JSON strings may hold the other characters that str.splitlines cuts at.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8 JSON lines") from None
    except OSError as error:
        raise PromptFileError(f"cannot read {path}: {error.strerror}; give a file of JSON lines") from None
    encode = _tokenizer(tokenizer)
    prompts = [
        _read_line(f"{path}:{number}", line, encode, vocab) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not prompts:
        raise PromptFileError(f'{path} has no prompts: give at least one line such as {{"text": "..."}}')
    return prompts


def _tokenizer(path: Path | None) -> Encode:
    if path is None:
        return lambda text: list(text.encode())
    if not path.is_file():
        raise PromptFileError(f"no tokenizer file {path}: give the tokenizer.json of a model, or leave --tokenizer out")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise PromptFileError(f"{path} is not a tokenizer file ({error}): give a model's tokenizer.json") from None

    def encode(text: str) -> list[int]:
        text.encode()  # half of a surrogate pair is answered alike, whatever the tokenizer
        try:
            return tokenizer.encode(text).ids
        except Exception as error:
            raise PromptFileError(f"the tokenizer {path} cannot encode its text ({error})") from None

    return encode


def _read_line(name: str, line: str, encode: Encode, vocab: int) -> FilePrompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:  # its own words name a second line number, which is always 1
        raise PromptFileError(f"{name} is not JSON ({error.msg} at column {error.colno}): one object a line") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are a bare ValueError
        raise PromptFileError(f"{name} is not JSON ({error}): one object a line") from None
    if not isinstance(entry, dict):
        raise PromptFileError(f'{name} is not an object: write {{"tokens": [...]}} or {{"text": "..."}}')
    for key in entry:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise PromptFileError(f"{name} has an unknown key {key!r}: {hint}known keys are {', '.join(_KEYS)}")
    if ("tokens" in entry) == ("text" in entry):
        raise PromptFileError(f'{name}: give either "tokens" or "text", one of the two')
    tokens = _tokens(name, entry, encode)
    if not tokens:
        raise PromptFileError(f"{name} is empty: a prompt has at least one token")
    if max(tokens) >= vocab:
        raise PromptFileError(f"{name} has token {max(tokens)}, and the model's vocabulary ends at {vocab - 1}")
    return FilePrompt(name, tokens, _prompt(name, entry, len(tokens)))


def _tokens(name: str, entry: dict[str, Any], encode: Encode) -> list[int]:
    if "text" in entry:
        if not isinstance(entry["text"], str):
            raise PromptFileError(f'{name}: "text" must be a string')
        try:
            return encode(entry["text"])
        except UnicodeEncodeError:
            raise PromptFileError(f'{name}: "text" holds half of a surrogate pair, which is no character') from None
        except PromptFileError as error:
            raise PromptFileError(f"{name}: {error}") from None
    return _sizes(name, "tokens", entry["tokens"], least=0)


def _prompt(name: str, entry: dict[str, Any], length: int) -> Prompt:
    decode, next_turn = (_sizes(name, key, [entry.get(key, 0)], least=0)[0] for key in ("decode", "next_turn"))
    rest = length - decode - next_turn
    if rest < 1:
        raise PromptFileError(
            f"{name}: decode {decode} and next_turn {next_turn} leave none of its {length} tokens for the prefill: "
            "together they must be fewer"
        )
    prefill = _sizes(name, "prefill", entry["prefill"], least=1) if "prefill" in entry else [rest]
    if sum(prefill) != rest:
        raise PromptFileError(
            f"{name}: prefill {sum(prefill)}, decode {decode} and next_turn {next_turn} "
            f"must add up to its {length} tokens"
        )
    return Prompt(tuple(prefill), decode, next_turn)


def _sizes(name: str, key: str, values: object, least: int) -> list[int]:
    most = 10**MOST_DIGITS
    if not isinstance(values, list) or any(type(value) is not int or not least <= value < most for value in values):
        raise PromptFileError(
            f'{name}: "{key}" must hold whole numbers of at least {least}, of at most {MOST_DIGITS} digits'
        )
    return values

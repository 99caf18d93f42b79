"""From what the user asked for to what will be run: every choice checked before any time is spent.

Nothing heavy is imported here, so that a mistake is answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ..checker.cells import Cell
from ..checker.geometry import Geometry, GeometryError
from ..checker.grid import GridError, grid, parse_sizes
from ..engines.catalog import NEWEST, EngineError, UnknownEngine, find
from ..kernels.footprint import available_bytes, cold_run_bytes
from ..kernels.presets import PRESETS, Preset
from ..scenarios.edges import default_prompts
from ..scenarios.prompt import Prompt, PromptError
from ..scenarios.tokens import PromptFileError, read_prompts
from .files import OutputError, check_table, check_writable
from .reproduce import SEEDED


class ConfigError(ValueError):
    """Something that the user asked for cannot be done. The message says on one line what, and how to mend it."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The command line, as it was written."""

    chunk: str
    page: str
    dcp: str
    interval: str | None
    engine: str | None
    guard: bool
    model: str
    prompts: tuple[str, ...]
    prompts_file: str | None
    tokenizer: Path | None
    seed: int
    dtype: str
    device: str
    executor: str | None
    share: bool
    json: Path | None
    table: Path | None


@dataclass(frozen=True, slots=True)
class Config:
    """A run that can be started.

    streams: the tokens of each stream that came from a file; the seeded stream is drawn when it is needed.
    """

    cells: tuple[Cell, ...]
    streams: dict[str, Sequence[int]]
    engine: str
    guard: bool
    preset: Preset
    seed: int
    dtype: str
    device: str
    executor: str | None
    share: bool
    tokenizer: Path | None
    json: Path | None
    table: Path | None


def load(choices: Choices) -> Config:
    """Check every choice and plan the cells. Raises ConfigError."""
    try:
        return _load(choices)
    except (GeometryError, GridError, PromptError, PromptFileError, UnknownEngine, EngineError, OutputError) as error:
        raise ConfigError(str(error)) from error
    except OSError as error:  # a name that the file system does not even look up
        raise ConfigError(f"{error.filename}: {error.strerror}") from error


def _load(choices: Choices) -> Config:
    preset = _preset(choices.model)
    chunks = parse_sizes("--chunk", choices.chunk)
    for chunk in chunks:
        if chunk not in preset.chunks:
            accepted = ", ".join(map(str, preset.chunks))
            raise ConfigError(f"--chunk {chunk}: the kernels of {preset.name} have chunks of {accepted} tokens")
    geometries = grid(
        chunks,
        parse_sizes("--page", choices.page),
        parse_sizes("--dcp", choices.dcp),
        None if choices.interval is None else parse_sizes("--interval", choices.interval),
    )
    engine = choices.engine or NEWEST
    find(engine, choices.guard)  # an unknown name is answered now
    if choices.tokenizer and not choices.prompts_file:
        raise ConfigError("--tokenizer turns the text of a prompts file into tokens: give --prompts FILE with it")
    for path, check in ((choices.json, check_writable), (choices.table, check_table)):
        if path is not None:
            check(path)
            if choices.prompts_file and path.resolve() == _file_and_line(choices.prompts_file)[0].resolve():
                raise ConfigError(f"{path} holds the prompts, and would be overwritten: write to another file")
    if choices.json and choices.table and choices.json.resolve() == choices.table.resolve():
        raise ConfigError(f"--json and --table both name {choices.json}: give them two files")
    cells, streams = _plan(choices, geometries, preset)
    for cell in cells:
        _fits(cell, preset)
    return Config(
        tuple(cells),
        streams,
        engine,
        choices.guard,
        preset,
        choices.seed,
        choices.dtype,
        choices.device,
        choices.executor,
        choices.share,
        choices.tokenizer,
        choices.json,
        choices.table,
    )


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown model {name!r}: {hint}use one of {', '.join(PRESETS)}")
    return PRESETS[name]


def _plan(choices: Choices, geometries: list[Geometry], preset: Preset) -> tuple[list[Cell], dict[str, Sequence[int]]]:
    """The cells in the order of the grid, and the streams that files brought."""
    from_file = _from_file(choices, preset)
    named = [Prompt.parse(text) for text in choices.prompts]
    cells = []
    for geometry in geometries:
        if not named and not from_file:
            cells += [Cell(geometry, prompt, SEEDED, label) for label, prompt in default_prompts(geometry)]
        cells += [Cell(geometry, prompt, SEEDED) for prompt in named]
        cells += [Cell(geometry, given.prompt, given.name) for given in from_file]
    return cells, {given.name: given.tokens for given in from_file}


def _from_file(choices: Choices, preset: Preset) -> list:
    """The prompts of --prompts FILE, or of FILE:LINE only that line's."""
    if choices.prompts_file is None:
        return []
    path, line = _file_and_line(choices.prompts_file)
    prompts = read_prompts(path, choices.tokenizer, preset.vocab)
    if line:
        prompts = [p for p in prompts if p.name == f"{path}:{line}"]
        if not prompts:
            raise ConfigError(f"--prompts {choices.prompts_file}: {path} has no prompt on line {line}")
    return prompts


def _file_and_line(given: str) -> tuple[Path, str]:
    """FILE:LINE apart; a file that has such a name itself is taken whole."""
    name, _, after = given.rpartition(":")
    if name and after.isdigit() and not Path(given).exists():
        return Path(name), after
    return Path(given), ""


def _fits(cell: Cell, preset: Preset) -> None:
    tokens = cell.prompt.resume_length
    needed, free = cold_run_bytes(preset, tokens, cell.geometry.chunk), available_bytes()
    if needed > free:
        raise ConfigError(
            f"a prompt of {tokens} tokens needs about {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free: "
            f"use prompts of at most {int(tokens * free / needed)} tokens"
        )

"""From what the user asked for to what will be run: every choice checked before any time is spent.

Nothing heavy is imported here, so that a mistake is answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..checker.cells import Cell
from ..checker.geometry import Geometry, GeometryError
from ..checker.grid import GridError, grid, parse_sizes
from ..engines.catalog import COMMAND, NEWEST, EngineError, UnknownEngine, check_external, find, is_external
from ..kernels.footprint import available_bytes, cold_run_bytes
from ..kernels.presets import PRESETS, Preset
from ..scenarios.edges import default_prompts
from ..scenarios.prompt import Prompt, PromptError
from ..scenarios.tokens import PromptFileError, read_prompts
from .baseline import BaselineError, check_comparable, read
from .files import OutputError, check_writable
from .outputs import Outputs
from .reproduce import SEEDED

DTYPES = ("float32", "bfloat16", "float16")


class ConfigError(ValueError):
    """Something that the user asked for cannot be done. The message says on one line what, and how to mend it."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The command line, as it was written, with its defaults.

    engine_timeout: seconds that an engine in a process of its own may take for an answer.
    payload:        what such an engine moves, by default "tag".
    write_baseline: write what the run finds as a baseline, instead of judging it.
    source:         file and line of the settings that the run was started from, for reports that point there.
    """

    chunk: str = "64"
    page: str = "64"
    dcp: str = "1"
    interval: str | None = None
    engine: str | None = None
    engine_cmd: str | None = None
    engine_python: Path | None = None
    engine_timeout: float = 120.0
    payload: str | None = None
    guard: bool = False
    model: str = "kimi-linear"
    prompts: tuple[str, ...] = ()
    prompts_file: str | None = None
    tokenizer: Path | None = None
    seed: int = 0
    dtype: str = "float32"
    device: str = "auto"
    executor: str | None = None
    share: bool = True
    outputs: Outputs = field(default_factory=Outputs)
    baseline: Path | None = None
    strict: bool = False
    write_baseline: Path | None = None
    source: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """A run that can be started: what was chosen, checked, and what follows from it.

    streams:  the tokens of each stream that came from a file; the seeded stream is drawn when it is needed.
    baseline: what an earlier run found, to compare with.
    """

    choices: Choices
    cells: tuple[Cell, ...]
    streams: dict[str, Sequence[int]]
    engine: str
    preset: Preset
    baseline: dict[str, Any] | None


def load(choices: Choices, engine_is_given: bool = False) -> Config:
    """Check every choice and plan the cells. Raises ConfigError.

    engine_is_given: the caller brings the engine; its name in the choices is only a name.
    """
    try:
        return _load(choices, engine_is_given)
    except _MISTAKES as error:
        raise ConfigError(str(error)) from error
    except OSError as error:  # a name that the file system does not even look up
        raise ConfigError(f"{error.filename}: {error.strerror}") from error


_MISTAKES = (
    BaselineError,
    EngineError,
    GeometryError,
    GridError,
    OutputError,
    PromptError,
    PromptFileError,
    UnknownEngine,
)


def _load(choices: Choices, engine_is_given: bool) -> Config:
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
    if not engine_is_given:
        engine = engine_of(choices)
    if choices.dtype not in DTYPES:
        raise ConfigError(f"unknown dtype {choices.dtype!r}: use one of {', '.join(DTYPES)}")
    if type(choices.seed) is not int or choices.seed < 0:
        raise ConfigError(f"seed {choices.seed!r}: give a whole number of at least 0")
    if choices.tokenizer and not choices.prompts_file:
        raise ConfigError("--tokenizer turns the text of a prompts file into tokens: give --prompts FILE with it")
    _check_outputs(choices)
    if choices.strict and choices.baseline is None:
        raise ConfigError("--strict is about a baseline's entries: give --baseline FILE with it")
    baseline = None if choices.baseline is None else read(choices.baseline)
    if baseline is not None:
        check_comparable(baseline, {"engine": engine, "model": preset.name, "dtype": choices.dtype})
    cells, streams = _plan(choices, geometries, preset)
    for cell in cells:
        _fits(cell, preset)
    return Config(choices, tuple(cells), streams, engine, preset, baseline)


def engine_of(choices: Choices) -> str:
    """The name of the engine under test. Raises ConfigError or EngineError for one that cannot be had."""
    if choices.engine_cmd is not None and choices.engine is not None:
        raise ConfigError("--engine and --engine-cmd are two engines under test: give one of them")
    engine = choices.engine or NEWEST
    if choices.engine_cmd is not None:
        engine = COMMAND + choices.engine_cmd
    if is_external(engine):
        if choices.guard:
            raise ConfigError("--guard is a choice of the modelled engines; one in a process of its own has its rules")
        check_external(engine, choices.engine_python)
    else:
        find(engine, choices.guard)
        if choices.engine_python is not None:
            raise ConfigError(f"--engine-python is about --engine sglang or vllm; {engine} runs in this process")
        if choices.payload is not None:
            raise ConfigError(f"--payload is about engines in a process of their own; {engine} runs in this one")
    if not 0 < choices.engine_timeout < float("inf"):
        raise ConfigError(f"--engine-timeout {choices.engine_timeout:g}: give seconds, more than 0")
    return engine


def _check_outputs(choices: Choices) -> None:
    """Every file can be written, and none of them is another one of this run's files."""
    choices.outputs.check()
    named = {f"--{name}": path for name, path in choices.outputs.paths.items()}
    if choices.write_baseline is not None:
        check_writable(choices.write_baseline)
        named["the new baseline"] = choices.write_baseline
    if choices.baseline is not None:
        named["--baseline"] = choices.baseline
    if choices.prompts_file:
        named["--prompts"] = _file_and_line(choices.prompts_file)[0]
    if choices.source is not None:
        named["the settings"] = Path(choices.source[0])
    taken: dict[Path, str] = {}
    for name, path in named.items():
        if (other := taken.setdefault(path.resolve(), name)) != name:
            raise ConfigError(f"{other} and {name} both name {path}, which would be overwritten: give them two files")


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown model {name!r}: {hint}use one of {', '.join(PRESETS)}")
    return PRESETS[name]


def _plan(choices: Choices, geometries: list[Geometry], preset: Preset) -> tuple[list[Cell], dict[str, Sequence[int]]]:
    """The cells in the order of the grid, and the streams that files brought."""
    from_file = _from_file(choices, preset)
    named = list(dict.fromkeys(Prompt.parse(text) for text in choices.prompts))
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
    tokens = cell.prompt.longest
    needed, free = cold_run_bytes(preset, tokens, cell.geometry.chunk), available_bytes()
    if needed > free:
        raise ConfigError(
            f"a prompt of {tokens} tokens needs about {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free: "
            f"use prompts of at most {int(tokens * free / needed)} tokens"
        )

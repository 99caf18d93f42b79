"""From a config to a run that goes: torch, Triton and FLA are loaded here, and nowhere before."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Sequence

from ..checker.cells import Run, UnderTest
from ..checker.events import Event
from ..checker.geometry import Geometry
from ..engines.base import Engine
from ..engines.catalog import find
from ..kernels.collector import collector_paused
from .config import Config, ConfigError
from .reproduce import SEEDED


def prepare(config: Config, engine: Callable[[Geometry], Engine] | None = None) -> tuple[Run, Iterator[Event]]:
    """An empty run, and the events of the check that fill it. Raises ConfigError for what this machine rules out.

    engine: makes the engine under test; by default the one that the config names.
    """
    with collector_paused():  # loading makes objects that stay: looking for garbage among them is lost time
        from ..checker.check import Workload, check
        from ..kernels.backend import BackendError, choose_backend
        from ..kernels.stack import Stack, float_type

    choices = config.choices
    try:
        backend = choose_backend(choices.device, choices.executor, choices.dtype)
    except BackendError as error:
        raise ConfigError(str(error)) from error
    under_test = UnderTest(
        config.engine,
        choices.guard,
        config.preset.name,
        choices.dtype,
        backend.description,
        str(backend.executor),
        choices.seed,
        choices.share,
        versions(),
        str(choices.tokenizer or ""),
    )
    make = engine or find(config.engine, choices.guard)
    stacks: dict[int, Stack] = {}

    def stack(chunk: int) -> Stack:
        if chunk not in stacks:
            stacks[chunk] = Stack(config.preset, chunk, choices.seed, float_type(choices.dtype), backend)
        return stacks[chunk]

    work = Workload(config.cells, _streams(config), lambda cell: make(cell.geometry), stack, choices.share)
    return Run(under_test, len(config.cells)), check(work)


def _streams(config: Config) -> dict[str, Sequence[int]]:
    from ..scenarios.tokens import seeded_stream

    lengths = [cell.prompt.resume_length for cell in config.cells if cell.stream == SEEDED]
    streams = dict(config.streams)
    if lengths:
        streams[SEEDED] = seeded_stream(config.choices.seed, max(lengths), config.preset.vocab).tolist()
    return streams


def versions() -> dict[str, str]:
    """What a report must name for its numbers to mean something."""
    names = ("mamba-replay-check", "torch", "triton", "fla-core")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}

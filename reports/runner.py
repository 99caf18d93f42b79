"""From a config to a run that goes: torch, Triton and FLA are loaded here, and nowhere before."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..checker.cells import Cell, Run, UnderTest
from ..checker.events import Event, Preparing
from ..checker.geometry import Geometry
from ..engines.base import Engine, EngineFailure
from ..engines.catalog import EngineError, driver_command, find, is_external
from ..kernels.collector import collector_paused
from .config import Config, ConfigError
from .reproduce import SEEDED

Listen = Callable[[Event], None]


@contextmanager
def prepare(
    config: Config, engine: Callable[[Geometry], Engine] | None = None, listen: Listen = lambda event: None
) -> Iterator[tuple[Run, Iterator[Event]]]:
    """An empty run, and the events of the check that fill it. Raises ConfigError for what this machine rules out.

    engine: makes the engine under test; by default the one that the config names. Its process, if it has one of its
    own, is started here and ends with the context.
    listen: told what happens before the first event.
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
    stacks: dict[int, Stack] = {}

    def stack(chunk: int) -> Stack:
        if chunk not in stacks:
            stacks[chunk] = Stack(config.preset, chunk, choices.seed, float_type(choices.dtype), backend)
        return stacks[chunk]

    with ExitStack() as open_drivers:
        payload, its_versions = "", {}
        if engine is None and is_external(config.engine):
            payload = choices.payload or "tag"
            make, its_versions = _external(config, payload, open_drivers, listen)
        else:
            make = _in_process(engine or find(config.engine, choices.guard))
        under_test = UnderTest(
            config.engine,
            choices.guard,
            config.preset.name,
            choices.dtype,
            backend.description,
            str(backend.executor),
            choices.seed,
            choices.share,
            versions() | its_versions,
            str(choices.tokenizer or ""),
            payload,
            str(choices.engine_python or ""),
            settings=choices.source is not None,
        )
        work = Workload(config.cells, _streams(config), make, stack, choices.share)
        yield Run(under_test, len(config.cells)), check(work)


def _in_process(make: Callable[[Geometry], Engine]) -> Callable[[Cell], Engine]:
    return lambda cell: make(cell.geometry)


def _external(
    config: Config, payload: str, open_drivers: ExitStack, listen: Listen
) -> tuple[Callable[[Cell], Engine], dict[str, str]]:
    """What makes an engine behind a driver, which is started now, and the versions that the driver runs on."""
    from ..checker.state_bytes import ModelStateBytes
    from ..engines.external import Driver
    from ..kernels.stack import float_type

    try:
        command = driver_command(config.engine, config.choices.engine_python, lambda *said: listen(Preparing(*said)))
    except EngineError as error:
        raise ConfigError(str(error)) from error
    listen(Preparing(f"starting {config.engine}"))
    driver = Driver(command, config.choices.engine_timeout)
    open_drivers.callback(driver.close)
    try:
        hello = driver.hello()
    except EngineFailure as error:
        raise ConfigError(f"{config.engine}: {error}") from error
    if payload not in hello.payloads:
        movable = ", ".join(hello.payloads)
        raise ConfigError(f"--payload {payload}: {hello.engine} cannot move that; use {movable}")
    states = ModelStateBytes(config.preset.layers, float_type(config.choices.dtype))

    def make(cell: Cell) -> Engine:
        return driver.open(cell.geometry, payload, cell.prompt.longest, states)

    # Its torch is not ours: both are named.
    return make, {f"{hello.engine}: {name}": version for name, version in hello.versions.items()}


def _streams(config: Config) -> dict[str, Sequence[int]]:
    from ..scenarios.tokens import seeded_stream

    lengths = [cell.prompt.longest for cell in config.cells if cell.stream == SEEDED]
    streams = dict(config.streams)
    if lengths:
        streams[SEEDED] = seeded_stream(config.choices.seed, max(lengths), config.preset.vocab).tolist()
    return streams


def versions() -> dict[str, str]:
    """What a report must name for its numbers to mean something."""
    names = ("mamba-replay-check", "torch", "triton", "fla-core")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}

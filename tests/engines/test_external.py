"""Engines in a process of their own: what they say is what the same engine says in this one, and how they fail."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mamba_replay_check.checker.cells import Cell, Replay
from mamba_replay_check.checker.drive import drive
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.checker.trajectory import Snapshot, Tag
from mamba_replay_check.engines.base import LayerState, RawTensor, Snapshots, StateBytes
from mamba_replay_check.engines.catalog import create
from mamba_replay_check.engines.external import Driver
from mamba_replay_check.engines.process import DriverError, JsonLines
from mamba_replay_check.scenarios.prompt import Prompt

DRIVERS = Path(__file__).parent / "drivers"
GEOMETRY = Geometry.with_default_interval(chunk=64, page=64, dcp=8)


class Counting(Snapshots):
    """A pass whose states only say where they were taken."""

    def __init__(self, start: int, end: int, chunk: int) -> None:
        self.start, self.end, self.chunk = start, end, chunk

    def take(self, index: int | None, conv_end: int) -> Snapshot:
        if index is not None and not 0 <= index * self.chunk < self.end - self.start:
            raise IndexError(f"no h[{index}]")
        depth = self.end if index is None else self.start + index * self.chunk
        return Snapshot(Tag("counted", depth, conv_end), dict)

    def cut(self, end: int) -> Snapshot:
        if not self.start < end <= self.end:
            raise IndexError(f"no end at {end}")
        return Snapshot(Tag("counted", end, end), dict)


class OneNumber(StateBytes):
    """States of one number, the depth at which they were taken: bytes are enough to know them again."""

    dtype = "float32"
    shapes = (((1, 1, 1), (1, 1)),)

    def bytes_of(self, payload: Snapshot) -> list[LayerState]:
        recurrent = RawTensor("float32", (1, 1, 1), payload.tag.depth.to_bytes(4, "little"))
        return [LayerState(recurrent, RawTensor("float32", (1, 1), bytes(4)))]

    def payload_of(self, states: list[LayerState], given: Snapshot | None) -> Snapshot:
        depth = int.from_bytes(states[0].recurrent.data, "little")
        return Snapshot(Tag("bytes", depth, depth), dict)


Start = Callable[..., Driver]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(FAULT, LENGTH): the driver of a modelled release."""
    started = []

    def driver(*fault: object, timeout: float = 20, release: str = "0.5.17") -> Driver:
        command = [sys.executable, str(DRIVERS / "model_driver.py"), release, *map(str, fault)]
        started.append(Driver(command, timeout))
        return started[-1]

    yield driver
    for each in started:
        each.close()


def replay(driver: Driver, prompt: str, geometry: Geometry = GEOMETRY, payload: str = "tag") -> Replay:
    cell = Cell(geometry, Prompt.parse(prompt), "seeded")
    length = cell.prompt.resume_length
    return drive(
        lambda: driver.open(geometry, payload, length, OneNumber()),
        cell,
        range(length),
        lambda a, b: Counting(a, b, geometry.chunk),
    )[0]


def in_process(release: str, prompt: str, geometry: Geometry = GEOMETRY) -> Replay:
    cell = Cell(geometry, Prompt.parse(prompt), "seeded")
    make, tokens = lambda: create(f"model:sglang-{release}", geometry), range(cell.prompt.resume_length)
    return drive(make, cell, tokens, lambda a, b: Counting(a, b, geometry.chunk))[0]


@pytest.fixture(scope="module")
def long_lived() -> Iterator[Driver]:
    driver = Driver([sys.executable, str(DRIVERS / "model_driver.py"), "0.5.17"], 20)
    yield driver
    driver.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.builds(
        Geometry.with_default_interval,
        chunk=st.just(64),
        page=st.sampled_from([1, 16, 64, 128]),
        dcp=st.sampled_from([1, 2, 8]),
    ),
    st.lists(st.integers(1, 900), min_size=1, max_size=3),
    st.sampled_from([0, 1, 300]),
    st.sampled_from([0, 1, 65]),
)
def test_nothing_is_lost_on_the_way(
    long_lived: Driver, geometry: Geometry, prefill: list[int], decode: int, next_turn: int
) -> None:
    """One driver serves many caches; each is as new as a new process would have it."""
    prompt = str(Prompt(tuple(prefill), decode, next_turn))
    assert replay(long_lived, prompt, geometry) == in_process("0.5.17", prompt, geometry)


def test_what_a_driver_says_of_itself(start: Start) -> None:
    hello = start().hello()
    assert (hello.engine, dict(hello.versions), hello.payloads) == ("a model", {"model": "0.5.17"}, ("tag",))


# ---- a driver in another language, with states that it really moves -------------------------------------------------

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="the driver is written in JavaScript")


@pytest.fixture
def page_cache() -> Iterator[Driver]:
    driver = Driver(["node", str(DRIVERS / "page_cache.mjs")], 20)
    yield driver
    driver.close()


@needs_node
@pytest.mark.parametrize("payload", ["tag", "tensors"])
def test_another_language(page_cache: Driver, payload: str) -> None:
    got = replay(page_cache, "600n64", payload=payload)
    assert (got.cached_tokens, got.claimed_depth, got.state_depth, got.failure) == (512, 512, 512, "")
    assert [(d.claimed_depth, d.node_depth, d.fate.value) for d in got.donations] == [(512, 512, "attached")]


# ---- passes that the engine cuts ------------------------------------------------------------------------------------

EXCHANGE = """
    > {"id": 1, "call": "hello", "protocol": 1}
    < {"id": 1, "protocol": 1, "engine": "by heart", "versions": {}, "payloads": ["tag"]}
    > {"id": 2, "call": "open", "geometry": {"chunk": 64, "page": 64, "dcp": 8, "interval": 256}, "payload": "tag",\
 "tokens": 664}
    < {"id": 2}
    > {"id": 3, "call": "match", "tokens": [0, 1, ...]}
    < {"id": 3, "request": 0, "cached_tokens": 0, "snapshot": null}
    > {"id": 4, "call": "extend", "request": 0, "start": 0, "end": 600}
    < {"take": {"end": 601}}
    > {"error": "no end at 601"}
    < {"take": {"end": 550}}
    > {"snapshot": 0}
"""

THE_REST = """
    < {"id": 4}
    > {"id": 5, "call": "finish", "request": 0}
    < {"id": 5}
    > {"id": 6, "call": "match", "tokens": [0, 1, ...]}
    < {"id": 6, "request": 1, "cached_tokens": 512, "snapshot": 0}
"""


def test_a_pass_that_the_engine_cuts(tmp_path: Path) -> None:
    got = replay(playing(tmp_path, EXCHANGE + THE_REST), "600n64")
    assert (got.failure, got.cached_tokens, got.state_depth, got.conv_depth) == ("", 512, 550, 550)
    assert [(t.start, t.end, t.index, t.depth) for t in got.taken] == [(0, 550, None, 550)]


@pytest.mark.parametrize(
    "order", ['{"end": 550, "index": 3, "conv_end": 5}', '{"end": null}', "{}", '{"index": 3}', "7"]
)
def test_an_order_that_makes_no_sense(tmp_path: Path, order: str) -> None:
    driver = playing(tmp_path, EXCHANGE + f'    < {{"take": {order}}}\n')
    assert '"take" needs "index", a number or null, and "conv_end"; or "end" alone' in replay(driver, "600n64").failure


def playing(folder: Path, exchange: str) -> Driver:
    """A driver that knows this exchange by heart."""
    written = folder / "exchange.md"
    written.write_text(exchange)
    return Driver([sys.executable, str(DRIVERS / "player.py"), str(written)], 20)


# ---- failures -------------------------------------------------------------------------------------------------------

STRIKES = 664
"""Length of the prompt at which a fault strikes: the resuming one of 600n64."""


@pytest.mark.parametrize(
    "fault, words",
    [
        ("hang", "it gave no answer for 2 s"),
        ("hang with a child", "it gave no answer for 2 s; its last words: child"),
        ("die", "it ended with exit status 1; its last words: .*Crash: the pool is empty"),
        ("die by a signal", "it was ended by SIGSEGV"),
        ("close the output", "it closed its output"),
        ("no JSON", "it answered 'Loading the model...', which is no JSON object"),
        ("no object", "it answered '.1, 2.', which is no JSON object"),
        ("wrong keys", "its answer to match makes no sense: '.*' is a required property"),
        ("unknown snapshot", "its answer to match makes no sense: snapshot 99 was not given"),
        ("take where no pass ran", "no pass has run of which it could take a snapshot"),
        ("an error of its own", "^RuntimeError: the tree is full, while asked to match$"),
        ("too many tokens", "it matched 1000000000 of 664 tokens"),
    ],
)
def test_a_broken_cell_does_not_break_the_next(start: Start, fault: str, words: str) -> None:
    driver = start(fault, STRIKES, timeout=2)
    broken = replay(driver, "600n64")
    assert broken.cached_tokens == 0
    assert re.search(words, broken.failure), broken.failure
    assert "\n" not in broken.failure and len(broken.failure) < 700
    assert replay(driver, "1024n65") == in_process("0.5.17", "1024n65")


def test_an_answer_too_many(start: Start) -> None:
    """It must not be taken for the answer to the next call."""
    driver = start("answers twice", 600)
    assert '"id" is' in replay(driver, "600n64").failure
    assert replay(driver, "1024n65") == in_process("0.5.17", "1024n65")


@pytest.mark.parametrize("fault", ["flood the error stream", "flood the error stream without a line"])
def test_a_flood_of_errors_is_no_failure(start: Start, fault: str) -> None:
    driver = start(fault, STRIKES)
    assert replay(driver, "600n64") == in_process("0.5.17", "600n64")


def test_a_line_without_an_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mamba_replay_check.engines.process.MOST_BYTES", 2**22)
    assert "a line of more than 4 MiB" in replay(start("no end of the line", STRIKES), "600n64").failure


def test_a_driver_that_stops_reading(start: Start) -> None:
    """Its input is full or gone before its silence is noticed."""
    driver = start("stops reading", 100_000, timeout=3)
    assert "the driver failed" in replay(driver, "99936n64").failure


@pytest.mark.parametrize("fault", ["die", "hang", "no JSON", "wrong keys"])
def test_a_driver_that_cannot_say_hello(start: Start, fault: str) -> None:
    with pytest.raises(DriverError, match="the driver failed"):
        start(fault, timeout=2).hello()


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    script = tmp_path / "driver"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(DriverError, match=r"exit status 127; its last words: .*No such file"):
        Driver([str(script)], 5).hello()


# ---- nothing is left behind -----------------------------------------------------------------------------------------


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_alive(pid)


def test_children_of_a_driver_end_with_it(start: Start) -> None:
    failure = replay(start("hang with a child", STRIKES, timeout=2), "600n64").failure
    assert gone(int(failure.rpartition("child ")[2]))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_does_not_outlive_the_check(how: signal.Signals) -> None:
    """Even a check that is killed, while the driver hangs and reads nothing."""
    code = (
        "import sys, time\n"
        "from mamba_replay_check.engines.process import JsonLines\n"
        "hangs = 'import os, time; print(\\'{\"pid\": %d}\\' % os.getpid(), flush=True); time.sleep(1000)'\n"
        "process = JsonLines([sys.executable, '-c', hangs], 20)\n"
        "print(process.receive()['pid'], flush=True)\n"
        "time.sleep(1000)\n"
    )
    check = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(check.stdout.readline())
    assert is_alive(pid)
    os.kill(check.pid, how)
    check.wait()
    assert gone(pid)


def test_a_driver_ends_by_itself_when_its_input_does() -> None:
    process = JsonLines([sys.executable, str(DRIVERS / "model_driver.py"), "0.5.17"], 20)
    assert process.end() == 0

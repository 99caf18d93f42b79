"""Real SGLang releases, and our model of their rules held against them.

`pytest -m sglang` installs 0.5.17 and 0.5.18 on first use; other releases are tried where they are installed already
(`mamba-replay-check engines install sglang==0.5.23`). SGLANG_HISTORIES is the number of random histories per release,
SGLANG_FIRST the first one's seed. To see where model and release part, and how often what happened:

    python -m tests.engines.test_sglang_releases RELEASE FIRST COUNT [--overlap]
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines.base import EngineFailure, LayerState, RawTensor, StateBytes
from mamba_replay_check.engines.catalog import driver_command
from mamba_replay_check.engines.environments import Environments, State
from mamba_replay_check.engines.external import Driver
from mamba_replay_check.engines.sglang_model import SGLangModel
from mamba_replay_check.engines.sglang_rules import (
    SGLANG_0_5_17,
    SGLANG_0_5_18,
    SGLANG_0_5_19,
    SGLANG_0_5_23,
    Rules,
)

from .histories import LONGEST, Both, Noted, Parted, Told, play, random_geometry

pytestmark = [pytest.mark.sglang, pytest.mark.xdist_group("sglang")]

RULES: dict[str, Rules] = {
    "0.5.17": SGLANG_0_5_17,
    "0.5.18": SGLANG_0_5_18,
    "0.5.19": SGLANG_0_5_19,
    "0.5.20": SGLANG_0_5_19,
    "0.5.21": SGLANG_0_5_23,
    "0.5.22": SGLANG_0_5_23,
    "0.5.23": SGLANG_0_5_23,
}

INSTALLED_HERE = ("0.5.17", "0.5.18")
"""Releases that the tests install themselves: before and after PR 34808."""

HISTORIES = int(os.environ.get("SGLANG_HISTORIES", "100"))
FIRST = int(os.environ.get("SGLANG_FIRST", "0"))

SEED_CASE = Geometry(64, 64, 8, 256)


class Unmoved(StateBytes):
    """For numbers: no bytes are asked for."""

    dtype = "float32"
    shapes = ()

    def bytes_of(self, payload: object) -> list[LayerState]:
        raise AssertionError("numbers have no bytes")

    def payload_of(self, states: object, given: object) -> object:
        raise AssertionError("numbers have no bytes")


class Elements(Unmoved):
    """States in which every element differs and tells the snapshot; what comes back is handed on as bytes."""

    shapes = (((2, 16, 8), (3, 64)), ((2, 16, 8), (3, 64)))

    def bytes_of(self, payload: tuple) -> list[LayerState]:
        import torch

        def filled(shape: tuple[int, ...]) -> RawTensor:
            values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32) / 1024 + sum(payload[:2])
            return RawTensor("float32", shape, values.numpy().tobytes())

        return [LayerState(filled(recurrent), filled(window)) for recurrent, window in self.shapes]

    def payload_of(self, states: object, given: object) -> object:
        return states, given


def has(release: str) -> bool:
    listed = {each.spec: each.state for each in Environments.in_cache().list()}
    return listed.get(f"sglang=={release}") is State.INSTALLED


@pytest.fixture(scope="module", params=list(RULES))
def release(request: pytest.FixtureRequest) -> str:
    if request.param not in INSTALLED_HERE and not has(request.param):
        pytest.skip(f"mamba-replay-check engines install sglang=={request.param}")
    return request.param


@pytest.fixture(scope="module")
def driver(release: str) -> Iterator[Driver]:
    driver = Driver(driver_command(f"sglang=={release}"), 120)
    yield driver
    driver.close()


def test_hello_names_the_release(driver: Driver, release: str) -> None:
    hello = driver.hello()
    assert hello.versions["sglang"] == release
    assert hello.payloads == ("tag", "tensors")


def serve(driver: Driver, geometry: Geometry, prompt: range, *cuts: int, states: StateBytes | None = None) -> Told:
    """One request from match to finish, in an empty cache."""
    engine = driver.open(geometry, "tensors" if states else "tag", len(prompt), states or Unmoved())
    told = Told(engine, geometry.chunk)
    found = engine.match(list(prompt))
    start = 0
    for end in [*cuts, len(prompt)]:
        engine.extend(found.request, start, end, Noted(start, end, geometry.chunk, told.taken))
        start = end
    engine.finish(found.request)
    return told


def test_the_case_of_34808(driver: Driver, release: str) -> None:
    """0.5.17 resumes at 19968 from a state that has absorbed 20416 tokens; 0.5.18 corrected it."""
    told = serve(driver, SEED_CASE, range(20_450), 16_384)
    found = told.engine.match(list(range(20_450)))
    depth = 20_416 if release == "0.5.17" else 19_968
    assert (found.cached_tokens, found.claimed_depth, found.payload) == (19_968, depth, told.taken[1])
    assert told.taken[1] == (16_384, 20_450, (depth - 16_384) // 64, depth)


def test_the_case_of_39115(driver: Driver, release: str) -> None:
    """A prefill cut at 64 and ended at 605: the state stands at 576, the tree names 512; corrected in 0.5.21."""
    told = serve(driver, SEED_CASE, range(605), 64)
    found = told.engine.match(list(range(605)))
    wrong = release in ("0.5.17", "0.5.18", "0.5.19", "0.5.20")
    assert (found.cached_tokens, found.claimed_depth) == (512, 576 if wrong else 512)


def test_the_case_of_35412(driver: Driver, release: str) -> None:
    """Decode snapshots every 256 steps on a tree page of 512: 768 has no node; corrected in 0.5.19."""
    engine = driver.open(SEED_CASE, "tag", 900, Unmoved())
    request, taken = engine.match(list(range(500))).request, []
    engine.extend(request, 0, 500, Noted(0, 500, 64, taken))
    for step in range(500, 800):
        engine.decode(request, step, Noted(step, step + 1, 64, taken))
    engine.finish(request)
    found = engine.match(list(range(801)))
    wrong = release in ("0.5.17", "0.5.18")
    assert (found.cached_tokens, found.claimed_depth) == (512, 768 if wrong else 512)


def test_a_pass_that_34808_stops(driver: Driver, release: str) -> None:
    """It asks for a depth on the checkpoint grid, counted from where the pass starts, and then asserts it from 0."""
    if release != "0.5.18":
        serve(driver, SEED_CASE, range(1_200), 100)
        return
    with pytest.raises(EngineFailure, match=r"AssertionError: assert i % chunk_size == 0"):
        serve(driver, SEED_CASE, range(1_200), 100)


def test_a_cell_that_sglang_stops_leaves_the_next_one_alone(driver: Driver, release: str) -> None:
    engine = driver.open(Geometry(64, 128, 1, 256), "tag", 600, Unmoved())
    found = engine.match(list(range(600)))
    with pytest.raises(EngineFailure, match="Error: "):
        engine.extend(found.request, 64, 600, Noted(64, 600, 64, []))
    test_the_case_of_34808(driver, release)


def test_tensors_go_through_sglangs_own_slots(driver: Driver) -> None:
    import torch

    sent = Elements()
    told = serve(driver, Geometry(64, 64, 1, 256), range(1_000), 512, states=sent)
    states, given = told.engine.match(list(range(1_000))).payload
    assert given == told.taken[1]
    for got, want in zip(states, sent.bytes_of(given), strict=True):
        assert (got.recurrent.dtype, got.recurrent.shape, got.recurrent.data) == (
            "float32",
            (2, 16, 8),
            want.recurrent.data,
        )
        # SGLang keeps windows in bfloat16: 8 bits of every element.
        assert got.window.dtype == "bfloat16"
        kept = torch.frombuffer(bytearray(got.window.data), dtype=torch.bfloat16)
        assert torch.equal(kept, torch.frombuffer(bytearray(want.window.data), dtype=torch.float32).bfloat16())


def parted(driver: Driver, rules: Rules, seed: int) -> tuple[Geometry, list[str], Parted | None]:
    """One history on both sides: its geometry, its calls, and where model and release part, if they do."""
    rng = random.Random(seed)
    geometry = random_geometry(rng)
    real = Told(driver.open(geometry, "tag", LONGEST, Unmoved()), geometry.chunk)
    both = Both(Told(SGLangModel(geometry, rules), geometry.chunk), real)
    try:
        play(rng, both, geometry)
    except StopIteration:
        pass  # both stopped here
    except Parted as found:
        return geometry, both.log, found
    return geometry, both.log, None


def test_the_model_agrees(driver: Driver, release: str) -> None:
    """Claimed depth, snapshot index, window, node depth, fate, cached tokens and the snapshot that comes back."""
    for seed in range(FIRST, FIRST + HISTORIES):
        geometry, log, found = parted(driver, RULES[release], seed)
        assert found is None, f"seed {seed}, {geometry}: {found.args}\n" + "\n".join(log)


def survey(release: str, first: int, count: int, *options: str) -> None:
    """Where model and release part, the shortest history of each kind, and what the histories held."""
    driver, kinds, held, shortest = (
        Driver([*driver_command(f"sglang=={release}"), *options], 120),
        Counter(),
        Counter(),
        {},
    )
    for seed in range(first, first + count):
        geometry, log, found = parted(driver, RULES[release], seed)
        kind = "agree" if found is None else f"{log[-1].split()[0]}: {found.args[0]}"
        kinds[kind] += 1
        held.update(line.split()[0] if line[0] != "=" else line[2:] for line in log)
        if found is not None and (kind not in shortest or len(log) < len(shortest[kind][2])):
            shortest[kind] = seed, geometry, log, found.args
    driver.close()
    print(release, *options, dict(kinds), dict(held))
    for kind, (seed, geometry, log, (_, model, real)) in shortest.items():
        print(f"- {kind}: seed {seed}, {geometry}\n    model   {model}\n    release {real}")
        print("\n".join(f"    {line}" for line in log[-8:]))


if __name__ == "__main__":
    survey(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])

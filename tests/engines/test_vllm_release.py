"""A real vLLM release behind the protocol: `pytest -m vllm` installs it on first use.

VLLM_HISTORIES is the number of random histories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines.base import EngineFailure
from mamba_replay_check.engines.catalog import driver_command
from mamba_replay_check.engines.external import Driver

from .histories import LONGEST, Noted, Told, play
from .test_sglang_releases import Elements, Unmoved, serve

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm")]

RELEASE = "0.32.0"
HISTORIES = int(os.environ.get("VLLM_HISTORIES", "40"))


def geometry(block: int, chunk: int = 64) -> Geometry:
    return Geometry.with_default_interval(chunk, block, 1)


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver(driver_command(f"vllm=={RELEASE}"), 120)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def raised() -> Iterator[Driver]:
    """The same, with a block that vLLM raised by itself."""
    driver = Driver(driver_command(f"vllm=={RELEASE} --raised"), 120)
    yield driver
    driver.close()


def test_hello_names_the_release(driver: Driver) -> None:
    hello = driver.hello()
    assert (hello.engine, hello.versions["vllm"], hello.payloads) == ("vLLM", RELEASE, ("tag", "tensors"))


def test_a_pass_is_cut_where_a_state_is_kept(driver: Driver) -> None:
    told = serve(driver, geometry(64), range(1_000))
    assert told.taken == [(0, 960, None, 960), (0, 1_000, None, 1_000)]
    assert [(d.claimed_depth, d.node_depth) for d in told.engine.donations] == [(960, 960)]
    found = told.engine.match(list(range(1_000)))
    assert (found.cached_tokens, found.payload) == (960, told.taken[0])


def test_a_pass_that_ends_between_blocks_leaves_the_rest_to_the_next(driver: Driver) -> None:
    told = serve(driver, geometry(528, 16), range(1_500), 600)
    assert told.taken == [(0, 528, None, 528), (600, 1_056, None, 1_056), (600, 1_500, None, 1_500)]


def test_a_block_that_was_raised_is_forgotten_by_the_scheduler(driver: Driver, raised: Driver) -> None:
    """Its process goes over the configuration once more, which puts the block back to what the platform begins with. So
    passes end on multiples of 128: the block that ends at 2304 is cached with the state of 2048."""
    told = serve(raised, geometry(1_152), range(2_500), 2_048)
    assert [(start, end) for start, end, *_ in told.taken] == [(0, 2_048), (2_048, 2_432), (2_048, 2_500)]
    found = told.engine.match(list(range(2_500)))
    assert (found.cached_tokens, found.payload) == (2_304, told.taken[0])
    told = serve(driver, geometry(1_152), range(2_500), 2_048)
    found = told.engine.match(list(range(2_500)))
    assert (found.cached_tokens, found.payload) == (2_304, told.taken[1])
    assert told.taken[1][1] == 2_304


def test_what_no_one_caches_is_lost(driver: Driver) -> None:
    """45238: the one state that is kept stands in the tokens that the next prompt does not share; its twin, where it
    does not."""
    told = serve(driver, geometry(528, 16), range(2_200), 1_584)
    lost = told.engine.match([*range(1_600), *range(10_000, 10_600)])
    assert (lost.cached_tokens, lost.payload) == (0, None)
    kept = told.engine.match([*range(2_150), *range(10_000, 10_600)])
    assert (kept.cached_tokens, kept.payload) == (2_112, told.taken[1])


def test_a_second_one_that_shares_is_kept_for_the_third(driver: Driver) -> None:
    engine = serve(driver, geometry(528, 16), range(2_200), 1_584).engine
    for n, cached in enumerate([0, 1_584]):
        prompt = [*range(1_600), *range(10_000 * (n + 1), 10_000 * (n + 1) + 600)]
        found, taken = engine.match(prompt), []
        assert found.cached_tokens == cached
        engine.extend(found.request, cached, 2_200, Noted(cached, 2_200, 16, taken))
        engine.finish(found.request)


def test_context_parallelism_is_refused(driver: Driver) -> None:
    with pytest.raises(EngineFailure, match="under dcp 1 only, not under 8: use --dcp 1"):
        driver.open(Geometry(64, 64, 8, 512), "tag", 600, Unmoved())


def test_tensors_go_through_vllms_own_blocks(driver: Driver) -> None:
    """Through a block of each group's own, copied by vLLM and kept whole."""
    sent = Elements()
    told = serve(driver, geometry(64), range(1_000), 512, states=sent)
    states, given = told.engine.match(list(range(1_000))).payload
    assert given == (512, 960, None, 960)
    for got, want in zip(states, sent.bytes_of(given), strict=True):
        assert (got.recurrent, got.window) == (want.recurrent, want.window)


@dataclass
class Alone:
    """An engine that has to be right: what it resumes from has absorbed what it says is cached."""

    told: Told
    log: list[str] = field(default_factory=list)
    resumed: int = 0

    def call(self, name: str, **values: Any) -> Any:
        shown = {**values, "tokens": len(values["tokens"])} if "tokens" in values else values
        self.log.append(f"{name} {shown}")
        answer = self.told.call(name, **values)
        assert not self.told.stopped, (self.told.stopped, self.log)
        if name == "match" and answer.cached_tokens:
            self.resumed += 1
            assert answer.payload[1] == answer.payload[3] == answer.cached_tokens, self.log
        return answer


def test_random_histories_are_resumed_right(driver: Driver) -> None:
    """Turns that continue, fork or repeat, two at a time, prefill cut anywhere."""
    resumed = 0
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        sizes = geometry(rng.choice([16, 64, 128, 256, 1_152]), rng.choice([16, 64]))
        alone = Alone(Told(driver.open(sizes, "tag", LONGEST, Unmoved()), sizes.chunk))
        play(rng, alone, sizes)
        resumed += alone.resumed
    assert resumed > HISTORIES / 2

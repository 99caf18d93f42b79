"""The modelled engine, driven through whole requests: the published cases, then each way a donation can go."""

from __future__ import annotations

import pytest
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines import catalog
from mamba_replay_check.engines.base import Donation, Fate, Snapshots

OLD = "model:sglang-0.5.17"
FIXED = "model:sglang-0.5.18"
NEWEST = catalog.NEWEST
EVERY = catalog.available()

LONG = range(16384 + 4066)
SHORT = range(64 + 541)


class OneState(Snapshots):
    """A pass whose every state is the one given."""

    def __init__(self, payload: str) -> None:
        self.payload = payload

    def take(self, index: int | None, conv_end: int) -> str:
        return self.payload


def geometry(dcp: int, page: int = 64, chunk: int = 64) -> Geometry:
    return Geometry.with_default_interval(chunk, page, dcp)


@pytest.mark.parametrize(
    ("name", "dcp", "claimed", "node"),
    [
        (OLD, 8, 20416, 19968),
        (FIXED, 8, 19968, 19968),
        (NEWEST, 8, 19968, 19968),
        (OLD, 4, 20416, 20224),
        (FIXED, 4, 20224, 20224),
        (NEWEST, 4, 20224, 20224),
        *[(name, 1, 20416, 20416) for name in EVERY],
    ],
)
def test_34808_the_prompt_of_20450_tokens(serve, name: str, dcp: int, claimed: int, node: int) -> None:
    cell = geometry(dcp)
    engine = catalog.create(name, cell)
    cold = serve(engine, cell, LONG, cuts=[16384])
    assert (cold.cached_tokens, cold.payload) == (0, None)
    assert engine.donations == (
        Donation(cold.request, 16384, 16384, Fate.ATTACHED),
        Donation(cold.request, claimed, node, Fate.ATTACHED),
    )
    resumed = engine.match(LONG)
    assert (resumed.cached_tokens, resumed.claimed_depth) == (node, claimed)
    assert (resumed.payload.state_depth, resumed.payload.conv_depth) == (claimed, claimed)


def test_34760_the_guard_refuses_the_state_and_falls_back(serve) -> None:
    cell = geometry(dcp=8)
    engine = catalog.create(OLD, cell, guard=True)
    serve(engine, cell, LONG, cuts=[16384])
    assert engine.donations[-1] == Donation(0, 20416, 19968, Fate.REFUSED)
    resumed = engine.match(LONG)
    assert (resumed.cached_tokens, resumed.payload.state_depth) == (16384, 16384)


def test_what_the_guard_refused_is_made_good_as_a_branch(serve) -> None:
    """The KV of the refused donation is in the tree, so the next request of its kind tracks the node it ends on."""
    cell = geometry(dcp=8)
    engine = catalog.create(OLD, cell, guard=True)
    serve(engine, cell, LONG, cuts=[16384])
    assert serve(engine, cell, LONG).cached_tokens == 16384
    assert engine.match(LONG).cached_tokens == 19968


@pytest.mark.parametrize("name", EVERY)
def test_the_guard_lets_a_right_donation_pass(serve, name: str) -> None:
    cell = geometry(dcp=1)
    engine = catalog.create(name, cell, guard=True)
    serve(engine, cell, LONG, cuts=[16384])
    assert engine.match(LONG).cached_tokens == 20416


@pytest.mark.parametrize(
    ("name", "claimed"), [(FIXED, 576), ("model:sglang-0.5.19", 576), (NEWEST, 512)], ids=["0.5.18", "0.5.19", "0.5.23"]
)
def test_39115_a_first_pass_shorter_than_the_tree_page(serve, name: str, claimed: int) -> None:
    cell = geometry(dcp=8)
    engine = catalog.create(name, cell)
    serve(engine, cell, SHORT, cuts=[64])
    assert engine.donations == (Donation(0, claimed, 512, Fate.ATTACHED),)
    resumed = engine.match(SHORT)
    assert (resumed.cached_tokens, resumed.payload.state_depth) == (512, claimed)


@pytest.mark.parametrize(
    ("name", "claimed", "node"), [(FIXED, 768, 512), ("model:sglang-0.5.19", 512, 512)], ids=["0.5.18", "0.5.19"]
)
def test_35412_a_decode_snapshot_between_two_tree_pages(serve, name: str, claimed: int, node: int) -> None:
    """The prompt is too short to be tracked, so the only donation is the one of decoding."""
    cell = geometry(dcp=8)
    engine = catalog.create(name, cell)
    serve(engine, cell, range(100), decoded=range(100, 800))
    assert engine.donations == (Donation(0, claimed, node, Fate.ATTACHED),)
    resumed = engine.match(range(900))
    assert (resumed.cached_tokens, resumed.payload.state_depth) == (node, claimed)


@pytest.mark.parametrize(("name", "state_depth"), [(FIXED, 64), ("model:sglang-0.5.19", 128)])
def test_33515_the_state_is_half_as_deep_as_its_node_and_its_window(serve, name: str, state_depth: int) -> None:
    """No comparison of claimed depth and node depth can see this one: both are 128."""
    cell = geometry(dcp=1, page=128)
    engine = catalog.create(name, cell, guard=True)
    serve(engine, cell, range(192))
    assert engine.donations == (Donation(0, 128, 128, Fate.ATTACHED),)
    resumed = engine.match(range(192))
    assert (resumed.payload.state_depth, resumed.payload.conv_depth) == (state_depth, 128)


def test_prefill_donates_before_the_first_decode_step(serve) -> None:
    """So a prompt can be resumed although its request decoded on, and donates again when it finishes."""
    cell = geometry(dcp=1)
    engine = catalog.create(NEWEST, cell)
    serve(engine, cell, range(200), decoded=range(200, 600))
    assert [(one.claimed_depth, one.fate) for one in engine.donations] == [(192, Fate.ATTACHED), (512, Fate.ATTACHED)]
    assert engine.match([*range(200), 7, 7]).cached_tokens == 192
    assert engine.match(range(700)).cached_tokens == 512


def test_a_request_that_took_no_snapshot_leaves_no_trace(serve) -> None:
    cell = geometry(dcp=8)
    engine = catalog.create(NEWEST, cell)
    serve(engine, cell, range(500), decoded=range(500, 511))
    serve(engine, cell, range(511))
    assert engine.donations == ()


def test_a_pass_without_a_snapshot_donates_nothing_twice(serve) -> None:
    cell = geometry(dcp=8)
    engine = catalog.create(NEWEST, cell)
    serve(engine, cell, range(700), cuts=[512, 640])
    assert engine.donations == (Donation(0, 512, 512, Fate.ATTACHED),)


def test_a_snapshot_above_the_first_tree_page_has_no_node(serve) -> None:
    cell = geometry(dcp=8)
    engine = catalog.create(OLD, cell)
    serve(engine, cell, range(100))
    assert engine.donations == (Donation(0, 64, 0, Fate.NO_NODE),)
    assert engine.match(range(100)).payload is None


def test_the_first_of_two_equal_prompts_keeps_its_place(serve) -> None:
    """Both are matched before either donates, as two requests in one batch are."""
    cell = geometry(dcp=1)
    engine = catalog.create(NEWEST, cell)
    late = engine.match(range(1000))
    serve(engine, cell, range(1000))
    engine.extend(late.request, 0, 1000, OneState("late"))
    engine.finish(late.request)
    assert engine.donations[-1] == Donation(late.request, 960, 960, Fate.ALREADY_THERE)
    assert engine.match(range(1000)).payload != "late"


@pytest.mark.parametrize("name", EVERY)
def test_a_branch_gets_a_state_of_its_own(serve, name: str) -> None:
    """Second prompt: finds KV to 1024 but no state, recomputes, leaves one there. Third: resumes from it."""
    cell = geometry(dcp=8)
    engine = catalog.create(name, cell)
    shared = range(1100)
    serve(engine, cell, [*shared, *range(5000, 6000)])
    assert serve(engine, cell, [*shared, *range(6000, 7000)]).cached_tokens == 0
    assert engine.donations[-1] == Donation(1, 1024, 1024, Fate.ATTACHED)
    third = engine.match([*shared, *range(7000, 8000)])
    assert (third.cached_tokens, third.payload.state_depth, third.payload.conv_depth) == (1024, 1024, 1024)


@pytest.mark.parametrize(("name", "claimed", "node"), [(OLD, 128, 96), (FIXED, 384, 384)], ids=["0.5.17", "0.5.18"])
def test_34808_a_branch_that_the_tree_cannot_name(serve, name: str, claimed: int, node: int) -> None:
    """Tree page 48, so that the KV shared ends at 144: a chunk ends at 128, but no node does. 0.5.18 tracks the end."""
    cell = geometry(dcp=3, page=16)
    engine = catalog.create(name, cell)
    serve(engine, cell, range(480))
    serve(engine, cell, [*range(150), *range(1000, 1300)])
    assert engine.donations[-1] == Donation(1, claimed, node, Fate.ATTACHED)


def test_the_branch_waits_for_the_pass_that_reaches_it(serve) -> None:
    cell = geometry(dcp=8)
    engine = catalog.create(NEWEST, cell)
    shared = range(1100)
    serve(engine, cell, [*shared, *range(5000, 6000)])
    serve(engine, cell, [*shared, *range(6000, 7000)], cuts=[512, 1536])
    assert [one.claimed_depth for one in engine.donations if one.request == 1] == [512, 1024, 2048]
    assert engine.match([*shared, 9]).cached_tokens == 1024


def test_the_same_prompt_again_loses_the_node_it_ends_on(serve) -> None:
    """A prompt of whole pages: the last token must be computed, so the node is cut and its state is out of reach."""
    cell = geometry(dcp=8)
    engine = catalog.create(NEWEST, cell)
    serve(engine, cell, range(1024))
    assert serve(engine, cell, range(1024)).cached_tokens == 0
    assert engine.match(range(1024)).cached_tokens == 512  # tracked as a branch by the second
    assert engine.match(range(1025)).cached_tokens == 1024


def test_a_pass_must_go_on_where_the_last_one_ended(serve) -> None:
    engine = catalog.create(NEWEST, geometry(dcp=8))
    request = engine.match(range(2000)).request
    with pytest.raises(AssertionError, match=r"pass \[512, 1024\) after 0 tokens"):
        engine.extend(request, 512, 1024, OneState("any"))

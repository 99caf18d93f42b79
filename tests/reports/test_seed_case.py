"""The case that this program was made for, by the command itself: SGLang PR 34808 and what came after it."""

from __future__ import annotations

import pytest

from .conftest import Call, Outcome

SEED = ("--page", "64", "--prompt", "16384+4066")


@pytest.fixture(scope="module")
def before(call: Call) -> Outcome:
    return call(*SEED, "--dcp", "1,4,8", "--engine", "model:sglang-0.5.17")


@pytest.fixture(scope="module")
def after(call: Call) -> Outcome:
    return call(*SEED, "--dcp", "1,4,8")


def depths(cell: dict) -> tuple[int, ...]:
    return cell["claimed_depth"], cell["state_depth"], cell["located"]["depth"], cell["cached_tokens"]


@pytest.mark.parametrize(
    "place, cached, text",
    [
        (0, 20416, "ok"),
        (1, 20224, "double-computed 192 [20224, 20416)"),
        (2, 19968, "double-computed 448 [19968, 20416)"),
    ],
)
def test_before_34808(before: Outcome, place: int, cached: int, text: str) -> None:
    cell = before.cells[place]
    assert cell["dcp"] == (1, 4, 8)[place]
    assert depths(cell) == (20416, 20416, 20416, cached)
    assert cell["verdict"]["text"] == text


@pytest.mark.parametrize("place", [1, 2])
def test_before_34808_every_token_from_the_node_on_is_wrong(before: Outcome, place: int) -> None:
    cell = before.cells[place]
    assert cell["diff"]["first_wrong"] == cell["cached_tokens"]
    assert cell["diff"]["last_wrong"] == 20449
    assert cell["diff"]["over_noise"] > 1000
    assert cell["located"]["distance"] == 0, "the state is the right one of 20416 tokens, bit for bit"
    assert [piece["times"] for piece in cell["ledger"]] == [1, 2, 1]


def test_before_34808_the_command_fails_and_says_why(before: Outcome) -> None:
    assert before.status == before.document["exit_status"] == 1
    assert before.document["complete"]
    assert "double-computed 448 [19968, 20416)" in before.out
    assert "claimed depth 20416, state depth 20416, cached tokens 19968" in before.out
    assert before.err == ""


@pytest.mark.parametrize("place, depth", [(0, 20416), (1, 20224), (2, 19968)])
def test_the_newest_release(after: Outcome, place: int, depth: int) -> None:
    cell = after.cells[place]
    assert depths(cell) == (depth,) * 4
    assert cell["verdict"]["text"] == "ok"
    assert cell["diff"]["first_wrong"] is None
    assert after.status == 0


def test_a_guard_keeps_the_wrong_state_out(call: Call) -> None:
    found = call(*SEED, "--dcp", "8", "--engine", "model:sglang-0.5.17", "--guard")
    (cell,) = found.cells
    assert found.status == 1
    assert cell["verdict"]["kind"] == "refused"
    assert cell["cached_tokens"] == 16384
    assert "reuse lost 3584 [16384, 19968)" in cell["verdict"]["text"]


@pytest.mark.parametrize("release", ["0.5.18", "0.5.19"])
def test_releases_between_without_dcp(call: Call, release: str) -> None:
    found = call(*SEED, "--dcp", "1", "--engine", f"model:sglang-{release}", "--model", "qwen3-next")
    assert depths(found.cells[0]) == (20416,) * 4
    assert (found.cells[0]["verdict"]["text"], found.status) == ("ok", 0)


@pytest.mark.parametrize("release, text, status", [("0.5.18", "double-computed 64 [512, 576)", 1), ("0.5.23", "ok", 0)])
def test_a_pass_that_begins_off_the_tree_page(call: Call, release: str, text: str, status: int) -> None:
    found = call("--dcp", "8", "--page", "64", "--prompt", "64+541", "--engine", f"model:sglang-{release}")
    assert (found.cells[0]["verdict"]["text"], found.status) == (text, status)

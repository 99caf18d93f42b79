"""The ruler: the picture of the seed's case, and for any cell: no wider than asked, plain, exact and in order."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mamba_replay_check.checker.verdict import Kind, Part, Verdict
from mamba_replay_check.reports.ruler import LEAST_WIDTH, ruler

from .documents import DEEPER, HOSTILE, NODE, SHALLOWER, cell

SEED_CASE = """\
0                19968                                                   20450
|-//-------:-------+-------:------:-------:------:-------:-------:------:----|
                   ######### 448 double-computed [19968, 20416) ########
                   ^ 19968 cached tokens, node
                                20416 claimed, state by tag and numbers ^
| donor passes end at 16384, 20450   + tree page of 512   : kernel chunk of 64"""

VACUOUS = """\
nothing was resumed: every token is computed from an empty state
0                                                                           63
|----------------------------------------------------------------------------|
^ 0 cached tokens
| donor passes end at 63"""


def test_the_seed_case():
    assert ruler(cell(Kind.DOUBLE_COMPUTED)) == SEED_CASE.splitlines()


def test_a_cell_that_was_not_resumed_says_so_first():
    assert ruler(cell(Kind.VACUOUS)) == VACUOUS.splitlines()
    assert ruler(cell(Kind.ENGINE_FAILURE))[0] == "nothing was resumed: the engine failed"


def test_the_whole_axis_is_drawn_where_the_depths_lie_far_apart():
    lines = ruler(cell(Kind.ENGINE_FAILURE))
    assert "//" not in lines[2]
    assert "+ every 2 tree pages of 512" in lines[-1]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (Kind.SKIPPED, r"\.+ 1536 skipped \[18432, 19968\) \.+"),
        (Kind.REUSE_LOST, r"~+ 3584 reuse lost \[16384, 19968\) ~+"),
        (Kind.REFUSED, r".*20416 claimed \(refused\) \^"),
        (Kind.DISAGREEMENT, r".*20416 claimed, state by numbers, window by tag and numbers \^"),
        (Kind.UNWRITTEN, r"the state's numbers stand at no depth of this prompt"),
    ],
)
def test_what_a_kind_is_known_by(kind: Kind, row: str):
    assert any(re.fullmatch(row, line.strip()) for line in ruler(cell(kind)))


def test_a_window_elsewhere_than_its_state_has_a_mark_of_its_own():
    verdict = Verdict(Kind.SKIPPED, SHALLOWER, NODE, part=Part.WINDOW)
    text = "\n".join(ruler(cell(Kind.SKIPPED, verdict=verdict)))
    assert f"{SHALLOWER} window by tag and numbers" in text
    assert "state by tag and numbers" in text


def test_a_state_deeper_than_the_prompt_is_still_on_the_axis():
    beyond = {**cell(Kind.FOREIGN), "state_depth": 30000}
    text = "\n".join(ruler(beyond))
    assert "30000 state by tag ^" in text
    assert "20450 end of the prompt" in text


def test_the_span_is_as_wide_as_its_share_of_the_axis():
    """The axis covers [19856, 20450]; 448 of those 594 tokens are three quarters of what is drawn to scale."""
    drawn = next(line for line in ruler(cell(Kind.DOUBLE_COMPUTED)) if "#" in line)
    assert len(drawn.strip()) / (78 - 6) == pytest.approx((DEEPER - NODE) / (20450 - 19856), abs=0.02)


def test_too_narrow_is_refused():
    with pytest.raises(ValueError, match="at least 40"):
        ruler(cell(Kind.OK), LEAST_WIDTH - 1)


def test_names_from_a_document_that_someone_wrote_stay_plain():
    odd = cell(Kind.DOUBLE_COMPUTED)
    odd["verdict"]["kind"] = odd["donations"][-1]["fate"] = HOSTILE
    _assert_plain(ruler(odd), 78)


DEPTHS = st.integers(0, 40) | st.integers(0, 30_000) | st.integers(0, 10**15)


@st.composite
def cells(draw: st.DrawFn) -> dict[str, Any]:
    """Any cell that a document could hold, and many that no check would leave."""
    prefill = draw(st.lists(st.integers(1, 64) | st.integers(1, 10**14), min_size=1, max_size=9))
    decode, next_turn = draw(st.integers(0, 3) | DEPTHS), draw(st.integers(0, 3) | DEPTHS)
    length = sum(prefill) + decode + next_turn
    depth = st.integers(0, length) | DEPTHS
    kind = draw(st.sampled_from([Kind.OK, Kind.DOUBLE_COMPUTED, Kind.SKIPPED, Kind.REUSE_LOST, Kind.FOREIGN]))
    low, high = sorted(draw(st.lists(depth, min_size=2, max_size=2, unique=True)))
    spanned = kind not in (Kind.OK, Kind.FOREIGN)
    located = draw(st.none() | depth)
    fate = st.sampled_from(["attached", "already there", "refused", "no node"])
    donation = st.fixed_dictionaries({"claimed_depth": depth, "node_depth": depth, "fate": fate})
    return {
        **cell(Kind.OK),
        "chunk": draw(st.sampled_from([1, 16, 64, 256])),
        "tree_page": draw(st.sampled_from([1, 16, 64, 512, 4096])),
        "prefill": prefill,
        "decode": decode,
        "next_turn": next_turn,
        "branch": None,
        "length": length,
        "verdict": {
            **cell(Kind.OK)["verdict"],
            "kind": str(kind),
            "tokens": high - low if spanned else 0,
            "start": low if spanned else None,
            "end": high if spanned else None,
        },
        "cached_tokens": draw(depth),
        "claimed_depth": draw(st.none() | depth),
        "state_depth": draw(st.none() | depth),
        "conv_depth": draw(st.none() | depth),
        "reusable_tokens": draw(depth),
        "donations": draw(st.lists(donation, max_size=3)),
        "located": draw(st.none() | st.builds(_located, st.just(located), st.lists(depth, max_size=3))),
    }


def _located(depth: int | None, windows: list[int]) -> dict[str, Any]:
    return {
        "standing": "at a depth",
        "depth": depth,
        "depths": [],
        "distance": 0.0,
        "windows": windows,
        "window_distance": 0.0,
    }


@given(cells(), st.integers(LEAST_WIDTH, 200))
def test_any_cell_is_plain_within_its_width_and_in_order(cell: dict[str, Any], width: int):
    lines = ruler(cell, width)
    _assert_plain(lines, width)
    columns = [line.index("^") for line in lines if "^" in line]
    assert columns == sorted(columns)
    # Every mark's own number, in the order of the marks.
    text = " ".join(lines)
    for name in ("cached_tokens", "claimed_depth", "state_depth"):
        if cell[name] is not None:
            assert re.search(rf"\b{cell[name]}\b", text), name
    marked = [int(found) for line in lines if "^" in line for found in re.findall(r"(?<![\w])\d+(?= )", line)[:1]]
    assert marked == sorted(marked)
    if cell["verdict"]["start"] is not None:
        start, end = cell["verdict"]["start"], cell["verdict"]["end"]
        assert re.search(rf"{end - start} {cell['verdict']['kind']} \[{start}, {end}\)", text)
        assert cell["verdict"]["kind"] != Kind.DOUBLE_COMPUTED or "#" in text, "a span has at least a column"
    if not cell["cached_tokens"]:
        assert lines[0].startswith("nothing was resumed")


def _assert_plain(lines: list[str], width: int) -> None:
    for line in lines:
        assert line.isascii()
        assert line.isprintable()
        assert len(line) <= width
        assert line == line.rstrip()

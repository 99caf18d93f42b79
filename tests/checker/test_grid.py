"""Sizes as they are written on a command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mamba_replay_check.checker.geometry import Geometry, GeometryError
from mamba_replay_check.checker.grid import MOST_GEOMETRIES, GridError, grid, parse_sizes

sizes = st.integers(1, 3000)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("64", [64]),
        ("007", [7]),
        ("16,1,64", [1, 16, 64]),
        (" 1 , 2 ", [1, 2]),
        ("1..4", [1, 2, 3, 4]),
        ("5..5", [5]),
        ("64..512..64", [64, 128, 192, 256, 320, 384, 448, 512]),
        ("1..10..4", [1, 5, 9]),
        ("1..128..x2", [1, 2, 4, 8, 16, 32, 64, 128]),
        ("1..127..x2", [1, 2, 4, 8, 16, 32, 64]),
        ("3..100..x5", [3, 15, 75]),
        ("8,1..3,2..8..x2", [1, 2, 3, 4, 8]),
        ("1..10000", list(range(1, 10_001))),
        ("1..999999999999999..x10", [10**n for n in range(15)]),
    ],
)
def test_table(text: str, expected: list[int]) -> None:
    assert parse_sizes("--page", text) == expected


@given(sizes, sizes, st.integers(1, 500))
def test_a_range_holds_both_ends_and_every_step(first: int, last: int, step: int) -> None:
    first, last = sorted((first, last))
    assert parse_sizes("--dcp", f"{first}..{last}..{step}") == [
        n for n in range(first, last + 1) if (n - first) % step == 0
    ]


@given(st.lists(sizes, min_size=1, max_size=20))
def test_a_list_is_sorted_and_holds_each_size_once(values: list[int]) -> None:
    assert parse_sizes("--dcp", ",".join(map(str, values))) == sorted(set(values))


@pytest.mark.parametrize(
    "text, said",
    [
        ("0", "--page 0 is not a size"),
        ("1,0", "--page 0 is not a size"),
        ("-1", "'-1' cannot be read"),
        ("", "'' cannot be read"),
        ("1,,2", "'' cannot be read"),
        ("1,", "'' cannot be read"),
        ("abc", "'abc' cannot be read"),
        ("1.5", "'1.5' cannot be read"),
        ("1e3", "'1e3' cannot be read"),
        ("1_000", "'1_000' cannot be read"),
        ("+1", "cannot be read"),
        ("1..", "'1..' cannot be read"),
        ("..4", "'..4' cannot be read"),
        ("1...4", "cannot be read"),
        ("1..4..x", "cannot be read"),
        ("1..4..y2", "cannot be read"),
        ("1..4..2..2", "cannot be read"),
        ("1 ..4", "cannot be read"),
        ("8..1", "--page 8..1 is an empty range"),
        ("0..4", "does not get anywhere"),
        ("1..4..0", "does not get anywhere"),
        ("1..4..x0", "does not get anywhere"),
        ("1..4..x1", "does not get anywhere"),
        ("1..10001", "more than 10000 sizes"),
        ("1..999999999999999", "more than 10000 sizes"),
        ("1..6000,6001..12000", "more than 10000 sizes"),
        ("9" * 16, "more than 15 digits"),
        ("9" * 5000, "more than 15 digits"),
        ("1.." + "9" * 5000, "more than 15 digits"),
        ("\u0661", "cannot be read"),
        ("1..\u0663", "cannot be read"),
        ("\u00b2", "cannot be read"),
        ("\uff14", "cannot be read"),
    ],
)
def test_what_is_no_size(text: str, said: str) -> None:
    with pytest.raises(GridError) as error:
        parse_sizes("--page", text)
    message = str(error.value)
    assert said in message and "--page" in message
    assert "\n" not in message and len(message) < 300


def test_every_combination_in_order() -> None:
    assert grid([32, 64], [64], [1, 2], None) == [
        Geometry(32, 64, 1, 256),
        Geometry(32, 64, 2, 256),
        Geometry(64, 64, 1, 256),
        Geometry(64, 64, 2, 256),
    ]


def test_intervals_are_one_more_dimension() -> None:
    assert [g.interval for g in grid([64], [64], [1], [64, 128])] == [64, 128]


def test_default_intervals_follow_the_page() -> None:
    assert [g.interval for g in grid([64], [64, 512], [1], None)] == [256, 512]


def test_a_combination_that_is_no_geometry_is_named() -> None:
    with pytest.raises(GeometryError, match="chunk 64 with page 48 and dcp 1: page 48 does not fit"):
        grid([64], [48], [1], None)


def test_too_many_combinations_are_refused_before_they_are_made() -> None:
    many = list(range(1, 10_001))
    with pytest.raises(GridError, match=f"100000000 combinations of sizes: at most {MOST_GEOMETRIES}"):
        grid([1], many, many, None)

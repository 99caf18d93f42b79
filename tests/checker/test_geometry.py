"""The depths that a geometry allows, and the sizes that are no geometry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mamba_replay_check.checker.geometry import DEFAULT_INTERVAL, Geometry, GeometryError, floor_to

powers = st.sampled_from([2**n for n in range(9)])
geometries = st.builds(Geometry.with_default_interval, chunk=powers, page=powers, dcp=st.integers(1, 16))


@given(geometries)
def test_the_grid_is_what_kernel_and_tree_can_both_name(geometry: Geometry) -> None:
    depths = range(1, geometry.checkpoint_grid + 1)
    both = [d for d in depths if d % geometry.cache_chunk == 0 and d % geometry.tree_page == 0]
    assert both == [geometry.checkpoint_grid]


@given(geometries)
def test_a_safe_interval_is_on_the_grid_and_on_the_interval(geometry: Geometry) -> None:
    steps = range(geometry.interval, geometry.safe_interval + 1, geometry.interval)
    assert [d for d in steps if d % geometry.checkpoint_grid == 0] == [geometry.safe_interval]


@given(geometries)
def test_the_default_interval_is_legal_and_no_longer_than_it_must_be(geometry: Geometry) -> None:
    steps = range(DEFAULT_INTERVAL, geometry.interval + 1, DEFAULT_INTERVAL)
    assert [d for d in steps if d % geometry.cache_chunk == 0] == [geometry.interval]


@pytest.mark.parametrize(
    "sizes, tree_page, cache_chunk, grid, safe",
    [
        ((64, 64, 8, 256), 512, 64, 512, 512),
        ((64, 64, 1, 256), 64, 64, 64, 256),
        ((64, 1, 1, 64), 1, 64, 64, 64),
        ((64, 1, 3, 256), 3, 64, 192, 768),
        ((64, 128, 1, 256), 128, 128, 128, 256),
        ((16, 64, 6, 64), 384, 64, 384, 384),
    ],
)
def test_table(sizes: tuple[int, ...], tree_page: int, cache_chunk: int, grid: int, safe: int) -> None:
    geometry = Geometry(*sizes)
    assert geometry.tree_page == tree_page
    assert geometry.cache_chunk == cache_chunk
    assert geometry.checkpoint_grid == grid
    assert geometry.safe_interval == safe


@pytest.mark.parametrize(
    "sizes, said",
    [
        ((0, 64, 1, 256), "chunk 0 is not a size"),
        ((64, -1, 1, 256), "page -1 is not a size"),
        ((64, 64, 0, 256), "dcp 0 is not a size"),
        ((64, 64, 1, 0), "interval 0 is not a size"),
        ((64, 48, 1, 192), "page 48 does not fit kernel chunk 64"),
        ((64, 96, 1, 192), "page 96 does not fit kernel chunk 64"),
        ((64, 64, 1, 100), "interval 100 is not a multiple of 64"),
        ((64, 128, 1, 64), "interval 64 is not a multiple of 128"),
    ],
)
def test_what_is_no_geometry(sizes: tuple[int, ...], said: str) -> None:
    with pytest.raises(GeometryError, match=said):
        Geometry(*sizes)


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_floor(depth: int, grid: int) -> None:
    assert floor_to(depth, grid) % grid == 0
    assert 0 <= depth - floor_to(depth, grid) < grid

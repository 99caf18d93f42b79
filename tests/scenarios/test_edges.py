"""The named prompts are what their names say, whatever the geometry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mamba_replay_check.checker.cells import Cell
from mamba_replay_check.checker.geometry import Geometry, floor_to
from mamba_replay_check.scenarios.edges import SEED, default_prompts, edge_prompts

geometries = st.builds(
    Geometry.with_default_interval,
    chunk=st.sampled_from([16, 32, 64, 128, 256]),
    page=st.sampled_from([2**n for n in range(9)]),
    dcp=st.integers(1, 16),
)

IS = {
    "ends on the checkpoint grid": lambda g, n: n % g.checkpoint_grid == 0,
    "one token before the grid": lambda g, n: (n + 1) % g.checkpoint_grid == 0,
    "one token after the grid": lambda g, n: (n - 1) % g.checkpoint_grid == 0,
    "one kernel chunk past the last tree page": lambda g, n: n - floor_to(n, g.tree_page) == g.chunk,
    "shorter than one tree page": lambda g, n: n < g.tree_page,
    "shorter than one kernel chunk": lambda g, n: n < g.chunk,
}


@given(geometries)
def test_a_prompt_is_what_its_name_says(geometry: Geometry) -> None:
    for name, prompt in edge_prompts(geometry):
        assert IS[name](geometry, prompt.donor_length), (name, str(prompt))
        assert prompt.donor_length > 0


@given(geometries)
def test_no_length_twice(geometry: Geometry) -> None:
    lengths = [prompt.donor_length for _, prompt in edge_prompts(geometry)]
    assert len(set(lengths)) == len(lengths)


@given(geometries)
def test_prompts_longer_than_a_page_can_be_resumed(geometry: Geometry) -> None:
    """Otherwise they would be vacuous, and the grid would only look large."""
    for name, prompt in edge_prompts(geometry):
        resumable = Cell(geometry, prompt, "seeded").reusable > 0
        assert resumable == (not name.startswith("shorter than")), (name, str(prompt))


@given(geometries)
def test_the_next_turn_is_a_kernel_chunk_and_one_token(geometry: Geometry) -> None:
    """Only so can what ends on the grid be reached: the very same tokens would match one grid step less."""
    for name, prompt in edge_prompts(geometry):
        short = name.startswith("shorter than")
        assert prompt.next_turn == (0 if short else geometry.chunk + 1), (name, str(prompt))
    named = dict(edge_prompts(geometry))
    on_the_grid = named["ends on the checkpoint grid"]
    assert Cell(geometry, on_the_grid, "seeded").reusable == on_the_grid.donor_length == 2 * geometry.checkpoint_grid


@given(geometries)
def test_every_geometry_has_the_edges_of_its_grid(geometry: Geometry) -> None:
    names = [name for name, _ in edge_prompts(geometry)]
    assert names[:3] == list(IS)[:3]
    assert ("one kernel chunk past the last tree page" in names) == (geometry.chunk < geometry.tree_page)
    assert ("shorter than one tree page" in names) == (geometry.tree_page > 1)


def test_the_case_of_the_pull_request_comes_first() -> None:
    geometry = Geometry(64, 64, 8, 256)
    assert default_prompts(geometry)[0][1] == SEED
    assert default_prompts(geometry)[1:] == edge_prompts(geometry)
    assert (SEED.prefill, SEED.resume_length) == ((16384, 4066), 20450)

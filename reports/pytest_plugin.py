"""A fixture for an engine's own test suite: three lines check that the engine replays right.

    def test_replay(mamba_replay):
        mamba_replay(MyEngine, page=64, dcp=8)

The plugin is loaded into every pytest run of the environment it is installed in, so nothing is imported before the
fixture is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..checker.cells import Run


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known to suites that insist on it."""
    config.addinivalue_line(
        "markers", "mamba_replay(**choices): sizes and prompts that the fixture mamba_replay uses unless told otherwise"
    )


@pytest.fixture
def mamba_replay(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Check an engine; the test fails with verdict, ruler and reproduce line if it is not right.

    Called with an Engine class (made with a Geometry), or an engine's name, and the choices of the command line by
    keyword: page, dcp, chunk, interval (a number, a list or text), prompt (text or a list), model, seed, dtype, guard.
    The marker `mamba_replay(...)` gives defaults for them. Returns the run. A run that proves nothing fails as well.
    """
    marker = request.node.get_closest_marker("mamba_replay")
    defaults = dict(marker.kwargs) if marker else {}

    def check(engine: Any, **choices: Any) -> Run:
        __tracebackhide__ = True
        from .api import ReplayError, replay

        try:
            return replay(engine, **{**defaults, **choices})
        except ReplayError as error:
            story = str(error)
        return pytest.fail(story, pytrace=False)  # outside, or pytest would tell it twice

    return check

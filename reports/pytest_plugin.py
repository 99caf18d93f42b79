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
    The marker `mamba_replay(...)` gives defaults for them, the test's own over its module's. Returns the run. A run
    that proves nothing fails as well, and so does a prompt that was asked for and could not be resumed.
    """
    defaults: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("mamba_replay"))):
        if marker.args:
            pytest.fail(f"the marker mamba_replay takes choices by keyword, not {marker.args!r}", pytrace=False)
        defaults |= marker.kwargs

    def check(engine: Any, **choices: Any) -> Run:
        __tracebackhide__ = True
        from .api import ReplayError, replay
        from .config import ConfigError

        try:
            return replay(engine, **{**defaults, **choices})
        except ReplayError as error:
            story = str(error)
        except ConfigError as error:
            story = f"mamba_replay: {error}"
        return pytest.fail(story, pytrace=False)  # outside, or pytest would tell it twice

    return check

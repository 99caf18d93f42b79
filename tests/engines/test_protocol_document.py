"""What docs/engine-protocol.md shows is what is said."""

from __future__ import annotations

import sys
from pathlib import Path

from mamba_replay_check.engines.base import Donation, Fate
from mamba_replay_check.engines.external import Driver

from .histories import Noted
from .test_external import DRIVERS, GEOMETRY, OneNumber

DOCUMENT = Path(__file__).parents[2] / "docs" / "engine-protocol.md"


def test_the_worked_exchange() -> None:
    """Both sides say it word for word, and it ends as the document says: 512 cached, a state of 576."""
    driver = Driver([sys.executable, str(DRIVERS / "player.py"), str(DOCUMENT)], 20)
    try:
        hello = driver.hello()
        assert (hello.engine, hello.payloads) == ("my engine", ("tag",))
        engine = driver.open(GEOMETRY, "tag", 600, OneNumber())
        tokens, taken = [17, 4, 99, *range(597)], []
        first = engine.match(tokens)
        assert first.cached_tokens == 0
        engine.extend(first.request, 0, 600, Noted(0, 600, GEOMETRY.chunk, taken))
        engine.finish(first.request)
        assert engine.donations == (Donation(first.request, 576, 512, Fate.ATTACHED),)
        again = engine.match(tokens)
        assert (again.cached_tokens, again.claimed_depth, again.payload) == (512, 576, taken[0])
        assert taken == [(0, 600, 9, 576)]
        driver.ask("close")
    finally:
        driver.stop()

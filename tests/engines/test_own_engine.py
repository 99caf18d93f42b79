"""Engines of the user's, by `python:MODULE:CLASS`."""

from __future__ import annotations

from pathlib import Path

import pytest
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines.catalog import EngineError, create, find

GEOMETRY = Geometry(64, 64, 1, 256)

MODULE = """
from mamba_replay_check.engines.sglang_model import SGLangModel
from mamba_replay_check.engines.sglang_rules import RELEASES

class Mine(SGLangModel):
    def __init__(self, geometry):
        super().__init__(geometry, RELEASES[0], guard=False)

not_an_engine = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine_of_mine.py").write_text(MODULE)
    (tmp_path / "broken_engine.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["" if p == "." else p for p in __import__("sys").path])


def test_it_is_made_with_the_geometry() -> None:
    engine = create("python:engine_of_mine:Mine", GEOMETRY)
    assert type(engine).__name__ == "Mine"
    assert engine.match([1, 2, 3]).cached_tokens == 0


@pytest.mark.parametrize(
    "name, words",
    [
        ("python:engine_of_mine", "write python:MODULE:CLASS"),
        ("python:no_such_module_anywhere:Mine", "importing no_such_module_anywhere failed"),
        ("python:broken_engine:Mine", "ZeroDivisionError"),
        ("python:engine_of_mine:Yours", "has no class Yours"),
        ("python:engine_of_mine:not_an_engine", "has no class not_an_engine"),
    ],
)
def test_what_is_missing_is_said(name: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        find(name)


def test_guard_is_for_models() -> None:
    with pytest.raises(EngineError, match="--guard"):
        find("python:engine_of_mine:Mine", guard=True)

"""Choices from a TOML file: what is read, and every way in which it can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from mamba_replay_check.reports.settings import SettingsError, read_settings


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_section_of_pyproject(here: Path) -> None:
    (here / "pyproject.toml").write_text(
        '[project]\nname = "x"\n\n[tool.mamba-replay-check]\npage = [1, 64]\ndcp = "1..8..x2"\nchunk = 64\n'
        'prompt = ["16384+4066", "500n1"]\nguard = true\nseed = 3\nengine = "model:sglang-0.5.18"\n'
    )
    found = read_settings(None)
    assert found.values == {
        "page": "1,64",
        "dcp": "1..8..x2",
        "chunk": "64",
        "prompt": ["16384+4066", "500n1"],
        "guard": True,
        "seed": 3,
        "engine": "model:sglang-0.5.18",
    }
    assert found.line == 4


def test_a_file_of_its_own_needs_no_section(here: Path) -> None:
    (here / "replay.toml").write_text('page = 64\nprompt = "500"\n')
    assert read_settings(Path("replay.toml")).values == {"page": "64", "prompt": ["500"]}


@pytest.mark.parametrize("content", ["", "[tool.other]\nx = 1\n", "this is not TOML"], ids=["empty", "other", "broken"])
def test_a_pyproject_of_somebody_else_s_is_left_alone(here: Path, content: str) -> None:
    assert read_settings(None) is None
    (here / "pyproject.toml").write_text(content)
    assert read_settings(None) is None


@pytest.mark.parametrize(
    "content, words",
    [
        ("pagee = 64", "did you mean 'page'"),
        ("page = 6.4", "page = 6.4 cannot be used: give sizes"),
        ("page = true", "page = True cannot be used"),
        ("page = []", r"page = \[\] cannot be used"),
        ("prompt = [64]", "a list of strings"),
        ('guard = "yes"', "guard = 'yes' cannot be used: give true or false"),
        ('seed = "0"', "a whole number"),
        ("seed = true", "a whole number"),
        ("engine = 5", "a string"),
        ("page = 64 65\nx = 1", "is not TOML.*line 1"),
        ("[tool]\nmamba-replay-check = 3", "must be a table"),
    ],
)
def test_what_cannot_be_used_is_named(here: Path, content: str, words: str) -> None:
    (here / "replay.toml").write_text(content)
    with pytest.raises(SettingsError, match=words) as raised:
        read_settings(Path("replay.toml"))
    assert "replay.toml" in str(raised.value) and "\n" not in str(raised.value)


def test_missing_file() -> None:
    with pytest.raises(SettingsError, match=r"cannot read nowhere\.toml"):
        read_settings(Path("nowhere.toml"))

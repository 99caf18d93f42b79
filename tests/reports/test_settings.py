"""Choices from a TOML file: what is read, and every way in which it can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from mamba_replay_check.reports import app
from mamba_replay_check.reports.config import Choices, ConfigError
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
        ("tool = 3\npagee = 64", "did you mean 'page'"),
        (f"page = 0x{'f' * 5000}", "page = a very long number cannot be used: give sizes"),
        (f"seed = {2**64}", "seed = 18446744073709551616 cannot be used"),
        (f"page = {[64.5] * 99}", r"page = \[64.5, .{70}\.\.\. cannot be used"),
        (f"page = {'[' * 5000}{']' * 5000}", "is not TOML"),
    ],
)
def test_what_cannot_be_used_is_named(here: Path, content: str, words: str) -> None:
    (here / "replay.toml").write_text(content)
    with pytest.raises(SettingsError, match=words) as raised:
        read_settings(Path("replay.toml"))
    assert "replay.toml" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"page = 64 65", b"page = '\xff'"], ids=["not TOML", "not UTF-8"])
def test_a_pyproject_that_holds_our_section_is_not_passed_over(here: Path, content: bytes) -> None:
    """A gate must not fall back to its defaults because of a typo."""
    (here / "pyproject.toml").write_bytes(b"[tool.mamba-replay-check]\n" + content)
    with pytest.raises(SettingsError, match=r"pyproject\.toml is not TOML"):
        read_settings(None)


@pytest.mark.parametrize("header", ["[tool.mamba-replay-check]  # ours", '  [ tool . "mamba-replay-check" ]'])
def test_line_of_the_section(here: Path, header: str) -> None:
    (here / "pyproject.toml").write_text(f"[project]\n\n{header}\npage = 64\n")
    assert read_settings(None).line == 3


# ---- settings and command line --------------------------------------------------------------------------------------


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch):
    """What a command line amounts to, up to the point where it would be planned and run."""

    def read(*arguments: str) -> Choices:
        seen = []

        def load(choices: Choices) -> None:
            seen.append(choices)
            raise ConfigError("far enough")

        monkeypatch.setattr(app, "load", load)
        assert app.app(list(arguments), standalone_mode=False) == 2
        return seen[0]

    return read


def test_every_setting_is_a_default_that_its_option_overrules(here: Path, chosen) -> None:
    (here / "replay.toml").write_text(
        'page = [1, 64]\ndcp = 8\nchunk = "64"\ninterval = 512\nengine = "a"\nguard = true\nmodel = "qwen3-next"\n'
        'seed = 3\ndtype = "bfloat16"\ndevice = "cpu"\nexecutor = "stock"\nno-share = true\nstrict = true\n'
        'baseline = "b.json"\ngithub = true\njson = "r.json"\ntable = "r.csv"\nhtml = "r.html"\njunit = "r.xml"\n'
        'sarif = "r.sarif"\n'
    )
    found = chosen("--config", "replay.toml")
    assert (found.page, found.dcp, found.chunk, found.interval) == ("1,64", "8", "64", "512")
    assert (found.engine, found.guard, found.model, found.seed) == ("a", True, "qwen3-next", 3)
    assert (found.dtype, found.device, found.executor, found.share) == ("bfloat16", "cpu", "stock", False)
    assert (found.baseline, found.strict, found.outputs.github) == (Path("b.json"), True, True)
    assert sorted(map(str, found.outputs.paths.values())) == ["r.csv", "r.html", "r.json", "r.sarif", "r.xml"]
    assert found.source == ("replay.toml", 1)
    words = "--page 2 --dcp 3 --chunk 4 --interval 5 --engine b --no-guard --model m --seed 6 --dtype float16"
    words += " --device cuda --executor compiled --share --no-strict --baseline c.json --no-github --json s.json"
    found = chosen("--config", "replay.toml", *words.split())
    assert (found.page, found.dcp, found.chunk, found.interval) == ("2", "3", "4", "5")
    assert (found.engine, found.guard, found.model, found.seed) == ("b", False, "m", 6)
    assert (found.dtype, found.device, found.executor, found.share) == ("float16", "cuda", "compiled", True)
    assert (found.baseline, found.strict, found.outputs.github) == (Path("c.json"), False, False)
    assert found.outputs.json == Path("s.json")


@pytest.mark.parametrize(
    "words, prompts, file, tokenizer",
    [
        ("", ("500", "600n1"), "p.jsonl", "t.json"),
        ("--prompt 700", ("700",), None, None),
        ("--prompts q.jsonl:3", (), "q.jsonl:3", "t.json"),
        ("--prompts q.jsonl --tokenizer u.json --prompt 7", ("7",), "q.jsonl", "u.json"),
    ],
)
def test_prompts_on_the_command_line_are_instead_of_the_settings(
    here: Path, chosen, words: str, prompts: tuple[str, ...], file: str | None, tokenizer: str | None
) -> None:
    """So a line that reproduces one cell replays that cell and no other, wherever it is pasted."""
    (here / "pyproject.toml").write_text(
        '[tool.mamba-replay-check]\nprompt = ["500", "600n1"]\nprompts = "p.jsonl"\ntokenizer = "t.json"\n'
    )
    found = chosen(*words.split())
    assert (found.prompts, found.prompts_file) == (prompts, file)
    assert found.tokenizer == (tokenizer and Path(tokenizer))


@pytest.mark.parametrize(
    "words, settings, written",
    [
        ("", "", "mamba-replay-baseline.json"),
        ("", 'baseline = "ci/b.json"\nstrict = true', "ci/b.json"),
        ("--output c.json", 'baseline = "ci/b.json"', "c.json"),
        ("--baseline d.json", 'baseline = "ci/b.json"', "d.json"),
    ],
)
def test_where_a_baseline_is_written(here: Path, chosen, words: str, settings: str, written: str) -> None:
    (here / "pyproject.toml").write_text(f"[tool.mamba-replay-check]\n{settings}\n")
    found = chosen("baseline", *words.split(), "--page", "128")
    assert (found.write_baseline, found.baseline, found.strict) == (Path(written), None, False)
    assert found.page == "128"


def test_a_choice_that_there_is_not_is_told_with_its_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "pyproject.toml").write_text('[tool.mamba-replay-check]\ndtype = "float99"\n')
    monkeypatch.setattr("sys.argv", ["mamba-replay-check"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: pyproject.toml: ") and "'--dtype'" in said and "float99" in said


def test_missing_file() -> None:
    with pytest.raises(SettingsError, match=r"cannot read nowhere\.toml"):
        read_settings(Path("nowhere.toml"))

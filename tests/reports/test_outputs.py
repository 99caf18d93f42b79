"""What a run leaves behind: JSON, tables, text on a terminal or not, and commands that replay a finding."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import shlex
import subprocess
from pathlib import Path

import pandas
import pytest

from .conftest import COMMAND, Call, Outcome, environment, strictly

ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")

SMALL = ("--model", "qwen3-next")
MIXED = (
    *SMALL,
    "--dcp",
    "4,1",
    "--prompt",
    "512+400n70",
    "--prompt",
    "63",
    "--engine",
    "model:sglang-0.5.17",
    "--seed",
    "5",
)
FILE_NAME = "odd [bold]name :cat: 'quoted'.jsonl"
TEXT = "[bold]To be[/bold] or [red]not :smile: to be[/], that is the \\[question]. "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def mixed(call: Call, folder: Path) -> Outcome:
    """A right cell, a wrong one and two vacuous ones, with a table and 100 columns."""
    return call(*MIXED, "--table", "cells.csv", cwd=folder, COLUMNS="100", FORCE_COLOR="")


@pytest.fixture(scope="module")
def from_file(call: Call, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """Two prompts of text full of markup, from a file with a name to match, the second of them resumed wrongly."""
    folder = tmp_path_factory.mktemp("file")
    text = TEXT * 12
    line = json.dumps({"text": text, "next_turn": 64})
    (folder / FILE_NAME).write_text(f'{{"text": "[x]"}}\n\n{line}\n')
    args = (*SMALL, "--dcp", "8", "--engine", "model:sglang-0.5.17", "--table", "cells.parquet")
    return call(*args, "--prompts", FILE_NAME, cwd=folder), folder


def replay(line: str, cwd: Path) -> dict:
    """Run a reproduce line through the shell and return its only cell."""
    program, _, rest = line.partition(" ")
    assert program == "mamba-replay-check"
    command = f"{shlex.join(COMMAND)} {rest} --json again.json"
    done = subprocess.run(command, shell=True, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 3), done.stderr
    (cell,) = strictly((cwd / "again.json").read_text())["cells"]
    return cell


def assert_same(again: dict, first: dict) -> None:
    """Rounding may differ in its last digit, as a cell that runs alone is packed with no other."""
    for same in ("verdict", "located", "ledger", "donations", "taken", "stream", "prompt", "reproduce"):
        assert again[same] == first[same]
    for same in ("first_wrong", "last_wrong"):
        assert again["diff"][same] == first["diff"][same]


# ---- JSON and tables ------------------------------------------------------------------------------------------------


def test_cells_are_in_the_order_of_the_grid(mixed: Outcome) -> None:
    assert [(c["dcp"], c["prompt"]) for c in mixed.cells] == [
        (1, "512+400n70"),
        (1, "63"),
        (4, "512+400n70"),
        (4, "63"),
    ]
    assert [c["verdict"]["kind"] for c in mixed.cells] == ["ok", "vacuous", "double-computed", "vacuous"]
    assert mixed.status == mixed.document["exit_status"] == 1
    assert mixed.document["complete"] and mixed.document["planned"] == 4


def test_the_document_says_what_was_under_test(mixed: Outcome) -> None:
    under = mixed.document["under_test"]
    assert under["engine"] == "model:sglang-0.5.17"
    assert (under["model"], under["dtype"], under["seed"], under["shared"]) == ("qwen3-next", "float32", 5, True)
    assert {"python", "torch", "triton", "fla-core", "mamba-replay-check"} <= set(under["versions"])


def test_what_was_not_measured_is_null(mixed: Outcome) -> None:
    vacuous = mixed.cells[1]
    assert vacuous["located"] is vacuous["diff"] is vacuous["ledger"] is vacuous["claimed_depth"] is None


def test_csv_has_one_row_per_cell(mixed: Outcome, folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((folder / "cells.csv").read_text())))
    assert [row["verdict_text"] for row in rows] == [cell["verdict"]["text"] for cell in mixed.cells]
    assert [row["claimed_depth"] for row in rows] == ["896", "", "896", ""], "depths are whole numbers"
    assert [row["located_depth"] for row in rows] == ["896", "", "896", ""]
    assert not {"located", "diff", "ledger", "details"} & set(rows[0])


def test_parquet_has_one_row_per_cell(from_file: tuple[Outcome, Path]) -> None:
    found, folder = from_file
    frame = pandas.read_parquet(folder / "cells.parquet")
    assert frame["verdict_text"].tolist() == [cell["verdict"]["text"] for cell in found.cells]
    assert frame["stream"].tolist() == [f"{FILE_NAME}:1", f"{FILE_NAME}:3"]


def test_a_table_has_the_same_columns_whatever_was_found(
    call: Call, mixed: Outcome, folder: Path, tmp_path: Path
) -> None:
    found = call(*SMALL, "--prompt", "63", "--table", "cells.csv", cwd=tmp_path)
    assert found.status == 3
    columns = [(where / "cells.csv").read_text().partition("\n")[0] for where in (folder, tmp_path)]
    assert columns[0] == columns[1]


def test_every_cell_vacuous_is_inconclusive_and_said_first(call: Call) -> None:
    found = call(*SMALL, "--prompt", "10", "--prompt", "63")
    assert found.status == found.document["exit_status"] == 3
    assert found.out.splitlines()[1].startswith("2 of 2 cells are vacuous: nothing was resumed")
    assert "Inconclusive" in found.out.splitlines()[-1]


# ---- text -----------------------------------------------------------------------------------------------------------


def test_the_first_line_says_what_runs_on_what(mixed: Outcome) -> None:
    first = mixed.out.splitlines()[0]
    for word in ("model:sglang-0.5.17", "qwen3-next", "float32", "CPU, batched interpreter", "seed 5"):
        assert word in first


def test_text_that_is_not_for_a_terminal_has_no_escape_codes(mixed: Outcome, from_file: tuple[Outcome, Path]) -> None:
    for found in (mixed, from_file[0]):
        assert ESCAPE not in found.out and found.err == ""


def test_tables_fit_the_width(mixed: Outcome) -> None:
    lines = mixed.out.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("dcp ")) :]
    assert len(table) >= 5
    assert max(map(len, table)) <= 100


def on_a_terminal(*args: str, **env: str) -> str:
    """What the command writes to a terminal. Only for calls that write little: nobody reads until it is done."""
    ours, theirs = pty.openpty()
    try:
        env = environment(TERM="xterm-256color", **env)
        subprocess.run([*COMMAND, *args], stdout=theirs, stderr=theirs, env=env, timeout=300, check=False)
        return os.read(ours, 100_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)


def test_no_color_means_no_colour() -> None:
    assert COLOUR.search(on_a_terminal("--page", "0"))
    assert not COLOUR.search(on_a_terminal("--page", "0", NO_COLOR="1"))


@pytest.mark.parametrize("columns", ["80", "100"])
def test_help_fits(call: Call, columns: str) -> None:
    found = call("--help", json_too=False, COLUMNS=columns)
    assert found.status == 0 and found.err == ""
    lines = found.out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    for option in (
        "--page",
        "--dcp",
        "--prompt",
        "--prompts",
        "--engine",
        "--guard",
        "--json",
        "--table",
        "--no-share",
    ):
        assert any(option in line for line in lines)
    stated = " ".join(found.out.split())
    assert "0 every checked cell is right, 1 discrepancies, 2 bad input, 3 inconclusive" in stated


def test_markup_in_prompts_and_file_names_is_plain_text(from_file: tuple[Outcome, Path]) -> None:
    found, _ = from_file
    assert [cell["verdict"]["kind"] for cell in found.cells] == ["vacuous", "double-computed"]
    finding = found.out.replace("\n", "")
    assert shlex.quote(f"{FILE_NAME}:3") in finding, "the reproduce line is there to be copied"
    assert "\N{CAT}" not in found.out


# ---- replaying ------------------------------------------------------------------------------------------------------


def test_a_reproduce_line_replays_the_cell(mixed: Outcome, tmp_path: Path) -> None:
    wrong = mixed.cells[2]
    assert wrong["reproduce"] in mixed.out
    again = replay(wrong["reproduce"], tmp_path)
    assert_same(again, wrong)


def test_a_reproduce_line_takes_one_line_of_a_file(from_file: tuple[Outcome, Path]) -> None:
    found, folder = from_file
    wrong = found.cells[1]
    again = replay(wrong["reproduce"], folder)
    assert_same(again, wrong)


def test_a_reproduce_line_keeps_the_tokenizer(call: Call, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    Tokenizer(WordLevel({"a": 7, "?": 0}, unk_token="?")).save(str(tmp_path / "my words.json"))
    (tmp_path / "p.jsonl").write_text('{"text": "a"}\n')
    found = call(*SMALL, "--prompts", "p.jsonl", "--tokenizer", "my words.json", cwd=tmp_path)
    assert "--tokenizer 'my words.json'" in found.cells[0]["reproduce"]
    assert found.document["under_test"]["tokenizer"] == "my words.json"


def test_whoever_stops_reading_still_gets_files_and_status(tmp_path: Path) -> None:
    command = [*COMMAND, *SMALL, "--prompt", "512n70", "--json", "run.json"]
    child = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    _, err = child.communicate(timeout=300)
    assert (child.returncode, err) == (0, b"")
    assert strictly((tmp_path / "run.json").read_text())["complete"]

"""Mistakes: each is answered at once, with one line that says what is wrong, and leaves every file as it was."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from .conftest import Call

PROMPT = ("--prompt", "512n70")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with files that a run could read or spoil."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "kept.json").write_text("an earlier run")
    (tmp_path / "kept.csv").write_text("an earlier table")
    (tmp_path / "good.jsonl").write_text('{"tokens": [1, 2, 3]}\n')
    (tmp_path / "broken.jsonl").write_text('{"tokens": [1]}\n\n{"tokens": [1,\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "[bold]x[red].jsonl").write_text('{"token": [1]}\n')
    (tmp_path / "words.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "not a tokenizer.json").write_text("{}")
    return tmp_path


def processor_seconds() -> float:
    """What the children of this process have used: unlike the clock, it does not count who else is busy."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    "args, said",
    [
        (
            ["--engine", "model:sglang-0.5.32"],
            "there is no engine 'model:sglang-0.5.32'. Did you mean model:sglang-0.5.23",
        ),
        (["--model", "kimi"], "unknown model 'kimi': did you mean kimi-linear? use one of kimi-linear, qwen3-next"),
        (["--model", "llama"], "use one of kimi-linear, qwen3-next"),
        (["--page", "0"], "--page 0 is not a size: give sizes of at least 1"),
        (["--page", "-64"], "--page '-64' cannot be read"),
        (["--page", "48"], "page 48 does not fit kernel chunk 64"),
        (["--dcp", "0"], "--dcp 0 is not a size"),
        (["--dcp", "-1"], "--dcp '-1' cannot be read"),
        (["--dcp", "8..1"], "--dcp 8..1 is an empty range"),
        (["--dcp", "9" * 5000], "more than 15 digits"),
        (["--page", "1..8192..x2", "--dcp", "1..10000", "--interval", "8192"], "140000 combinations of sizes"),
        (["--interval", "100"], "interval 100 is not a multiple of 64"),
        (["--chunk", "128"], "--chunk 128: the kernels of kimi-linear have chunks of 32, 64 tokens"),
        (["--chunk", "48"], "--chunk 48: the kernels of kimi-linear have chunks of 32, 64 tokens"),
        (["--prompt", "12x"], "prompt '12x' cannot be read: give the prefill chunks joined by +"),
        (["--prompt", "999999999999"], "a prompt of 999999999999 tokens needs about"),
        (["--prompt", "1" + "9" * 400], "more than 15 digits"),
        (["--prompts", "none.jsonl"], "cannot read none.jsonl: No such file or directory"),
        (["--prompts", "folder"], "cannot read folder: Is a directory"),
        (["--prompts", "n" * 300], "File name too long"),
        (["--prompts", "broken.jsonl"], "broken.jsonl:3 is not JSON"),
        (["--prompts", "empty.jsonl"], "empty.jsonl has no prompts"),
        (["--prompts", "good.jsonl:7"], "good.jsonl has no prompt on line 7"),
        (
            ["--prompts", "[bold]x[red].jsonl"],
            "[bold]x[red].jsonl:1 has an unknown key 'token': did you mean 'tokens'?",
        ),
        (["--prompts", "words.jsonl", "--tokenizer", "none.json"], "no tokenizer file none.json"),
        (["--prompts", "words.jsonl", "--tokenizer", "not a tokenizer.json"], "is not a tokenizer file"),
        (["--tokenizer", "not a tokenizer.json"], "give --prompts FILE with it"),
        (["--json", "folder"], "cannot write folder: it is a folder"),
        (["--json", "none/run.json"], "cannot write none/run.json: there is no folder none"),
        (["--json", "/dev/null"], "cannot write /dev/null: it is no ordinary file"),
        (["--json", "n" * 300], "File name too long"),
        (["--json", "kept.csv", "--table", "kept.csv"], "--json and --table both name kept.csv"),
        (["--prompts", "good.jsonl", "--json", "good.jsonl"], "both name good.jsonl, which would be overwritten"),
        (["--table", "table.xlsx"], "give it the ending .csv or .parquet"),
        (["--table", "folder"], "give it the ending .csv or .parquet"),
        (["--table", "none/t.csv"], "there is no folder none"),
        (["--dtype", "float64"], "'float64' is not one of 'float32', 'bfloat16', 'float16'"),
        (["--device", "tpu"], "'tpu' is not one of"),
        (["--executor", "none"], "'none' is not one of"),
        (["--seed", "-1"], "--seed"),
        (["--seed", "x"], "--seed"),
        (["--bogus"], "No such option: --bogus"),
        (["--page"], "'--page' requires an argument"),
        (["file.txt"], "No such command 'file.txt'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_one_line(call: Call, here: Path, args: list[str], said: str) -> None:
    before = {path: path.read_bytes() for path in here.iterdir() if path.is_file()}
    spent = processor_seconds()
    outputs = [] if "--json" in args or "--table" in args else ["--json", "kept.json", "--table", "kept.csv"]
    found = call(*outputs, *args, cwd=here, json_too=False)
    assert found.status == 2
    assert found.out == ""
    (line,) = found.err.splitlines()
    assert line.startswith("error: ") and "Traceback" not in line
    assert said in line
    assert {path: path.read_bytes() for path in here.iterdir() if path.is_file()} == before
    assert processor_seconds() - spent < 2, "loading torch alone takes longer"


@pytest.mark.parametrize(
    "args, said",
    [
        (["--device", "cuda"], "no CUDA device here: use --device cpu"),
        (["--executor", "compiled", "--device", "cpu"], "compiled kernels need a CUDA device"),
    ],
)
def test_what_this_machine_cannot_do(call: Call, here: Path, args: list[str], said: str) -> None:
    """These need torch to be loaded, and no kernel to be run. Without a GPU, also where there is one."""
    found = call(*args, *PROMPT, "--json", "kept.json", cwd=here, json_too=False, CUDA_VISIBLE_DEVICES="")
    assert (found.status, found.out) == (2, "")
    (line,) = found.err.splitlines()
    assert line.startswith("error: ") and said in line
    assert (here / "kept.json").read_text() == "an earlier run"

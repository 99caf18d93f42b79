"""GitHub: commands that stay commands, no more of them than are shown, and a summary that renders as what it says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from mamba_replay_check.checker.verdict import Kind, Verdict
from mamba_replay_check.reports.document import run_as_dict
from mamba_replay_check.reports.github import MOST_ANNOTATIONS, SUMMARY_LIMIT, annotations, job_summary
from markdown_it import MarkdownIt

from .documents import HOSTILE, document, hostile_document, result, run_of

HERE = Path(__file__).parent
COMMAND = re.compile(
    r"::(?P<level>error|warning) (?:file=(?P<file>[^:,]*),line=(?P<line>\d+),)?title=(?P<title>[^:,]*)::(?P<text>.*)"
)


def _parsed(run: dict[str, Any], source: tuple[str, int] | None = None) -> list[dict[str, str]]:
    found = [COMMAND.fullmatch(line) for line in annotations(run, source)]
    assert all(found)
    return [{name: _unescaped(value or "") for name, value in match.groupdict().items()} for match in found]


def _unescaped(text: str) -> str:
    for code, char in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        text = text.replace(code, char)
    return text


def test_an_annotation():
    run = run_as_dict(run_of(result(Kind.DOUBLE_COMPUTED, stream="data/prompts.jsonl:3")))
    assert annotations(run) == [
        "::error file=data/prompts.jsonl,line=3,title=MRC001 double-computed 448::"
        "double-computed: 448 tokens, 19968 to 20415%0A"
        "chunk 64, page 64, dcp 8, interval 256, prompt data/prompts.jsonl:3 16384+4066%0A"
        "claimed depth 20416, state depth 20416 by its tag, 20416 by its numbers, "
        "cached tokens 19968, reusable 19968%0A"
        f"reproduce: {run['cells'][0]['reproduce']}"
    ]


def test_a_run_without_faults_is_not_annotated():
    assert annotations(document(Kind.OK)) == []


def test_what_makes_a_pass_meaningless_comes_first():
    notes = _parsed(document(*Kind, complete=False))
    errors = [note["title"] for note in notes if note["level"] == "error"]
    warnings = [note["title"] for note in notes if note["level"] == "warning"]
    assert errors[:3] == ["mamba-replay-check", "MRC009 engine failure", "MRC001 double-computed 448"]
    assert warnings[0] == "MRC008 vacuous"
    assert [note["level"] for note in notes] == ["error"] * len(errors) + ["warning"] * len(warnings)


def test_without_a_file_of_prompts_the_configuration_is_pointed_at():
    assert [(note["file"], note["line"]) for note in _parsed(document(Kind.SKIPPED), ("a,b:%3A.toml", 7))] == [
        ("a,b:%3A.toml", "7")
    ]
    assert [note["file"] for note in _parsed(document(Kind.SKIPPED))] == [""]


def test_no_more_of_a_level_than_github_shows_and_the_last_counts_the_rest():
    exactly = document(*[Kind.SKIPPED] * MOST_ANNOTATIONS)
    assert [note["title"] for note in _parsed(exactly)] == ["MRC002 skipped 1536"] * MOST_ANNOTATIONS
    notes = _parsed(document(*[Kind.SKIPPED] * 30, *[Kind.FOREIGN] * 2, *[Kind.REUSE_LOST] * 11))
    errors, warnings = ([note for note in notes if note["level"] == level] for level in ("error", "warning"))
    assert (len(errors), len(warnings)) == (10, 10)
    assert errors[-1]["text"] == "23 more of this level are not shown: 21 MRC002, 2 MRC004"
    assert warnings[-1]["title"] == "2 more"


def test_text_from_outside_starts_no_command_and_ends_none():
    lines = annotations(hostile_document())
    assert len(lines) == 10
    assert all(line.isprintable() and "\n" not in line for line in lines)
    assert [line.count("::error") for line in lines if "title=MRC001" in line] == [6]  # its own, and five in its text
    own = next(note for note in _parsed(hostile_document()) if note["title"].startswith("MRC001"))
    assert own["file"].startswith("<script>alert(1)</script> ]]> ::error::x | `tick`")
    assert own["line"] == "3"


def test_a_summary():
    run = document(Kind.DOUBLE_COMPUTED, Kind.VACUOUS, Kind.OK)
    assert job_summary(run) == (HERE / "snapshots" / "summary.md").read_text()


@pytest.mark.parametrize("complete", [True, False])
def test_a_summary_without_cells_says_so(complete: bool):
    text = job_summary(document(complete=complete))
    assert "No cell was checked." in text
    assert "Inconclusive" in text.splitlines()[0]


class _Elements(HTMLParser):
    """What a browser would make of the rendered summary."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_text_from_outside_stays_text_in_the_summary():
    run = hostile_document()
    rendered = _Elements(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(job_summary(run)))
    expected = {"h2", "h3", "blockquote", "p", "strong", "pre", "code", "table", "thead", "tbody", "tr", "th", "td"}
    assert set(rendered.tags) == expected
    assert rendered.tags.count("pre") == 1
    assert rendered.tags.count("td") == 11 * 2 + 8 * 10
    # In two concerns, three words on what was tested, two fields of eight rows, three words of eight commands.
    assert rendered.text.count("<script>alert(1)</script> ]]> ::error::x | `tick` ``` [a](b) {0} %") == 45
    assert rendered.tags.count("code") == 1


def test_a_command_ends_no_code_block():
    run = document(Kind.SKIPPED, Kind.SKIPPED)
    run["cells"][0]["reproduce"] = "```"
    assert _Elements(MarkdownIt("gfm-like", {"linkify": False}).render(job_summary(run))).tags.count("pre") == 1


def test_quotes_and_entities_are_shown_as_they_are():
    run = document(Kind.OK, engine="""it's "x" &amp; #1 https://example.org www.example.org""")
    rendered = _Elements(MarkdownIt("gfm-like", {"linkify": False}).render(job_summary(run)))
    assert """it's "x" &amp; #1 https://example.org www.example.org""" in rendered.text


def test_a_summary_stays_below_the_limit_however_much_was_found():
    long = [result(Kind.FOREIGN, verdict=_said("\N{PILE OF POO}`|" * 5000)) for _ in range(20)]
    many = [result(Kind.SKIPPED, stream=f"{'`' * 900}:{n + 1}") for n in range(2000)]
    failed = [result(Kind.ENGINE_FAILURE, verdict=_failed(f"{n} {HOSTILE * 100}")) for n in range(200)]
    text = job_summary(run_as_dict(run_of(*long, *many, *failed, engine=HOSTILE * 100)))
    assert SUMMARY_LIMIT / 2 < len(text.encode()) < SUMMARY_LIMIT
    assert re.search(r"and \d+ more findings, which the JSON", text)
    assert "and 180 more reasons" in text


def _said(reason: str) -> Verdict:
    return Verdict(Kind.FOREIGN, reason=reason)


def _failed(reason: str) -> Verdict:
    return Verdict(Kind.ENGINE_FAILURE, reason=reason)

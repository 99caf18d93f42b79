"""The HTML page as text: what it says, that it escapes, stays small and fetches nothing. tests/browser opens it."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from mamba_replay_check.checker.verdict import Kind
from mamba_replay_check.reports import page
from mamba_replay_check.reports.html import SCRIPTS, TEMPLATES, embedded, render_html

from .html_documents import HOSTILE, cell, document, every_kind, hostile, seed_run, thousands

MEGABYTE = 2**20


class Markup(HTMLParser):
    """What a browser sees: elements with their attributes, text outside of scripts and styles, and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._said: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else ""
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif not self._inside:
            self._said.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._said).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def squares(markup: Markup) -> list[dict[str, str | None]]:
    return [a for a in markup.all("a") if (a.get("class") or "").startswith("square ")]


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name.lower())
def test_every_kind_of_verdict_is_rendered_with_its_mark_and_name(kind):
    assert kind in page.LOOKS, "a new kind needs a look"
    made = document([cell(kind)])
    markup = Markup(render_html(made))
    [square] = squares(markup)
    assert square["class"] == f"square {page.look(kind).slug}"
    assert made["cells"][0]["verdict"]["text"] in square["aria-label"]
    assert f"{page.look(kind).mark} 1 {kind}" in markup.text
    assert f".{page.look(kind).slug}" in (TEMPLATES / "report.css").read_text(), "a new kind needs a colour"


def test_marks_tell_kinds_apart_without_colour():
    marks = [look.mark for look in page.LOOKS.values()]
    assert len(set(marks)) == len(marks)


def test_the_head_says_verdict_counts_and_what_was_under_test():
    text = Markup(render_html(seed_run())).text
    head = text[: text.index("The grid")]
    for said in (
        "Discrepancies found 2 of 8 cells are discrepancies, 2 are right, 4 prove nothing.",
        "Engine model:sglang-0.5.17 Model kimi-linear, float32 Ran on CPU, batched interpreter (executor: batched)",
        "Seed 0 Versions",
        "python 3.11.7, mamba-replay-check 0.1.0",
    ):
        assert said in head
    counted = [(Kind.DOUBLE_COMPUTED, 1), (Kind.SKIPPED, 1), (Kind.VACUOUS, 4), (Kind.OK, 2)]
    assert " ".join(f"{page.look(kind).mark} {count} {kind}" for kind, count in counted) in head


def test_what_makes_a_pass_meaningless_comes_before_the_verdict():
    cells = [cell(Kind.OK), cell(Kind.ENGINE_FAILURE, reason="the pool is broken", dcp=4), cell(Kind.VACUOUS, dcp=2)]
    text = Markup(render_html(document(cells, complete=False, planned=9, exit_status=3))).text
    places = [
        text.index("The run was stopped after 3 of 9 cells."),
        text.index("1 of 3 cells failed in the engine and say nothing about its reuse."),
        text.index("the pool is broken"),
        text.index("1 of 3 cells are vacuous: nothing was resumed, so they prove nothing."),
        text.index("Inconclusive 0 of 3 cells are discrepancies"),
    ]
    assert places == sorted(places)


def test_a_guard_and_an_unshared_run_are_named():
    made = document([cell()])
    made["under_test"].update(guard=True, shared=False)
    text = Markup(render_html(made)).text
    assert "model:sglang-0.5.17, with the insert-time guard" in text
    assert "0, nothing shared between cells" in text


def test_a_run_without_cells_is_a_page_too():
    assert "No cell was checked." in Markup(render_html(document([], exit_status=3))).text
    stopped = render_html(document([], complete=False, planned=4, exit_status=3))
    assert "The run was stopped after 0 of 4 cells." in Markup(stopped).text


def test_a_square_shows_the_worst_prompt_and_keeps_the_others():
    cells = [cell(Kind.OK, label="a"), cell(Kind.SKIPPED, label="b"), cell(Kind.VACUOUS, label="c")]
    found = squares(Markup(render_html(document(cells))))
    assert [(s["href"], "hidden" in s) for s in found] == [("#cell-2", False), ("#cell-1", True), ("#cell-3", True)]


def test_a_vacuous_prompt_speaks_for_a_square_only_where_nothing_else_does():
    cells = [cell(Kind.VACUOUS, label="a"), cell(Kind.OK, label="b"), cell(Kind.VACUOUS, label="a", dcp=2)]
    shown = [s["href"] for s in squares(Markup(render_html(document(cells)))) if "hidden" not in s]
    assert shown == ["#cell-3", "#cell-2"]


def test_of_two_findings_of_a_kind_the_larger_is_worse():
    small, large = cell(prompt="1"), cell(prompt="2")
    small["verdict"]["tokens"] = 64
    [first, _] = squares(Markup(render_html(document([small, large]))))
    assert first["href"] == "#cell-2"


def test_there_is_one_heat_map_for_each_chunk_and_interval():
    cells = [cell(chunk=chunk, interval=interval) for chunk in (32, 64) for interval in (256, 512)]
    text = Markup(render_html(document(cells))).text
    for chunk in (32, 64):
        for interval in (256, 512):
            assert f"chunk {chunk}, interval {interval}" in text


def test_prompts_are_chosen_by_label_where_they_have_one():
    cells = [cell(label="on the grid", page=64), cell(label="on the grid", page=128, prompt="512"), cell(prompt="63")]
    assert page.choices(document(cells)) == ["on the grid", "63"]
    assert page.choices(document([cell(stream="prompts.jsonl:3")])) == ["prompts.jsonl:3: 16384+4066"]


def test_the_page_says_where_curves_are_missing():
    text = Markup(render_html(document([cell(), cell(details=False, dcp=4)]))).text
    assert "Curves are kept for 1 of the 2 cells that resumed from a state" in text
    assert "Curves are kept" not in Markup(render_html(document([cell(), cell(Kind.VACUOUS, dcp=4)]))).text


def test_text_from_outside_never_becomes_markup():
    plain, attacked = Markup(render_html(seed_run())), Markup(render_html(hostile()))
    assert not re.search("[\x00\x1b\u202e\ud800]", render_html(hostile())), "a file that UTF-8 and HTML allow"
    assert len(attacked.scripts) == len(plain.scripts) == 3
    assert not attacked.all("img")
    assert HOSTILE.replace("\u2028", " ").split()[0] in attacked.text, "it is still shown, as text"
    assert {tag for tag, _ in attacked.elements} <= {tag for tag, _ in plain.elements}
    assert not [a for _, a in attacked.elements if any(name.startswith("on") for name in a)]


def test_embedded_data_is_the_document_and_cannot_end_its_element():
    text = str(embedded(hostile()))
    assert not re.search(r"[<>&\u2028\u2029]", text)
    assert json.loads(text) == hostile()


def test_the_embedded_data_is_the_whole_document():
    made = seed_run()
    data = json.loads(Markup(render_html(made)).scripts[0])
    assert {name: data[name] for name in made} == made


def test_scripts_write_text_and_never_markup():
    own = "\n".join((TEMPLATES / name).read_text() for name in SCRIPTS)
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|fetch\(|import\("
    assert not re.findall(ways, own)


def test_nothing_is_fetched_and_only_the_pages_own_scripts_may_run():
    text = render_html(seed_run())
    markup = Markup(text)
    assert not [a for _, a in markup.elements if "src" in a or (a.get("href") or "#")[0] != "#"]
    assert not re.search(r"@import|url\((?!#)", (TEMPLATES / "report.css").read_text())
    [policy] = [a["content"] for a in markup.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'unsafe-eval' 'sha256-")
    assert "unsafe-inline" not in policy.partition("style-src")[0]


def test_inlined_scripts_cannot_end_their_element():
    for script in Markup(render_html(seed_run())).scripts[1:]:
        assert "<!--" not in script
        assert script.rstrip().endswith("})();"), "cut short by something that reads as the element's end"


def test_headings_form_an_outline_and_tables_are_named():
    markup = Markup(render_html(every_kind()))
    levels = [int(tag[1]) for tag, _ in markup.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(deeper - level <= 1 for level, deeper in pairwise(levels))
    assert {"header", "main", "footer", "caption"} <= {tag for tag, _ in markup.elements}


def test_two_thousand_cells_stay_small_and_are_made_in_time_that_grows_no_faster_than_they_do():
    render_html(seed_run())  # what is made once: the runtime, the specifications, the templates
    small, large = thousands(500), thousands(2000)
    started = time.perf_counter()
    render_html(small)
    between = time.perf_counter()
    text = render_html(large)
    ended = time.perf_counter()
    assert len(text.encode()) < 15 * MEGABYTE
    assert ended - between < 12 * (between - started) + 1

"""The HTML page in a real browser: opening cells, keyboard, colours, narrow screens, paper, and thousands of cells."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from mamba_replay_check.checker.verdict import Kind
from mamba_replay_check.reports.identifiers import rule_of

from ..reports.html_documents import HOSTILE, seed_run

PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "has_touch": True}


def shows(page, words: str) -> None:
    """The opened cell's heading says this, at once or as soon as the browser has told the page of its new address."""
    page.locator("#cell h2").filter(has_text=words).wait_for()


def plots(page, within: str = "#cell") -> int:
    """How many plots are drawn, each with something in it."""
    page.wait_for_function("[...document.querySelectorAll('svg.marks')].every((plot) => plot.querySelector('path'))")
    return page.locator(f"{within} svg.marks").count()


def test_the_worst_finding_is_open_from_the_start_with_all_its_pictures(visit):
    page = visit("seed").page
    shows(page, "double-computed 448 [19968, 20416)")
    assert page.locator("#cell svg.ruler").count() == 1
    assert plots(page) == 2
    assert page.evaluate("scrollY") == 0
    assert page.locator("#cell [data-part='ledger'] tr").all_inner_texts()[1].split() == [
        *("[19968,", "20416)", "448"),
        *("twice:", "double-computed"),
    ]


def test_a_click_on_a_square_opens_its_cell(visit):
    page = visit("seed").page
    page.click(".square[aria-label^='page 128, dcp 8']")
    shows(page, "skipped 1600 [18368, 19968)")
    assert page.inner_text("#cell .where").startswith("Cell 7 of 8: chunk 64, page 128, dcp 8")
    assert page.evaluate("location.hash") == "#cell-7"
    assert page.inner_text("[data-part='command']") == "mamba-replay-check --page 128 --dcp 8"
    assert page.locator(".square[aria-current]").get_attribute("href") == "#cell-7"
    assert page.evaluate("document.querySelector('#cell').getBoundingClientRect().top") < 20


def test_a_click_on_the_opened_square_goes_there_again(visit):
    page = visit("seed").page
    page.click(".square[href='#cell-7']")
    page.evaluate("scrollTo(0, 0)")
    page.click(".square[href='#cell-7']")
    assert page.evaluate("scrollY") > 0


def test_the_keyboard_alone_opens_a_cell(visit):
    page = visit("seed").page
    page.focus("#choice")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#cell-3", "the map's opened square"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is seen"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    shows(page, "skipped")
    page.wait_for_function("document.activeElement.tagName === 'H2'")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").endswith("Previous finding")


def test_arrow_keys_stay_in_the_map(visit):
    page = visit("seed").page
    page.focus(".square[href='#cell-1']")
    for key in ("ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#cell-1"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#cell-3"


def test_an_address_leads_to_its_cell(visit):
    page = visit("seed", "#cell-7").page
    shows(page, "skipped")
    assert page.evaluate("document.querySelector('#cell').getBoundingClientRect().top") < 20


@pytest.mark.parametrize("address", ["#cell-99", "#cell-0", "#cell-x", "#grid", "#"])
def test_an_address_that_leads_nowhere_does_no_harm(visit, address):
    shows(visit("seed", address).page, "double-computed")


def test_back_returns_to_the_cell_before(visit):
    page = visit("seed", "#cell-3").page
    page.click("#cell >> text=Next finding")
    shows(page, "skipped")
    page.go_back()
    shows(page, "double-computed")


def test_the_map_is_drawn_for_one_prompt_or_the_worst(visit):
    page = visit("seed").page
    page.select_option("#choice", label="63")
    assert page.locator(".square:visible").evaluate_all("all => all.map((s) => s.hash)") == [
        *("#cell-2", "#cell-4", "#cell-6", "#cell-8")
    ]
    page.select_option("#choice", value="")
    assert page.locator(".square:visible b").all_inner_texts() == ["448", "1600"]


def test_the_table_is_filtered_by_verdict(visit):
    page = visit("seed").page
    page.select_option("#filter", value="skipped")
    assert page.locator("#cells tbody tr:visible").count() == 1
    page.click(".counts a:has-text('vacuous')")
    assert page.locator("#cells tbody tr:visible").count() == 4
    assert page.input_value("#filter") == "vacuous"


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name.lower())
def test_a_cell_of_every_kind_opens(visit, kind):
    number = list(Kind).index(kind) + 1
    page = visit("kinds", f"#cell-{number}").page
    shows(page, kind)
    assert page.inner_text("[data-part='meaning']") == f"{rule_of(kind).id}: {rule_of(kind).meaning}"
    assert page.locator("#cell svg.ruler").get_attribute("aria-label") == page.inner_text("[data-part='ruler-words']")
    assert page.locator("#cell [data-part='history'] > li").count() == 4
    resumed = kind not in (Kind.VACUOUS, Kind.ENGINE_FAILURE)
    assert plots(page) == (2 if resumed else 0)
    outside = page.evaluate(
        """() => [...document.querySelectorAll('svg.ruler text')].filter((text) => {
            const [own, all] = [text.getBBox(), text.ownerSVGElement.viewBox.baseVal];
            return own.x < 0 || own.x + own.width > all.width || own.y + own.height > all.height;
        }).map((text) => text.textContent)"""
    )
    assert outside == []


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("width", [320, 1200])
def test_rare_cells_are_drawn_without_a_complaint(visit, number, width):
    page = visit("edges", f"#cell-{number}", viewport={"width": width, "height": 800}).page
    assert page.inner_text("#cell .where").startswith(f"Cell {number} ")
    assert page.locator("#cell svg.ruler .ticks").count() == 3
    assert "NaN" not in page.inner_html("#cell") and "undefined" not in page.inner_html("#cell")


def test_text_from_outside_stays_text(visit):
    page = visit("hostile").page
    for number in (1, 2, 3):
        page.goto(page.url.partition("#")[0] + f"#cell-{number}")
        page.wait_for_function(f"document.querySelector('.where').textContent.startsWith('Cell {number} ')")
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert page.evaluate("document.querySelector('[data-part=command]').textContent").startswith(
        HOSTILE.split("\x00")[0]
    )


@pytest.mark.parametrize("clipboard", [True, False], ids=["clipboard", "no clipboard"])
def test_the_command_is_copied(visit, clipboard):
    opened = visit("seed", "#cell-3")
    page = opened.page
    if clipboard:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        page.evaluate("document.addEventListener('copy', () => (window.copied = String(getSelection())))")
    page.click("text=Copy")
    page.wait_for_function("document.querySelector('[data-part=copied]').textContent === 'Copied.'")
    copied = page.evaluate("navigator.clipboard.readText()") if clipboard else page.evaluate("window.copied")
    assert copied == seed_run()["cells"][2]["reproduce"]


def test_where_copying_is_forbidden_the_command_is_left_selected(visit):
    page = visit("seed", "#cell-3").page
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.evaluate("document.execCommand = () => false")
    page.click("text=Copy")
    assert page.inner_text("[data-part='copied']") == "Selected: press Ctrl+C to copy."
    assert page.evaluate("String(getSelection())") == seed_run()["cells"][2]["reproduce"]


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


TEXTS = """() => {
    const behind = (node) => {
        for (; node; node = node.parentElement) {
            const colour = getComputedStyle(node).backgroundColor;
            if (colour !== 'rgba(0, 0, 0, 0)') return colour;
        }
    };
    return [...document.querySelectorAll('body *:not(script, style, option, noscript)')]
        .filter((node) => node.getClientRects().length)
        .filter((node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
        .map((node) => {
            const svg = node.namespaceURI.endsWith('svg');
            const style = getComputedStyle(node);
            if (svg && /on-|plate/.test(node.getAttribute('class') ?? '')) return null;
            return [node.textContent.trim().slice(0, 40), svg ? style.fill : style.color, behind(node)];
        }).filter(Boolean);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["seed", "kinds"])
def test_text_can_be_read_in_both_colour_schemes(visit, scheme, name):
    page = visit(name, color_scheme=scheme).page
    body = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(body) > 0.5) == (scheme == "light")
    found = page.evaluate(TEXTS)
    assert len(found) > 100
    poor = [(text, round(contrast(ink, paper), 2)) for text, ink, paper in found if contrast(ink, paper) < 4.5]
    assert poor == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_follow_the_colour_scheme(visit, scheme):
    page = visit("seed", color_scheme=scheme).page
    lines = page.locator("#cell [data-part='diff'] .mark-line.role-mark path").evaluate_all(
        "all => all.map((line) => getComputedStyle(line).stroke)"
    )
    assert len(set(lines)) == 4, "four layers, four colours"
    card = page.evaluate("getComputedStyle(document.querySelector('#cell')).backgroundColor")
    assert all(contrast(line, card) >= 3 for line in lines)


@pytest.mark.parametrize("width", [320, 360, 768, 1920])
@pytest.mark.parametrize("name", ["seed", "kinds", "hostile"])
def test_nothing_hangs_over_the_edge(visit, name, width):
    page = visit(name, viewport={"width": width, "height": 740}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_pictures_are_redrawn_when_the_width_changes(visit):
    page = visit("seed").page
    wide = page.locator("svg.ruler").bounding_box()["width"]
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_function(f"document.querySelector('svg.ruler').getBoundingClientRect().width < {wide / 2}")
    page.wait_for_function("document.querySelectorAll('#cell svg.marks').length === 2")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("svg.ruler text").first.evaluate("text => getComputedStyle(text).fontSize") == "12px"


def test_paper_shows_every_finding_in_light_colours(visit):
    page = visit("seed", color_scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_function("document.querySelectorAll('#printed article').length === 1")
    page.wait_for_function("document.querySelectorAll('#printed svg.marks').length === 2")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#cell nav").is_visible()
    assert not page.locator("button:visible").count()
    page.emulate_media(media="screen")
    page.wait_for_function("document.querySelectorAll('#printed article').length === 0")


def test_it_prints(visit, tmp_path):
    page = visit("seed").page
    drawn = page.evaluate(
        """() => new Promise((resolve) => {
            const {port1, port2} = new MessageChannel();
            port1.onmessage = () => resolve(document.querySelectorAll('#printed svg.marks path').length);
            dispatchEvent(new Event('beforeprint'));
            port2.postMessage('the next task');
        })"""
    )
    assert drawn > 8, "a printer does not wait longer"
    page.pdf(path=tmp_path / "seed.pdf", format="A4")
    assert (tmp_path / "seed.pdf").stat().st_size > 20_000


def test_two_thousand_cells_are_drawn_only_when_opened(visit):
    page = visit("thousands").page
    assert page.locator(".square").count() == 2000
    assert page.locator("svg.ruler").count() == 1
    assert page.locator("article").count() == 1
    page.evaluate("location.hash = '#cell-1999'")
    page.wait_for_function("document.querySelector('.where').textContent.startsWith('Cell 1999 ')")
    assert page.locator("article").count() == 1


def test_two_thousand_cells_open_about_as_fast_as_eight(visit):
    opening = """() => {
        const started = performance.now();
        for (const n of [2, 3, 4, 5]) { location.hash = `#cell-${n}`; dispatchEvent(new Event('hashchange')); }
        return performance.now() - started;
    }"""
    few, many = visit("seed").page, visit("thousands").page
    few.evaluate(opening)
    assert many.evaluate(opening) < 20 * few.evaluate(opening) + 500


def test_screenshots_of_a_failing_seed_run(visit, tmp_path):
    folder = Path(os.environ.get("MRC_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in {
        "desktop-light": {"color_scheme": "light"},
        "desktop-dark": {"color_scheme": "dark"},
        "phone-light": {**PHONE, "color_scheme": "light"},
        "phone-dark": {**PHONE, "color_scheme": "dark"},
    }.items():
        page = visit("seed", **options).page
        page.screenshot(path=folder / f"{name}.png", full_page=True)
        assert (folder / f"{name}.png").stat().st_size > 50_000

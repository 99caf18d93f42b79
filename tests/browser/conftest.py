"""A real browser for the HTML page: Debian's Chromium, driven by Playwright.

Deselected by default; `pytest -m browser` runs it. It takes `apt-get install chromium` and `pip install '.[test]'`.
Without them these tests skip, except in CI, where nothing may be skipped unseen. Screenshots of a failing seed run are
left in the folder that `MRC_SCREENSHOTS` names, outside the repository.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mamba_replay_check.reports.html import render_html

from ..reports.html_documents import edges, every_kind, hostile, seed_run, thousands

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

DOCUMENTS = {"seed": seed_run, "kinds": every_kind, "edges": edges, "hostile": hostile, "thousands": thousands}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser, started once."""
    path = shutil.which("chromium")
    missing = "" if path else "Debian's chromium is not installed"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing = "Playwright is not installed"
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{missing}: see tests/browser/conftest.py")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a report on one of `DOCUMENTS`, written once."""
    folder = tmp_path_factory.mktemp("reports")

    def path(name: str) -> Path:
        file = folder / f"{name}.html"
        if not file.exists():
            file.write_text(render_html(DOCUMENTS[name]()), encoding="utf-8")
        return file

    return path


@dataclass
class Opened:
    """A page in the browser, with what it said on the console and what it asked the network for."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def visit(chromium: Any, report: Callable[[str], Path]) -> Iterator[Callable[..., Opened]]:
    """Open a report by file://. Afterwards, no page may have complained or asked for anything but itself."""
    visited: list[tuple[Opened, str]] = []
    contexts = []

    def go(name: str, address: str = "", **options: Any) -> Opened:
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.on("console", lambda message: opened.problems.append(f"{message.type}: {message.text}"))
        opened.page.on("pageerror", lambda error: opened.problems.append(str(error)))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto(report(name).as_uri() + address)
        visited.append((opened, report(name).as_uri()))
        return opened

    yield go
    for opened, address in visited:
        assert opened.problems == []
        assert {url.partition("#")[0] for url in opened.requests} == {address}
    for context in contexts:
        context.close()

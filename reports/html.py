"""The discrepancy report: one HTML file that needs nothing but a browser.

The page is laid out by the templates beside this module and carries the run's document as data. The verdict, the
warnings, the heat maps and the table are there without any script; a cell is drawn from the data when it is opened, so
that thousands of them cost nothing. Its address is `#cell-N`, where N counts the document's cells from 1.

Everything that comes from outside is escaped where it enters: by Jinja in the markup, by `embedded` in the data. The
script writes text, never markup. A content security policy lets nothing but the page's own scripts run, each named by
its hash, and lets nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from . import page
from .plots import specifications, vega_runtime

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("base.js", "ruler.js", "plots.js", "words.js", "cell.js", "grid.js", "main.js")
"""Joined in this order into one script."""

_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What markup may not hold: control characters, turns of writing direction, and halves that UTF-8 cannot say."""

DRAWN_ROWS = 300
"""A table of all cells with more rows than this starts folded."""


def render_html(document: dict[str, Any]) -> str:
    """The whole page for a run, from the document that `document.run_as_dict` makes."""
    scripts = [vega_runtime(), _script()]
    phrase, sentence = page.headline(document)
    data = {**document, "kinds": page.slugs(page.LOOKS.values()), "plots": specifications()}
    return (
        _environment()
        .get_template("report.html")
        .render(
            document=document,
            cells=document["cells"],
            phrase=phrase,
            sentence=sentence,
            warnings=page.warnings(document),
            under_test=page.under_test(document),
            counts=page.counts(document),
            choices=page.choices(document),
            facets=page.facets(document),
            kept=page.kept_details(document),
            sizes=page.varying_sizes(document),
            open_table=len(document["cells"]) <= DRAWN_ROWS,
            data=embedded(data),
            style=Markup(_text("report.css")),
            scripts=[Markup(script) for script in scripts],
            policy=policy(scripts),
        )
    )


def embedded(value: Any) -> Markup:
    """JSON that can stand inside a script element, whatever text it holds: no `<`, so no `</script>` and no `<!--`."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def policy(scripts: list[str]) -> str:
    """The content security policy. Vega compiles its expressions, which takes eval; it also sets styles as it draws."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return f"default-src 'none'; script-src 'unsafe-eval' {allowed}; style-src 'unsafe-inline'; img-src data:"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_writable,
    )
    environment.filters["prompt_name"] = page.prompt_name
    environment.globals["look"] = page.look
    return environment


def _writable(value: Any) -> Any:
    """A value on its way into the markup. Markup is our own, and goes in as it is: scripts are named by their hash."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    return value


@cache
def _script() -> str:
    return "\n".join(["(() => {", "'use strict';", *(_text(name) for name in SCRIPTS), "})();"])


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")

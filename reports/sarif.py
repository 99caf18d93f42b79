"""The run as SARIF 2.1.0, for code scanning: one result per discrepancy, at the line that asked for the cell.

GitHub shows a result only where it has a file and a line, and merges results of one rule that share a fingerprint. So
every result is given both: the line of its prompts file, or of the configuration, or else the first of
`pyproject.toml`, where a configuration would stand; and a fingerprint of the cell itself.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from ..checker.verdict import Kind
from .findings import (
    Cell,
    Concern,
    Document,
    Place,
    concerns,
    conclusion,
    depths,
    finding,
    geometry,
    place,
    prompt,
    regressed,
)
from .identifiers import RULES, Level, Rule, rule_of
from .visible import lines, one_line

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FALLBACK = Place("pyproject.toml", 1)


def render_sarif(
    document: Document, source: tuple[str, int] | None = None, documentation: str | None = None
) -> dict[str, Any]:
    """The log as plain JSON values.

    source: file and line of the configuration that the run was started from. Relative paths are taken from the root of
    the repository. documentation: the URL of docs/verdicts.md, where it is published.
    """
    under_test = document["under_test"]
    tested = "/".join(quote(one_line(under_test[name]), "") for name in ("engine", "model", "dtype"))
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver(document, documentation)},
                "automationDetails": {"id": f"mamba-replay-check/{tested}/"},
                "invocations": [_invocation(document)],
                "results": [_result(document, rule, cell, source) for rule, cell in _reported(document)],
                "properties": {"underTest": _clean(under_test), "planned": document["planned"]},
            }
        ],
    }


def _reported(document: Document) -> Iterator[tuple[Rule, Cell]]:
    """Discrepancies, and cells that are right and yet reuse less than their baseline says."""
    for cell in document["cells"]:
        rule = rule_of(cell["verdict"]["kind"])
        if rule.kind.is_discrepancy:
            yield rule, cell
        elif regressed(cell) and rule.kind is Kind.OK:
            yield rule_of(Kind.REUSE_LOST), cell


def _driver(document: Document, documentation: str | None) -> dict[str, Any]:
    version = document["under_test"]["versions"].get("mamba-replay-check")
    return {
        "name": "mamba-replay-check",
        **({"version": one_line(version)} if version else {}),
        "rules": [_descriptor(rule, documentation) for rule in _REPORTED],
        "notifications": [_descriptor(rule, documentation) for rule in _NOTIFIED],
    }


_REPORTED = [rule for rule in RULES if rule.kind.is_discrepancy]
_NOTIFIED = [rule for rule in RULES if not rule.kind.proves_something]


def _descriptor(rule: Rule, documentation: str | None) -> dict[str, Any]:
    help_text = f"{rule.meaning} {rule.advice}"
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": f"{rule.kind.capitalize()}."},
        "fullDescription": {"text": rule.meaning},
        "help": {
            "text": f"{help_text} See {rule.link}.",
            "markdown": f"{rule.meaning}\n\n**What to do.** {rule.advice}\n\nSee `{rule.link}`.",
        },
        **({"helpUri": f"{documentation}#{rule.anchor}"} if documentation else {}),
        "defaultConfiguration": {"level": str(rule.level)},
        "properties": {"tags": ["correctness" if rule.level is Level.ERROR else "performance"]},
    }


def _invocation(document: Document) -> dict[str, Any]:
    """Whether the check was carried out at all; that it found something is not a failure of its own."""
    status = document["baseline"]["exit_status"] if document["baseline"] else document["exit_status"]
    return {
        "executionSuccessful": document["complete"] and status != 3,
        "exitCode": status,
        "exitCodeDescription": f"{conclusion(document)}.",
        "toolExecutionNotifications": [_notification(concern) for concern in concerns(document)],
    }


def _notification(concern: Concern) -> dict[str, Any]:
    named = {"descriptor": {"id": concern.rule.id, "index": _NOTIFIED.index(concern.rule)}} if concern.rule else {}
    return {"level": str(concern.level), "message": _message(f"{concern.text}."), **named}


def _result(document: Document, rule: Rule, cell: Cell, source: tuple[str, int] | None) -> dict[str, Any]:
    where = place(cell, source)
    against = cell["against_baseline"]
    found = finding(cell) if against is None else f"{against['standing']}: {against['why']}"
    text = f"{found}. {geometry(cell)}, prompt {prompt(cell)}: {depths(cell)}.\nReproduce: {cell['reproduce']}"
    fingerprint = _fingerprint(document, cell)
    return {
        "ruleId": rule.id,
        "ruleIndex": _REPORTED.index(rule),
        "level": str(rule.level),
        "message": _message(text),
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": _artifact(where or FALLBACK),
                    "region": {"startLine": (where or FALLBACK).line},
                },
                "logicalLocations": [{"fullyQualifiedName": one_line(f"{geometry(cell)}, prompt {prompt(cell)}")}],
            }
        ],
        # GitHub looks at the first alone, and would else make it from the line, which many cells share.
        "partialFingerprints": {"primaryLocationLineHash": f"{fingerprint[:16]}:1", "cell/v1": fingerprint},
        **(_BASELINE_STATE[against["standing"]] if against else {}),
        "properties": {
            "tokens": cell["verdict"]["tokens"],
            **{name: cell[name] for name in ("claimed_depth", "state_depth", "cached_tokens", "reusable_tokens")},
            "reproduce": _clean(cell["reproduce"]),
        },
    }


_KNOWN = {"suppressions": [{"kind": "external", "justification": "the baseline of this check holds it"}]}
_BASELINE_STATE = {
    "new": {"baselineState": "new"},
    "worse": {"baselineState": "updated"},
    "reuse lost": {"baselineState": "updated"},
    "better": {"baselineState": "updated", **_KNOWN},
    "known": {"baselineState": "unchanged", **_KNOWN},
}


def _fingerprint(document: Document, cell: Cell) -> str:
    """The same finding about the same cell has the same one in every run; how bad it is does not change it."""
    under_test = document["under_test"]
    sizes = [cell[name] for name in ("chunk", "page", "dcp", "interval")]
    parts = [*sizes, cell["prompt"], cell["stream"], under_test["engine"], under_test["guard"], under_test["model"]]
    text = "\0".join(map(str, [*parts, cell["verdict"]["kind"]]))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _artifact(where: Place) -> dict[str, Any]:
    """A path as a URI: from the root of the sources where it is relative."""
    path = posixpath.normpath(where.path)
    uri = quote(one_line(path), "/")
    return {"uri": f"file://{uri}"} if path.startswith("/") else {"uri": uri, "uriBaseId": "%SRCROOT%"}


def _message(text: str) -> dict[str, str]:
    """A sentence of plain text: SARIF reads brackets as links and braces as places to fill in."""
    text = re.sub(r"([\[\]\\])", r"\\\1", lines(text[:1].upper() + text[1:]))
    return {"text": text.replace("{", "{{").replace("}", "}}")}


def _clean(value: Any) -> Any:
    """Values for a property bag, with everything that is not seen written out."""
    if isinstance(value, dict):
        return {one_line(name): _clean(inner) for name, inner in value.items()}
    return one_line(value) if isinstance(value, str) else value

"""The files that a run was asked to leave behind, and what each is rendered with. Always from the run's document."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from . import files

Document = dict[str, Any]
Source = tuple[str, int] | None
"""File and line of the configuration that a run was started from."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where to write what; None for not at all. `github` prints annotations, and adds to the job's summary."""

    json: Path | None = None
    table: Path | None = None
    html: Path | None = None
    junit: Path | None = None
    sarif: Path | None = None
    github: bool = False

    @property
    def paths(self) -> dict[str, Path]:
        """The files that were asked for, by format."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "github"}
        return {name: path for name, path in named.items() if path is not None}

    def check(self) -> None:
        """Raise OutputError for what cannot be written, before any time is spent on what should go there."""
        for name, path in self.paths.items():
            (files.check_table if name == "table" else files.check_writable)(path)

    def save(self, document: Document) -> None:
        """What is kept up to date while a run is going."""
        if self.json is not None:
            files.write_json(document, self.json)
        if self.table is not None:
            files.write_table(document, self.table)

    def write(self, document: Document, source: Source, say: Callable[[str], None]) -> None:
        """Everything, for a finished run. `say` prints a line as it is."""
        self.save(document)
        if self.html is not None:
            from .html import render_html

            files.write_text(render_html(document), self.html)
        if self.junit is not None:
            from .junit import render_junit

            files.write_text(render_junit(document), self.junit)
        if self.sarif is not None:
            from .sarif import render_sarif

            files.write_text(json.dumps(render_sarif(document, source), indent=1) + "\n", self.sarif)
        if self.github:
            from .github import annotations, job_summary

            for line in annotations(document, source):
                say(line)
            if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
                with files.failing_as_output_error(Path(summary)), Path(summary).open("a", encoding="utf-8") as file:
                    file.write(job_summary(document))

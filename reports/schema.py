"""The published JSON Schema (2020-12) of the run's document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("run.schema.json")


def schema() -> dict[str, Any]:
    """The schema as plain JSON values."""
    return json.loads(FILE.read_text(encoding="utf-8"))

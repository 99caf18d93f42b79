"""A driver that knows one exchange by heart: `player.py FILE`. What it is asked must be what FILE says, to the letter.

The exchange is the indented block of a document whose lines begin with `>` (asked) and `<` (answered). A list that is
written `[1, 2, ...]` goes on.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def same(asked: object, written: object) -> bool:
    if isinstance(written, list) and written[-1:] == ["..."]:
        return isinstance(asked, list) and asked[: len(written) - 1] == written[:-1]
    if isinstance(written, dict):
        return (
            isinstance(asked, dict)
            and list(asked) == list(written)
            and all(same(asked[key], written[key]) for key in written)
        )
    return asked == written


for line in re.findall(r"^    ([<>] .*)$", Path(sys.argv[1]).read_text(encoding="utf-8"), re.MULTILINE):
    side, message = line[0], json.loads(line[2:].replace("...", '"..."'))
    if side == "<":
        print(json.dumps(message), flush=True)
    elif not same(asked := json.loads(sys.stdin.readline()), message):
        sys.exit(f"asked {str(asked)[:200]}, where the document has {message}")

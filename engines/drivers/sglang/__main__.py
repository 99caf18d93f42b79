"""Run by the Python of an environment that holds SGLang: `PYTHON engines/drivers/sglang`. See driver.py."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # at the end: its folders are named like engines

import wire


def make() -> wire.Driver:
    """SGLang prints while it is imported, so this runs after standard output is set aside."""
    import cpu

    cpu.prepare()
    from driver import SGLangDriver

    return SGLangDriver()


wire.main(make)

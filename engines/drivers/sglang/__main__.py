"""Run by the Python of an environment that holds SGLang: `PYTHON engines/drivers/sglang [--overlap]`. See driver.py."""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # at the end: its folders are named like engines

import wire


def make() -> wire.Driver:
    """SGLang prints while it is imported, so this runs after standard output is set aside."""
    import cpu

    cpu.prepare()
    from driver import SGLangDriver

    return SGLangDriver(overlap=options.overlap)


parser = argparse.ArgumentParser(description="SGLang behind the engine protocol, on standard input and output.")
parser.add_argument("--overlap", action="store_true", help="process results as SGLang's overlapped scheduler does")
options = parser.parse_args()
wire.main(make)

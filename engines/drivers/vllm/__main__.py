"""Run by the Python of an environment that holds vLLM: `PYTHON engines/drivers/vllm [--raised]`. See driver.py."""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # at the end: its folders are named like engines

import wire


def make() -> wire.Driver:
    """vLLM prints while it is imported, so this runs after standard output is set aside."""
    import cpu

    cpu.prepare()
    from driver import VLLMDriver

    return VLLMDriver(raised=options.raised)


parser = argparse.ArgumentParser(description="vLLM behind the engine protocol, on standard input and output.")
parser.add_argument(
    "--raised",
    action="store_true",
    help="the block is one that vLLM raised by itself to the size of a state, as it does when nobody names one",
)
options = parser.parse_args()
wire.main(make)

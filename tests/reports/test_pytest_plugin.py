"""The fixture that checks an engine inside its own test suite, run in a suite of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest
from mamba_replay_check.engines.sglang_model import SGLangModel
from mamba_replay_check.engines.sglang_rules import RELEASES

class Right(SGLangModel):
    def __init__(self, geometry):
        super().__init__(geometry, RELEASES[-1], guard=False)

class Wrong(SGLangModel):
    def __init__(self, geometry):
        super().__init__(geometry, RELEASES[0], guard=False)

pytestmark = pytest.mark.mamba_replay(model="qwen3-next", prompt="512+400n70", page=64, dcp=4)

def test_right(mamba_replay):
    assert len(mamba_replay(Right).results) == 1

def test_wrong(mamba_replay):
    mamba_replay(Wrong)

def test_proves_nothing(mamba_replay):
    mamba_replay(Right, prompt="63")

def test_by_name(mamba_replay):
    mamba_replay("model:sglang-0.5.23")

def test_no_such_choice(mamba_replay):
    mamba_replay(Right, pages=64)
"""


def test_three_lines_check_an_engine(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    found = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    found.assert_outcomes(passed=2, failed=3)
    found.stdout.fnmatch_lines(
        [
            "*MRC001 double-computed 128 [[]768, 896)*",
            "*### 128 double-computed*",
            "*reproduce: mamba-replay-check*--prompt 512+400n70*",
        ]
    )
    found.stdout.fnmatch_lines(["*inconclusive*", "*vacuous*"])
    found.stdout.fnmatch_lines(["*replay has no choice 'pages': it takes chunk, page*"])


def test_the_plugin_costs_a_suite_nothing_that_does_not_use_it() -> None:
    code = (
        "import sys, mamba_replay_check.reports.pytest_plugin\n"
        "print(*{'torch', 'triton', 'fla', 'pandas', 'typer', 'rich', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

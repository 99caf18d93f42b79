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

def test_one_of_two_prompts_proves_nothing(mamba_replay):
    mamba_replay(Right, prompt=["63", "512+400n70"])

@pytest.mark.mamba_replay(dcp=1)
def test_own_marker_adds_to_the_module_s(mamba_replay):
    (result,) = mamba_replay(Right).results
    assert (result.cell.geometry.dcp, result.cell.geometry.page) == (1, 64)

def test_no_command_can_name_it(mamba_replay):
    mamba_replay(lambda geometry: Wrong(geometry))

def test_no_such_dtype(mamba_replay):
    mamba_replay(Right, dtype="float99")

def test_an_engine_of_one_s_own_has_its_own_guard(mamba_replay):
    mamba_replay(Right, guard=True)

def test_not_a_class(mamba_replay):
    from mamba_replay_check.checker.geometry import Geometry
    mamba_replay(Right(Geometry(64, 64, 1, 256)))

@pytest.mark.mamba_replay(64)
def test_marker_without_keywords(mamba_replay):
    mamba_replay(Right)
"""


def test_three_lines_check_an_engine(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    found = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    found.assert_outcomes(passed=3, failed=8, errors=1)
    said = found.stdout.str()
    assert "run this test again" in said
    assert "1 of 2 cells are vacuous" in said
    assert "mamba_replay: unknown dtype 'float99': use one of float32" in said
    assert "mamba_replay: guard is a choice of the modelled engines" in said
    assert "makes no engines: give a class" in said
    assert "takes choices by keyword, not (64,)" in said
    found.stdout.fnmatch_lines(
        [
            "*MRC001 double-computed 128 [[]768, 896)*",
            "*### 128 double-computed*",
            "*reproduce: mamba-replay-check*--prompt 512+400n70*",
        ]
    )
    found.stdout.fnmatch_lines(["*inconclusive*", "*vacuous*"])
    found.stdout.fnmatch_lines(["*replay has no choice 'pages': it takes chunk, page*"])


OTHER_SUITE = """
import sys

def test_nothing_of_ours():
    assert not {"torch", "triton", "numpy", "typer"} & set(sys.modules)
"""


@pytest.mark.parametrize("options", [(), ("-p", "no:mamba_replay")], ids=["loaded", "turned off"])
def test_another_suite_goes_on_as_before(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(OTHER_SUITE)
    only_ours = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist")
    found = pytester.runpytest_subprocess(*only_ours, "--markers", *options)
    assert ("@pytest.mark.mamba_replay" in found.stdout.str()) == (not options)
    pytester.runpytest_subprocess(*only_ours, *options).assert_outcomes(passed=1)


def test_the_plugin_costs_a_suite_nothing_that_does_not_use_it() -> None:
    code = (
        "import sys, mamba_replay_check.reports.pytest_plugin\n"
        "print(*{'torch', 'triton', 'fla', 'pandas', 'typer', 'rich', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

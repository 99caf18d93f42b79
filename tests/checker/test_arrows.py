"""The import arrows of the rooms: reports -> checker -> {scenarios, engines, kernels, reference}, and never back."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec, resolve_name
from pathlib import Path

import pytest

PACKAGE = "mamba_replay_check"
BOTTOM = {"checker.geometry", "checker.layers"}

MAY_IMPORT = {
    "engines": {"engines"} | BOTTOM,
    "kernels": {"kernels"} | BOTTOM,
    "reference": {"reference"} | BOTTOM,
    "scenarios": {"scenarios", "checker.geometry"},
    "checker": {"checker", "scenarios", "engines", "kernels", "reference"},
    "reports": {"reports", "checker", "scenarios", "engines", "kernels", "reference"},
}


def modules(room: str) -> dict[str, Path]:
    """Every module of a room by its dotted name, without the package's."""
    root = next(iter(find_spec(f"{PACKAGE}.{room}").submodule_search_locations))
    return {".".join([room, *path.relative_to(root).with_suffix("").parts]): path for path in Path(root).rglob("*.py")}


def imported(name: str, path: Path) -> set[str]:
    """Our own modules that a module imports anywhere in its text, inside functions too."""
    found = set()
    here = f"{PACKAGE}.{name}".rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), here) if node.level else node.module
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return {each.removeprefix(f"{PACKAGE}.") for each in found if each.startswith(f"{PACKAGE}.")}


def within(name: str, allowed: set[str]) -> bool:
    """Whether a name is a module that is allowed, lies in a room that is, or is something inside such a module."""
    return any(name == each or name.startswith(f"{each}.") for each in allowed)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_arrows(room: str) -> None:
    assert modules(room)
    for name, path in modules(room).items():
        own = imported(name, path)
        # `from ..checker.geometry import Geometry` names both the module and what is in it, and its room on the way.
        wrong = {each for each in own if not within(each, MAY_IMPORT[room])}
        assert not wrong, f"{name} imports {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("name", sorted(BOTTOM))
def test_the_bottom_imports_nothing_of_ours(name: str) -> None:
    assert imported(name, modules("checker")[name]) == set()


def test_the_test_can_fail(tmp_path: Path) -> None:
    (tmp_path / "rogue.py").write_text(
        "def f():\n    from ..checker import judge\n    from mamba_replay_check.kernels.stack import Stack\n"
    )
    found = imported("engines.rogue", tmp_path / "rogue.py")
    assert {"checker", "checker.judge", "kernels.stack"} <= found
    assert not within("checker.judge", MAY_IMPORT["engines"])
    assert not within("kernels.stack", MAY_IMPORT["engines"])
    assert within("checker.geometry.floor_to", MAY_IMPORT["engines"])


def test_planning_a_grid_does_not_load_torch() -> None:
    """Loading it takes seconds, which a mistake on the command line should not cost."""
    code = (
        "import sys\n"
        "from mamba_replay_check.reports.app import DType\n"
        "from mamba_replay_check.reports.config import Choices, load\n"
        "config = load(Choices(page='1..128..x2', dcp='1..8', model='qwen3-next'))\n"
        "assert len(config.cells) > 200, len(config.cells)\n"
        "print(*{'torch', 'triton', 'fla', 'pandas', 'tokenizers'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

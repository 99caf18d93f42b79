"""Prompts that part: what the donor left behind the parting belongs to other tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from mamba_replay_check.checker.cells import Cell, CellResult
from mamba_replay_check.checker.verdict import Kind
from mamba_replay_check.engines.base import Donation, Engine, Match, Payload, RequestId, Snapshots
from mamba_replay_check.scenarios.prompt import Prompt
from mamba_replay_check.scenarios.tokens import parted

from .conftest import GEOMETRY, modelled, result_of


class Keeper(Engine):
    """Keeps the states of the given depths, and hands out the deepest that it may; if careless, of all."""

    name = "keeper"

    def __init__(self, depths: Sequence[int], cut: bool = False, careless: bool = False) -> None:
        self.depths, self.cut, self.careless = depths, cut, careless
        self.tokens: list[int] = []
        self.kept: dict[int, Payload] = {}

    def match(self, tokens: Sequence[int]) -> Match:
        same = next((i for i, pair in enumerate(zip(self.tokens, tokens, strict=False)) if pair[0] != pair[1]), 10**6)
        found = [depth for depth in self.kept if depth < len(tokens) and (depth <= same or self.careless)]
        self.tokens = self.tokens or list(tokens)
        if not found:
            return Match(0, 0, None, None)
        return Match(0, max(found), self.kept[max(found)], max(found))

    def extend(self, request: RequestId, start: int, end: int, snapshots: Snapshots) -> None:
        for depth in self.depths:
            if start < depth < end:
                at_chunk = (depth - start) // 64
                self.kept[depth] = snapshots.cut(depth) if self.cut else snapshots.take(at_chunk, depth)

    def decode(self, request: RequestId, token: int, snapshots: Snapshots) -> None: ...

    def finish(self, request: RequestId) -> None: ...

    @property
    def donations(self) -> Sequence[Donation]:
        return ()


def test_other_tokens_from_the_parting_on() -> None:
    assert parted([4, 5, 6, 7], 2) == [4, 5, 7, 6]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("share", [True, False])
def test_a_state_that_is_shared_is_right(cut: bool, share: bool) -> None:
    found = result_of(lambda cell: Keeper([512, 768], cut), Prompt((900,), next_turn=200, branch=600), share=share)
    assert (str(found.verdict), found.replay.cached_tokens) == ("ok", 512)
    assert found.replay.taken[-1].depth == 768


@pytest.mark.parametrize("share", [True, False])
def test_a_state_behind_the_parting_is_foreign(share: bool) -> None:
    """The clean twin is above: the same states, and an engine that compares tokens."""
    prompt = Prompt((900,), next_turn=200, branch=600)
    found = result_of(lambda cell: Keeper([512, 768], careless=True), prompt, share=share)
    assert str(found.verdict) == "foreign state: the state matches the prompt at no depth"
    assert found.diff.first_wrong == 768


def test_what_is_kept_behind_the_parting_alone_is_lost() -> None:
    found = result_of(lambda cell: Keeper([768]), Prompt((900,), next_turn=200, branch=600))
    assert str(found.verdict) == "reuse lost 512 [0, 512)"


@pytest.mark.parametrize(
    "prompt, reusable",
    [
        (Prompt((900,), next_turn=1), 768),
        (Prompt((900,), next_turn=1, branch=899), 768),
        (Prompt((900,), next_turn=1, branch=767), 512),
        (Prompt((900,), next_turn=1, branch=768), 768),
        (Prompt((900,), next_turn=1, branch=255), 0),
        (Prompt((500, 400), next_turn=9, branch=600), 256),
        (Prompt((100,), 900, next_turn=9, branch=600), 512),
    ],
)
def test_reusable(prompt: Prompt, reusable: int) -> None:
    assert Cell(GEOMETRY, prompt, "seeded").reusable == reusable


def test_a_modelled_engine() -> None:
    """It keeps one state a pass: where prompts part before it, nothing is left to resume from."""
    found: CellResult = result_of(modelled(), Prompt((512, 400), next_turn=300, branch=600))
    assert (found.verdict.kind, found.replay.cached_tokens) == (Kind.OK, 512)
    found = result_of(modelled(), Prompt((912,), next_turn=300, branch=600))
    assert str(found.verdict) == "reuse lost 512 [0, 512)"

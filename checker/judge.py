"""From measurements to a verdict: two independent accounts of the same cell, which must tell the same story.

*Bookkeeping*: the snapshot's tag says how many tokens its state absorbed, the match says where the engine resumes.
*Numbers*: the locator says where the state really stands, the diff says whether the resumed run computes what the cold
run did. A wrong depth must show in the numbers, from the first resumed token on; a right one must not.
"""

from __future__ import annotations

from ..engines.base import Fate
from .cells import Cell, Replay
from .diff import Diff
from .locate import Location, Standing
from .verdict import Kind, Part, Verdict


def judge_unresumed(cell: Cell, replay: Replay) -> Verdict:
    """A cell whose resuming prompt got nothing from the cache."""
    if replay.failure:
        return Verdict(Kind.ENGINE_FAILURE, reason=replay.failure)
    assert replay.cached_tokens == 0, "an engine that resumes has numbers to be judged by"
    if cell.reusable:
        return _lost(cell, replay)
    page = cell.geometry.tree_page
    if cell.prompt.resume_length <= page:
        return Verdict(
            Kind.VACUOUS, reason=f"the prompt of {cell.prompt.resume_length} tokens fills no tree page of {page}"
        )
    return Verdict(Kind.VACUOUS, reason="the donor's history leaves no state that this prompt could start from")


def judge(cell: Cell, replay: Replay, location: Location, difference: Diff) -> Verdict:
    """A cell that was resumed and measured."""
    unfit = _unfit(cell, replay, location)
    if unfit:
        return unfit
    if location.depth != replay.cached_tokens:
        if replay.cached_tokens in location.depths and difference.is_clean:
            return _span(location.depth, replay, Part.STATE, "without effect on this prompt, which repeats itself")
        return _misaligned(location.depth, replay, Part.STATE, difference)
    if location.windows and replay.cached_tokens not in location.windows:
        nearest = min(location.windows, key=lambda depth: abs(depth - replay.cached_tokens))
        return _misaligned(nearest, replay, Part.WINDOW, difference)
    if not difference.is_clean:
        size = f"hidden states are off by up to {difference.largest:.1e}, {difference.over_noise:.0f}x the noise floor"
        if not location.windows:
            return Verdict(Kind.FOREIGN, reason="the convolution window matches the prompt at no depth")
        for part, distance in (("state", location.distance), ("convolution window", location.window_distance)):
            if distance > difference.noise.limit:
                return Verdict(Kind.PRECISION, reason=f"the {part} was rounded by {distance:.1e}: {size}")
        return Verdict(Kind.DISAGREEMENT, reason=f"the state stands at the right depth, and yet {size}")
    if replay.cached_tokens < cell.reusable:
        return _lost(cell, replay)
    return Verdict(Kind.OK)


def _unfit(cell: Cell, replay: Replay, location: Location) -> Verdict | None:
    """States that no depth can be given to, and accounts that contradict each other."""
    if location.standing is Standing.UNWRITTEN:
        return Verdict(Kind.UNWRITTEN, reason="nothing was ever written to the slot that the state came from")
    if location.standing is Standing.NOWHERE:
        return Verdict(Kind.FOREIGN, reason="the state matches the prompt at no depth")
    if location.standing is Standing.LAYERS_DISAGREE:
        depths = ", ".join(f"layer {layer} at {depth}" for layer, depth in location.by_layer.items())
        return Verdict(Kind.FOREIGN, reason=f"the layers' states stand at different depths: {depths}")
    if location.depth > cell.prompt.resume_length:
        return Verdict(Kind.FOREIGN, reason=f"the state has absorbed {location.depth} tokens, more than the prompt has")
    if replay.state_depth is not None and replay.state_depth != location.depth:
        return Verdict(
            Kind.DISAGREEMENT,
            reason=f"the snapshot is tagged {replay.state_depth}, but its numbers stand at {location.depth}",
        )
    return None


def _misaligned(depth: int, replay: Replay, part: Part, difference: Diff) -> Verdict:
    """The state (or its window) stands elsewhere than where the engine resumes."""
    if difference.first_wrong != replay.cached_tokens:
        where = "nowhere" if difference.first_wrong is None else f"only from token {difference.first_wrong}"
        return Verdict(
            Kind.DISAGREEMENT,
            reason=f"the {part} stands at {depth} and the engine resumes at {replay.cached_tokens}, "
            f"yet hidden states differ {where}",
        )
    return _span(depth, replay, part)


def _span(depth: int, replay: Replay, part: Part, reason: str = "") -> Verdict:
    kind = Kind.DOUBLE_COMPUTED if depth > replay.cached_tokens else Kind.SKIPPED
    low, high = sorted((depth, replay.cached_tokens))
    return Verdict(kind, low, high, reason, part)


def _lost(cell: Cell, replay: Replay) -> Verdict:
    """Right, but from a shallower state than the donor's history allows."""
    refused = [d for d in replay.donations if d.fate is Fate.REFUSED]
    if refused:
        last = refused[-1]
        reason = f"a guard rejected the state of depth {last.claimed_depth} for the node that ends at {last.node_depth}"
        return Verdict(Kind.REFUSED, replay.cached_tokens, cell.reusable, reason)
    return Verdict(Kind.REUSE_LOST, replay.cached_tokens, cell.reusable)

"""A real SGLang release behind the engine protocol, on a machine with no GPU and with no model.

Run by the Python of an environment that has the release: `python sglang_driver.py`. SGLang's own code does everything
that decides what is reused: server arguments, request and batch preparation (`ScheduleBatch.prepare_for_extend`,
`prepare_for_decode` and the snapshot tracker in them), allocators and pools on the page that dcp widens, the attention
backend's choice of what to copy, the copy on match, the radix tree, and the result processor's bookkeeping. Its Triton
kernels (allocation, tracking in decode) run in Triton's interpreter.

Not SGLang's: the model, whose recurrent states come from the checker. Where a backend's forward pass would write what
its kernels computed, this writes what the checker gives: the intermediate states `h`, the final state into the
request's active slot, and the convolution inputs. The scheduler's event loop is not run either; requests are admitted,
cut into passes and finished as the checker says, in the order in which that loop calls the same functions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import wire

os.environ["TRITON_INTERPRET"] = "1"

DIGITS = 16
"""A snapshot's number stands in a slot as base-16 digits, which every number format that SGLang stores holds."""

TAG_SHAPES = [((1, DIGITS, 1), (3, DIGITS))]
"""One small layer, (recurrent, window), where numbers stand for states."""


@dataclass
class Live:
    """A request that is being served. prompt: its length, where prefill ends."""

    number: int
    req: Any
    prompt: int
    batch: Any = None
    decoding: bool = False


@dataclass
class Cache:
    """One open cache: SGLang's objects for one geometry.

    claimed: by slot of the pool, the depth under which the state in it was donated.
    donor:   (request, depth written down) while a request is being cached.
    donated: donations since the last answer.
    """

    model_config: Any
    pool: Any
    allocator: Any
    tree: Any
    backend: Any
    processor: Any
    tensors: bool
    layers: int
    live: dict[int, Live] = field(default_factory=dict)
    requests: int = 0
    claimed: dict[int, int] = field(default_factory=dict)
    donor: tuple[int, int | None] | None = None
    donated: list[dict[str, Any]] = field(default_factory=list)


class SGLang:
    """The driver of whatever release can be imported."""

    def __init__(self) -> None:
        import sglang_release

        self.release = sglang_release.load()
        self.cache: Cache | None = None

    def hello(self) -> dict[str, Any]:
        import torch
        import triton

        versions = {
            "sglang": self.release.version,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": sys.version.split()[0],
        }
        return {"engine": f"sglang {self.release.version}", "versions": versions, "payloads": ["tag", "tensors"]}

    # ---- calls ------------------------------------------------------------------------------------------------------

    def open(self, call: wire.Call) -> None:
        geometry, tensors = call["geometry"], call["payload"] == "tensors"
        dtype, shapes = wire.layout(call) if tensors else ("float32", TAG_SHAPES)
        release = self.release
        args, model_config = release.configure(geometry)
        pool, allocator, tree = release.memory(geometry, call["tokens"], shapes, dtype)
        backend = release.backend(args, model_config, pool)
        processor = release.processor(tree)
        self.cache = Cache(model_config, pool, allocator, tree, backend, processor, tensors, len(shapes))
        self._watch_inserts(self.cache)

    def match(self, call: wire.Call) -> dict[str, Any]:
        cache, release = self.cache, self.release
        number = cache.requests
        cache.requests += 1
        req = release.request(str(number), call["tokens"])
        req.init_next_round_input(cache.tree)
        release.lock(cache, req)
        cache.live[number] = Live(number, req, len(call["tokens"]))
        answer: dict[str, Any] = {"request": number, "cached_tokens": release.reached(req), "snapshot": None}
        source = release.state_of(req).mamba_cow_src_index
        if source is None:
            return answer
        answer["claimed_depth"] = cache.claimed.get(int(source))
        # The copy is left to the forward pass that resumes, which would start from the slot that it copies to.
        release.run_deferred(cache, release.copies_of(req))
        slot = int(release.state_of(req).mamba_pool_idx)
        if cache.tensors:
            answer["state"] = self._read_state(slot)
        else:
            answer["snapshot"] = self._read_tag(slot)
        return answer

    def extend(self, call: wire.Call, take: wire.Take) -> list[dict[str, Any]]:
        cache, release, live = self.cache, self.release, self.cache.live[call["request"]]
        start, end, req = call["start"], call["end"], live.req
        last = end == live.prompt
        if live.batch is not None:  # a later pass goes on where the request stands, without another match
            req.init_next_round_input()
        assert release.reached(req) == start, f"the request stands at {release.reached(req)}, the pass at {start}"
        live.batch = release.batch(cache, req, start, end, chunked=not last)
        self._run_extend(live, take)
        if not last:
            with self._donating(live):
                release.stash(cache, req)
        return self._donations()

    def decode(self, call: wire.Call, take: wire.Take) -> list[dict[str, Any]]:
        cache, live = self.cache, self.cache.live[call["request"]]
        live.req.output_ids.append(call["token"])
        if not live.decoding:  # what the scheduler does with the result of the last prefill pass
            live.decoding = True
            with self._donating(live):
                self.release.prefilled(cache, live.req)
        live.batch.prepare_for_decode()
        self._run_decode(live, take)
        cache.processor._mamba_prefix_cache_update(live.req, live.batch, None, 0)
        return self._donations()

    def finish(self, call: wire.Call) -> list[dict[str, Any]]:
        live = self.cache.live.pop(call["request"])
        live.req.output_ids.append(0)  # sampled from the last pass; nothing has absorbed it
        with self._donating(live):
            self.release.finish(self.cache, live.req)
        return self._donations()

    # ---- forward passes ---------------------------------------------------------------------------------------------

    def _run_extend(self, live: Live, take: wire.Take) -> None:
        """What the attention backend does around its kernels in a prefill pass, layer by layer."""
        import torch

        cache, batch = self.cache, live.batch
        forward = self.release.extend_forward(batch)
        self.release.run_deferred(cache, forward)
        cache.backend.init_forward_metadata(forward)
        metadata = cache.backend.forward_metadata
        if not metadata.has_mamba_track_mask:
            return
        # One request in the batch: its windows and its h begin at 0.
        conv_end = batch.prefix_lens[0] + int(metadata.track_conv_indices.flatten()[-1]) + 1
        from_h = [int(row) for row in metadata.track_ssm_h_src]
        from_final = [int(slot) for slot in metadata.track_ssm_final_src]
        assert len(from_h) + len(from_final) == 1, "one request has one snapshot a pass"
        taken = take(from_h[0] if from_h else None, conv_end)
        (window_to,) = (int(slot) for slot in forward.mamba_track_indices[forward.mamba_track_mask])
        for layer in range(cache.layers):
            conv, temporal = self._slots(layer)
            recurrent, window = self._laid_out(taken, layer, conv, temporal)
            conv[window_to] = window.to(conv.dtype)
            h = None
            if from_h:
                h = torch.zeros((1, from_h[0] + 1, *temporal.shape[1:]), dtype=recurrent.dtype)
                h[0, from_h[0]] = recurrent
            else:
                temporal[from_final[0]] = recurrent.to(temporal.dtype)
            cache.backend._track_mamba_state_extend(forward, h, temporal, metadata)

    def _run_decode(self, live: Live, take: wire.Take) -> None:
        """The same for one decode step. The active slot is written only where a snapshot of it is due."""
        cache, batch = self.cache, live.batch
        forward = self.release.decode_forward(batch)
        cache.backend.init_forward_metadata(forward)
        if not bool(forward.mamba_track_mask.any()):
            return
        taken = take(None, int(batch.seq_lens_cpu[0]))
        slots = cache.backend.forward_metadata.mamba_cache_indices
        for layer in range(cache.layers):
            conv, temporal = self._slots(layer)
            recurrent, window = self._laid_out(taken, layer, conv, temporal)
            conv[int(slots[0])] = window.to(conv.dtype)
            temporal[int(slots[0])] = recurrent.to(temporal.dtype)
            cache.backend._track_mamba_state_decode(forward, conv, temporal, slots)

    # ---- slots of the pool ------------------------------------------------------------------------------------------

    def _slots(self, layer: int) -> tuple[Any, Any]:
        """([slots, channels, tokens] of the windows, [slots, heads, value dim, key dim] of the states) of a layer."""
        mamba = self.cache.pool.mamba2_layer_cache(layer)
        return mamba.conv[0], mamba.temporal

    def _laid_out(self, taken: wire.Taken, layer: int, conv: Any, temporal: Any) -> tuple[Any, Any]:
        """A snapshot's tensors as SGLang lays them out: value dim before key dim, channels before tokens."""
        import torch

        if taken.state is None:
            digits = torch.tensor([taken.snapshot >> 4 * place & 15 for place in range(DIGITS)], dtype=torch.float32)
            return digits.reshape(1, 1, DIGITS).expand(temporal.shape[1:]), digits[:, None].expand(conv.shape[1:])
        own = taken.state[layer]
        return wire.decoded(own["recurrent"]).transpose(-1, -2), wire.decoded(own["window"]).T

    def _read_tag(self, slot: int) -> int:
        conv, temporal = self._slots(0)
        numbers = {
            sum(round(float(digit)) << 4 * place for place, digit in enumerate(digits))
            for digits in (temporal[slot].flatten(), conv[slot][:, 0])
        }
        if len(numbers) > 1:
            raise RuntimeError(
                f"the slot holds the recurrent state of one snapshot and the window of another: {sorted(numbers)}; "
                "--payload tensors shows where they stand"
            )
        return numbers.pop()

    def _read_state(self, slot: int) -> list[dict[str, Any]]:
        states = []
        for layer in range(self.cache.layers):
            conv, temporal = self._slots(layer)
            recurrent = wire.encoded(temporal[slot].transpose(-1, -2))
            states.append({"recurrent": recurrent, "window": wire.encoded(conv[slot].T)})
        return states

    # ---- what reaches the tree --------------------------------------------------------------------------------------

    @contextmanager
    def _donating(self, live: Live) -> Iterator[None]:
        """While SGLang caches this request: the depth that it has written down for what it may donate."""
        cache = self.cache
        cache.donor = (live.number, self.release.state_of(live.req).mamba_last_track_seqlen)
        try:
            yield
        finally:
            cache.donor = None

    def _watch_inserts(self, cache: Cache) -> None:
        """Note what the tree's own `insert` is called with and what it says. Nothing is changed."""
        insert = cache.tree.insert

        def noted(params: Any, *rest: Any, **others: Any) -> Any:
            result = insert(params, *rest, **others)
            request, depth = cache.donor or (0, None)
            if depth is not None and params.mamba_value is not None:
                node = len(params.key)
                fate = "no node" if node == 0 else "already there" if result.mamba_exist else "attached"
                if fate == "attached":
                    cache.claimed[int(params.mamba_value)] = depth
                cache.donated.append({"request": request, "claimed_depth": depth, "node_depth": node, "fate": fate})
            return result

        cache.tree.insert = noted

    def _donations(self) -> list[dict[str, Any]]:
        donated, self.cache.donated = self.cache.donated, []
        return donated


if __name__ == "__main__":
    wire.serve(SGLang)

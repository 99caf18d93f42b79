"""SGLang behind the protocol: its scheduler's batches, tracker, pools, allocator and radix tree, with no model.

Every decision is made by the release's own code, in the order in which its scheduler calls it:

    match    Req.init_next_round_input -> match_prefix; the deferred copy on match is carried out by the ModelRunner's
             `_maybe_execute_deferred_mamba_cow_and_clear`
    extend   ScheduleBatch.prepare_for_extend (allocation, the tracker), the attention backend's metadata (which state
             and which window are copied), its `_track_mamba_state_extend`, the scheduler's `stash_chunked_request`
             between passes
    decode   ScheduleBatch.prepare_for_decode, the backend's `_track_mamba_state_decode`, and the batch result processor
    finish   the batch result processor, which releases a request that has reached its length

What is not SGLang's:

- the kernels' arithmetic: wherever a kernel would leave a state that is copied, the checker's is taken. As the KDA
  kernels do, it is rounded to the activations' dtype when it is an intermediate one, until 0.5.20 keeps it whole;
- the copy of the convolution's window out of a prefill pass, one line in the middle of each backend's kernels: the
  rows are the ones that the backend's `_init_track_conv_indices` names;
- admission: the history says where prefill is cut, so the token budget (PrefillAdder) is not asked. Since 0.5.21 it
  keeps cuts on the kernel's chunk under dcp, where a history may not;
- when a result is processed: after the last pass of a prompt the next call tells whether it was the last token's, so
  it waits for that call. Without the driver's option `--overlap` it then comes before the next pass is prepared, as
  with SGLang's `--disable-overlap-schedule` (though with the two track slots of the default); with it, after;
- a Req's text, its sampling, streaming and metrics.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import releases
import sglang
import torch
import transformers
import triton
import wire
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.layers.attention.hybrid_linear_attn_backend import MambaAttnBackendBase
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from slots import PAST_THE_END, Layout

MOST_REQUESTS = 16
"""Requests that may be live at once."""

MOST_STATES = 256
"""Slots for states: none is evicted from the tree within a cell, as eviction is not what is checked."""

MOST_DECODED = 4096
"""Decode steps of one request."""

PROMPTS = 24
"""Prompts of full length whose KV fits."""

VOCABULARY = 1 << 24

LAST_TOKEN = 1
"""What a finishing request ends on. No pass absorbs it."""


@dataclass
class Live:
    """A request, its batch of one, and the donations of the call at hand."""

    number: int
    req: Req
    batch: ScheduleBatch | None = None
    donations: list[wire.Donation] = field(default_factory=list)


class Backend(MambaAttnBackendBase):
    """The base of the GDN and KDA backends, which works out what is copied; those add their kernels."""

    def __init__(self, runner: Any) -> None:
        super().__init__(runner)
        self.conv_states_shape = runner.req_to_token_pool.mamba_pool.mamba_cache.conv[0].shape


class Unheard:
    """Stands where the scheduler tells the world what it did: streams, metrics. It keeps two counters there."""

    num_generated_tokens = 0
    forward_ct_decode = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: ()


class Cache:
    """One empty SGLang cache, and all that the scheduler holds around it."""

    def __init__(
        self,
        geometry: wire.Geometry,
        tokens: int,
        activations: torch.dtype,
        layers: Sequence[wire.Layer],
        overlap: bool,
    ) -> None:
        """activations: what the kernels compute in."""
        self.overlap = overlap
        self.activations = activations
        tree_page = geometry.page * geometry.dcp
        self.layout = Layout(layers)
        config = SimpleNamespace(mamba_chunk_size=geometry.chunk)
        self.model_config = SimpleNamespace(
            hf_config=config,
            hf_text_config=config,
            vocab_size=VOCABULARY,
            is_encoder_decoder=False,
            is_multimodal=False,
            think_end_ids=None,
            self_opened_think_start_ids=None,
            context_len=tokens + MOST_DECODED,
        )
        server_args = ServerArgs(
            model_path="none",
            page_size=geometry.page,
            dcp_size=geometry.dcp,
            tp_size=geometry.dcp,
            mamba_radix_cache_strategy="extra_buffer",
            mamba_track_interval=geometry.interval,
            attention_backend="torch_native",
            disable_overlap_schedule=not overlap,
            device="cpu",
        )
        releases.give_model_config(server_args, self.model_config)
        set_global_server_args_for_scheduler(server_args)

        recurrent_layers = list(range(self.layout.layer_count))
        heads, values, keys = self.layout.temporal
        channels, window = self.layout.conv
        shape = Mamba2StateShape(
            conv=[(channels, window)],
            temporal=(heads, values, keys),
            intermediate_size=heads * values,
            conv_dim=channels,
            ssm_state_size=keys,
            num_heads=heads,
            head_dim=values,
            state_size=keys,
            conv_kernel=window + 1,
        )
        self.requests = HybridReqToTokenPool(
            size=MOST_REQUESTS,
            mamba_size=MOST_STATES,
            mamba_spec_state_size=MOST_REQUESTS,
            max_context_len=tokens + MOST_DECODED,
            device="cpu",
            enable_memory_saver=False,
            cache_params=Mamba2CacheParams(shape=shape, layers=recurrent_layers),
            mamba_layer_ids=recurrent_layers,
            enable_mamba_extra_buffer=True,
            speculative_num_draft_tokens=None,
        )
        capacity = PROMPTS * -(-(tokens + tree_page) // tree_page) * tree_page + MOST_DECODED // tree_page * tree_page
        kv_pool = HybridLinearKVPool(
            size=capacity,
            dtype=torch.bfloat16,
            page_size=tree_page,
            head_num=1,
            head_dim=1,
            full_attention_layer_ids=[self.layout.layer_count],
            device="cpu",
            enable_memory_saver=False,
            mamba_pool=self.requests.mamba_pool,
        )
        store = {"dtype": torch.bfloat16, "device": "cpu", "kvcache": kv_pool, "need_sort": False}
        if tree_page == 1:
            self.allocator = TokenToKVPoolAllocator(capacity, **store)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(capacity, page_size=tree_page, **store)
        self.tree = UnifiedRadixCache(
            params=CacheInitParams(
                req_to_token_pool=self.requests,
                token_to_kv_pool_allocator=self.allocator,
                page_size=tree_page,
                disable=False,
                tree_components=(ComponentType.FULL, ComponentType.MAMBA),
                enable_mamba_extra_buffer=True,
            )
        )
        self.runner = SimpleNamespace(
            device="cpu",
            server_args=server_args,
            model_config=self.model_config,
            is_draft_worker=False,
            req_to_token_pool=self.requests,
            token_to_kv_pool=kv_pool,
        )
        self.backend = Backend(self.runner)
        self.scheduler = SimpleNamespace(tree_cache=self.tree, disaggregation_mode=DisaggregationMode.NULL)
        self.results = releases.made_of(
            SchedulerBatchResultProcessor,
            is_generation=True,
            disaggregation_mode=DisaggregationMode.NULL,
            enable_overlap=overlap,
            enable_overlap_mlx=False,
            server_args=server_args,
            model_config=self.model_config,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.tree,
            hisparse_coordinator=None,
            req_to_token_pool=self.requests,
            decode_offload_manager=None,
            draft_worker=None,
            model_worker=None,
            metrics_collector=Unheard(),
            metrics_reporter=Unheard(),
            logprob_result_processor=Unheard(),
            output_streamer=Unheard(),
            beam_coordinator=Unheard(),
            abort_request=Unheard(),
        )

    @property
    def slots(self) -> Any:
        """The pool's tensors: `temporal` [layers, slots, ...] and `conv[0]` likewise."""
        return self.requests.mamba_pool.mamba_cache


class SGLangDriver(wire.Driver):
    """The driver. `open` makes everything anew, so a cell that SGLang stopped leaves nothing behind."""

    def __init__(self, overlap: bool) -> None:
        """overlap: prepare and run a decode step before the result of the pass in front of it is processed."""
        self._overlap = overlap
        self._opened: Cache | None = None
        self._parallel = releases.parallel_as(1)
        self._live: dict[int, Live] = {}
        self._claims: dict[int, int] = {}
        self._next_number = 0

    def hello(self) -> dict[str, Any]:
        versions = {
            "sglang": sglang.__version__,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "transformers": transformers.__version__,
        }
        return {"engine": "SGLang", "versions": versions, "payloads": ["tag", "tensors"]}

    def open(
        self,
        geometry: wire.Geometry,
        payload: str,
        tokens: int,
        dtype: str | None,
        layers: Sequence[wire.Layer],
    ) -> None:
        self._opened = None
        self._parallel.close()
        self._parallel = releases.parallel_as(geometry.dcp)
        self._live, self._claims, self._next_number = {}, {}, 0
        self._opened = Cache(geometry, tokens, getattr(torch, dtype or "float32"), layers, self._overlap)
        self._watch_donations(self._opened.tree)

    @property
    def _cache(self) -> Cache:
        if self._opened is None:
            raise RuntimeError("no cache is open: the last `open` failed, or there was none")
        return self._opened

    def match(self, tokens: list[int]) -> wire.Match:
        cache = self._cache
        sampling = SamplingParams(max_new_tokens=MOST_DECODED)
        sampling.normalize(None)
        req = Req(
            rid=str(self._next_number),
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=sampling,
            vocab_size=VOCABULARY,
        )
        live = Live(self._next_number, req)
        self._next_number += 1
        self._live[live.number] = live
        req.init_next_round_input(cache.tree)
        releases.lock_match(cache.tree, req)
        cached = releases.prefix_length(req)
        held = releases.holder_of(req)
        if held.mamba_cow_src_index is None:
            return wire.Match(live.number, cached, None)
        claimed = self._claims[int(held.mamba_cow_src_index)]
        self._copy_on_match(live)
        slot = int(held.mamba_pool_idx)
        number, state = cache.layout.decode(cache.slots.temporal[:, slot], cache.slots.conv[0][:, slot])
        if number == PAST_THE_END:
            raise RuntimeError("the state of a step that overlap ran past a request's end is handed out; no one has it")
        return wire.Match(live.number, cached, number, claimed, state)

    def extend(self, request: int, start: int, end: int, take: wire.Take) -> list[wire.Donation]:
        live = self._live[request]
        req = live.req
        last = end == len(req.origin_input_ids)
        if live.batch is not None:
            req.init_next_round_input()
        if releases.prefix_length(req) != start:
            raise ValueError(f"the pass begins at {start}, SGLang's request at {releases.prefix_length(req)}")
        releases.set_pass(req, start, end)
        live.batch = self._new_batch(req, chunked=not last)
        live.batch.prepare_for_extend()
        self._run_extend(live, start, take)
        if not last:
            req.inflight_middle_chunks += 1
            self._process_result(live.batch, LAST_TOKEN)
            Scheduler.stash_chunked_request(self._cache.scheduler, req)
        return self._donated(live)

    def decode(self, request: int, token: int, take: wire.Take) -> list[wire.Donation]:
        live = self._live[request]
        if not self._overlap:
            self._process_result(live.batch, token)
        before = live.batch.copy()
        live.batch.prepare_for_decode()
        self._run_decode(live, take)
        if self._overlap:
            self._process_result(before, token)
        return self._donated(live)

    def finish(self, request: int) -> list[wire.Donation]:
        live = self._live[request]
        if live.batch is None:
            raise ValueError("the request finishes before its first pass")
        # The scheduler finds by itself that the request has reached its length, and releases it.
        live.req.sampling_params.max_new_tokens = len(live.req.output_ids) + 1
        before = live.batch.copy()
        if self._overlap and not releases.foresees_the_length():
            # One step too many is under way by now: it absorbs the last token.
            live.batch.prepare_for_decode()
            self._run_decode(live, self._cache.layout.past_the_end)
        self._process_result(before, LAST_TOKEN)
        del self._live[request]
        return self._donated(live)

    def _new_batch(self, req: Req, chunked: bool) -> ScheduleBatch:
        cache = self._cache
        return ScheduleBatch.init_new(
            reqs=[req],
            req_to_token_pool=cache.requests,
            token_to_kv_pool_allocator=cache.allocator,
            tree_cache=cache.tree,
            model_config=cache.model_config,
            enable_overlap=cache.overlap,
            spec_algorithm=SpeculativeAlgorithm.NONE,
            chunked_req=req if chunked else None,
        )

    def _copy_on_match(self, live: Live) -> None:
        """SGLang does this at the start of the pass that it matched for, which follows at once; the answer needs it."""
        batch = self._new_batch(live.req, chunked=False)
        batch._collect_deferred_mamba_cow_and_clear([live.req])
        order = SimpleNamespace(
            forward_mode=SimpleNamespace(
                is_extend=lambda: True,
                is_target_verify=lambda: False,
                is_draft_extend_v2=lambda: False,
            ),
            mamba_cow_src_indices=batch.mamba_cow_src_indices,
            mamba_cow_dst_indices=batch.mamba_cow_dst_indices,
            mamba_clear_indices=batch.mamba_clear_indices,
        )
        ModelRunner._maybe_execute_deferred_mamba_cow_and_clear(self._cache.runner, order)

    def _forward_batch(self, batch: ScheduleBatch, start: int | None) -> ForwardBatch:
        """The record that a forward pass is given. start: where an extend pass begins, None for a decode step."""
        same = {
            name: getattr(batch, name)
            for name in (
                "forward_mode",
                "req_pool_indices",
                "seq_lens",
                "seq_lens_cpu",
                "out_cache_loc",
                "mamba_track_indices",
                "mamba_track_mask",
                "mamba_track_seqlens",
                "mamba_track_seqlens_cpu",
                "mamba_prefill_track_mask_cpu",
                "mamba_cow_src_indices",
                "mamba_cow_dst_indices",
                "mamba_clear_indices",
                "spec_algorithm",
            )
            if hasattr(batch, name)
        }
        extend = {}
        if start is not None:
            length = int(batch.seq_lens[0]) - start
            extend = {
                "extend_prefix_lens": torch.tensor([start], dtype=torch.int32),
                "extend_prefix_lens_cpu": [start],
                "extend_seq_lens": torch.tensor([length], dtype=torch.int32),
                "extend_seq_lens_cpu": [length],
                "extend_start_loc": torch.tensor([0], dtype=torch.int32),
                "extend_num_tokens": length,
            }
        return releases.made_of(
            ForwardBatch,
            batch_size=1,
            input_ids=torch.zeros(1, dtype=torch.int64),
            seq_lens_sum=int(batch.seq_lens_cpu.sum()),
            **same,
            **extend,
        )

    def _run_extend(self, live: Live, start: int, take: wire.Take) -> None:
        cache = self._cache
        forward = self._forward_batch(live.batch, start)
        ModelRunner._maybe_execute_deferred_mamba_cow_and_clear(cache.runner, forward)
        cache.backend.init_forward_metadata(forward)
        orders = cache.backend.forward_metadata
        if not orders.has_mamba_track_mask:
            return
        rows = orders.track_conv_indices[0]
        conv_end = start + int(rows[-1]) + 1
        if not torch.equal(rows, torch.arange(conv_end - start - len(rows), conv_end - start, dtype=rows.dtype)):
            raise RuntimeError(f"the window is made of the rows {rows.tolist()} of the pass, which do not follow on")
        finals = orders.track_ssm_final_src.tolist()
        taken = take(None if finals else releases.ordered_chunk(orders), conv_end)
        for layer in range(cache.layout.layer_count):
            temporal, conv = cache.layout.encode(taken, layer)
            states = cache.slots.temporal[layer]
            states[finals] = temporal.to(states.dtype)
            releases.track_extend(cache.backend, forward, temporal, states, orders, cache.activations)
            windows = cache.slots.conv[0][layer]
            windows[forward.mamba_track_indices[forward.mamba_track_mask]] = conv.to(windows.dtype)

    def _run_decode(self, live: Live, take: wire.Take) -> None:
        cache = self._cache
        forward = self._forward_batch(live.batch, None)
        cache.backend.init_forward_metadata(forward)
        if not bool(forward.mamba_track_mask.any()):
            return
        orders = cache.backend.forward_metadata
        taken = take(None, int(live.batch.seq_lens[0]))
        for layer in range(cache.layout.layer_count):
            temporal, conv = cache.layout.encode(taken, layer)
            states, windows = cache.slots.temporal[layer], cache.slots.conv[0][layer]
            states[orders.mamba_cache_indices] = temporal.to(states.dtype)
            windows[orders.mamba_cache_indices] = conv.to(windows.dtype)
            cache.backend._track_mamba_state_decode(forward, windows, states, orders.mamba_cache_indices)

    def _process_result(self, batch: ScheduleBatch, token: int) -> None:
        """The result of the last pass processed: `token` came out of it."""
        output = LogitsProcessorOutput(next_token_logits=None)
        result = GenerationBatchResult(logits_output=output, next_token_ids=torch.tensor([token]))
        if batch.forward_mode.is_decode():
            self._cache.results.process_batch_result_decode(batch, result)
        else:
            self._cache.results.process_batch_result_prefill(batch, result)

    def _donated(self, live: Live) -> list[wire.Donation]:
        donations, live.donations = live.donations, []
        return donations

    def _watch_donations(self, tree: UnifiedRadixCache) -> None:
        """Note what SGLang hands to its tree, without touching it.

        The depth that it claims is what its mamba component answers when it is asked what there is to cache; the node
        is the key that it then inserts.
        """
        component = next(one for one in tree._components_tuple if one.component_type == ComponentType.MAMBA)
        prepare, insert = component.prepare_for_caching_req, tree.insert
        offered: list[tuple[Live, int]] = []

        def watched_prepare(*args: Any, **kwargs: Any) -> int | None:
            claimed = prepare(*args, **kwargs)
            req = kwargs["req"]
            live = next(one for one in self._live.values() if one.req is req)
            offered[:] = [(live, claimed)] if claimed else []
            return claimed

        def watched_insert(params: Any) -> Any:
            result = insert(params)
            if offered and params.mamba_value is not None:
                live, claimed = offered.pop()
                node_depth = len(params.key)
                if node_depth == 0:
                    fate = "no node"
                elif result.mamba_exist:
                    fate = "already there"
                else:
                    fate = "attached"
                    self._claims[int(params.mamba_value)] = claimed
                live.donations.append(wire.Donation(live.number, claimed, node_depth, fate))
            return result

        component.prepare_for_caching_req = watched_prepare
        tree.insert = watched_insert

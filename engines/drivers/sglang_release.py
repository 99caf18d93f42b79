"""What differs between SGLang's releases, and how its objects are made for a machine with no GPU and no model.

Everything that a release renamed or moved is looked up here once, in `load`; the driver itself speaks of one SGLang.
Driven and compared: 0.5.17 to 0.5.23.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from array import array
from types import SimpleNamespace
from typing import Any

SLOTS = 64
"""Recurrent states in the pool: no cell comes near it, so nothing is evicted."""

REQUESTS = 8

SPARE_PAGES = 64
"""Pages of KV beyond what the longest prompt fills twice: a donor and whoever resumes, with their odd ends."""


def load() -> Release:
    """Import the release. Raises ImportError for an environment that has none."""
    import torch

    warnings.filterwarnings("ignore")
    # torchvision has CUDA builds only, whose import asks for operators that are not there; nothing here calls them.
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    # There is no device that memory could be pinned for, and some releases ask for it without looking.
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    tensor = torch.tensor
    torch.tensor = lambda *values, pin_memory=False, **options: tensor(*values, **options)
    release = Release(importlib.metadata.version("sglang"))
    release.operators = operators
    return release


def first(*places: str) -> Any:
    """The first of these `module:name` that this release has."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(f"sglang.srt.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"this release has none of {', '.join(places)}")


class Release:
    """One SGLang, by the names that the driver uses."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.server_args = first("server_args:ServerArgs")
        self.publish = first("server_args:set_global_server_args_for_scheduler")
        self.request_class = first("managers.schedule_batch:Req")
        self.batch_class = first("managers.schedule_batch:ScheduleBatch")
        self.forward_class = first("model_executor.forward_batch_info:ForwardBatch")
        self.forward_mode = first("model_executor.forward_batch_info:ForwardMode")
        self.runner = first("model_executor.model_runner:ModelRunner")
        self.tree_class = first("mem_cache.unified_radix_cache:UnifiedRadixCache")
        self.common = importlib.import_module("sglang.srt.mem_cache.common")
        self.checkpoints = hasattr(self.common, "checkpoint_kv_cache")
        """Since 0.5.22 requests are checkpointed into the tree, and passes are told by prefix_len and extend_end."""
        self.deferred = self.runner._maybe_execute_deferred_mamba_cow_and_clear
        self.component = first(
            "mem_cache.unified_cache.components:ComponentType",
            "mem_cache.unified_cache.component_type:ComponentType",
            "mem_cache.unified_cache.components.tree_component:ComponentType",
        )

    # ---- objects of one cache ---------------------------------------------------------------------------------------

    def configure(self, geometry: dict[str, int]) -> tuple[Any, Any]:
        """(server arguments, model config), published as the scheduler publishes them."""
        hf = SimpleNamespace(mamba_chunk_size=geometry["chunk"])
        model = SimpleNamespace(
            hf_config=hf, hf_text_config=hf, is_encoder_decoder=False, vocab_size=1 << 30, is_hybrid_swa=False
        )
        args = self.server_args(
            model_path="dummy",
            page_size=geometry["page"],
            dcp_size=geometry["dcp"],
            mamba_radix_cache_strategy="extra_buffer",
            mamba_track_interval=geometry["interval"],
            attention_backend="torch_native",
            sampling_backend="pytorch",
            device="cpu",
        )
        # As SGLang's own fixtures do, for a model that has no files.
        args._mamba_cache_chunk_size = max(geometry["chunk"], geometry["page"])
        args.model_config = model
        self.publish(args)
        return args, model

    def memory(self, geometry: dict[str, int], tokens: int, shapes: Any, dtype: str) -> tuple[Any, Any, Any]:
        """(request and state pool, allocator, radix tree) on the page that dcp widens."""
        import torch

        page = geometry["page"] * geometry["dcp"]
        size = (2 * -(-tokens // page) + SPARE_PAGES) * page
        pool = first("mem_cache.memory_pool:HybridReqToTokenPool")(
            size=REQUESTS,
            mamba_size=SLOTS,
            mamba_spec_state_size=REQUESTS,
            max_context_len=tokens + page,
            device="cpu",
            enable_memory_saver=False,
            cache_params=self._states(shapes, dtype),
            mamba_layer_ids=list(range(len(shapes))),
            enable_mamba_extra_buffer=True,
            speculative_num_draft_tokens=None,
        )
        kv = first("mem_cache.memory_pool:HybridLinearKVPool")(
            size=size,
            dtype=torch.bfloat16,
            page_size=page,
            head_num=1,
            head_dim=1,
            full_attention_layer_ids=[len(shapes)],
            device="cpu",
            enable_memory_saver=False,
            mamba_pool=pool.mamba_pool,
        )
        paged = "PagedTokenToKVPoolAllocator" if page > 1 else "TokenToKVPoolAllocator"
        allocator = first(f"mem_cache.allocator:{paged}")
        own_page = {"page_size": page} if page > 1 else {}
        allocator = allocator(size, dtype=torch.bfloat16, device="cpu", kvcache=kv, need_sort=False, **own_page)
        tree = self.tree_class(
            params=first("mem_cache.cache_init_params:CacheInitParams")(
                req_to_token_pool=pool,
                token_to_kv_pool_allocator=allocator,
                page_size=page,
                disable=False,
                tree_components=(self.component.FULL, self.component.MAMBA),
                enable_mamba_extra_buffer=True,
            )
        )
        return pool, allocator, tree

    def _states(self, shapes: Any, dtype: str) -> Any:
        """The pool's layout: states [heads, value dim, key dim] in float32, windows [channels, tokens]."""
        import torch

        (recurrent, window), *rest = shapes
        assert all(other == (recurrent, window) for other in rest), "SGLang's pool holds layers of one shape"
        heads, key_dim, value_dim = recurrent
        utils = importlib.import_module("sglang.srt.configs.mamba_utils")
        shape = utils.Mamba2StateShape.create(
            tp_world_size=1,
            intermediate_size=heads * value_dim,
            n_groups=1,
            num_heads=heads,
            head_dim=value_dim,
            state_size=key_dim,
            conv_kernel=window[0] + 1,
        )
        shape.conv[:] = [(window[1], window[0])]
        dtypes = utils.Mamba2StateDType(conv=getattr(torch, dtype), temporal=torch.float32)
        return utils.Mamba2CacheParams(shape=shape, layers=list(range(len(shapes))), dtype=dtypes)

    def backend(self, args: Any, model: Any, pool: Any) -> Any:
        """The attention backend of linear layers, for its choice of what to copy."""
        module = importlib.import_module("sglang.srt.layers.attention.hybrid_linear_attn_backend")
        runner = SimpleNamespace(
            device="cpu",
            server_args=args,
            model_config=model,
            is_draft_worker=False,
            req_to_token_pool=pool,
            token_to_kv_pool=None,
        )
        backend = module.MambaAttnBackendBase(runner)
        backend.conv_states_shape = pool.mamba2_layer_cache(0).conv[0].shape
        return backend

    def processor(self, tree: Any) -> Any:
        """What the scheduler hands results to. Only the methods that keep book of snapshots are called."""
        name = "SchedulerBatchResultProcessor"
        cls = first(f"managers.scheduler_components.batch_result_processor:{name}")
        processor = object.__new__(cls)
        object.__setattr__(processor, "tree_cache", tree)  # a frozen dataclass of far more than is needed here
        return processor

    # ---- requests ---------------------------------------------------------------------------------------------------

    def request(self, name: str, tokens: list[int]) -> Any:
        sampling = first("sampling.sampling_params:SamplingParams")(max_new_tokens=1 << 20)
        sampling.normalize(None)
        return self.request_class(
            rid=name,
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=sampling,
            vocab_size=1 << 30,
        )

    def state_of(self, req: Any) -> Any:
        """What holds a request's slots: its `kv` since 0.5.19, before that the request itself."""
        kv = getattr(req, "kv", None)
        return kv if kv is not None and hasattr(kv, "mamba_pool_idx") else req

    def reached(self, req: Any) -> int:
        """Tokens that the next pass begins after."""
        return req.prefix_len if self.checkpoints else len(req.prefix_indices)

    def lock(self, cache: Any, req: Any) -> None:
        """Keep the matched path from eviction, as admission does."""
        adder = SimpleNamespace(tree_cache=cache.tree, is_hybrid_swa=False)
        if self.checkpoints:
            req.lock = cache.tree.lock(req.last_node)
        else:
            first("managers.schedule_policy:PrefillAdder")._req_inc_lock_ref(adder, req)

    def batch(self, cache: Any, req: Any, start: int, end: int, chunked: bool) -> Any:
        """A batch of this one request that prefills tokens [start, end)."""
        if self.checkpoints:
            req.extend_end = end
        else:
            req.set_extend_range(start, end)
        batch = self.batch_class.init_new(
            [req],
            cache.pool,
            cache.allocator,
            cache.tree,
            cache.model_config,
            enable_overlap=False,
            spec_algorithm=first("speculative.spec_info:SpeculativeAlgorithm").NONE,
            chunked_req=req if chunked else None,
        )
        batch.prepare_for_extend()
        return batch

    def stash(self, cache: Any, req: Any) -> None:
        """Between two prefill passes of a request."""
        if self.checkpoints:
            self.common.checkpoint_kv_cache(req, cache.tree)
        else:
            self.common.maybe_cache_unfinished_req(req, cache.tree, chunked=True)

    def prefilled(self, cache: Any, req: Any) -> None:
        """After the last prefill pass of a request that goes on to decode."""
        if self.checkpoints:
            self.common.checkpoint_kv_cache(req, cache.tree)
        else:
            self.common.maybe_cache_unfinished_req(req, cache.tree)

    def finish(self, cache: Any, req: Any) -> None:
        req.sampling_params.max_new_tokens = len(req.output_ids)
        req.update_finish_state()
        assert req.finished()
        self.common.release_kv_cache(req, cache.tree, **({"checkpoint": True} if self.checkpoints else {}))

    # ---- passes -----------------------------------------------------------------------------------------------------

    def extend_forward(self, batch: Any) -> Any:
        """What the attention backend is told of a prefill pass."""
        import torch

        lens = torch.tensor(batch.extend_lens, dtype=torch.int32)
        return self._forward(
            batch,
            self.forward_mode.EXTEND,
            extend_seq_lens=lens,
            extend_seq_lens_cpu=list(batch.extend_lens),
            extend_prefix_lens=torch.tensor(batch.prefix_lens, dtype=torch.int32),
            extend_prefix_lens_cpu=list(batch.prefix_lens),
            extend_start_loc=torch.cumsum(lens, 0, dtype=torch.int32) - lens,
            mamba_track_seqlens=batch.mamba_track_seqlens,
            mamba_cow_src_indices=batch.mamba_cow_src_indices,
            mamba_cow_dst_indices=batch.mamba_cow_dst_indices,
            mamba_clear_indices=batch.mamba_clear_indices,
        )

    def decode_forward(self, batch: Any) -> Any:
        """What the attention backend is told of a decode step."""
        return self._forward(batch, self.forward_mode.DECODE)

    def _forward(self, batch: Any, mode: Any, **fields: Any) -> Any:
        forward = self.forward_class(
            forward_mode=mode,
            batch_size=len(batch.reqs),
            input_ids=None,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=batch.out_cache_loc,
            seq_lens_sum=int(batch.seq_lens_cpu.sum()),
        )
        fields |= {
            "seq_lens_cpu": batch.seq_lens_cpu,
            "mamba_track_indices": batch.mamba_track_indices,
            "mamba_track_mask": batch.mamba_track_mask,
        }
        for name, value in fields.items():
            setattr(forward, name, value)
        return forward

    def copies_of(self, req: Any) -> Any:
        """The deferred copies of a request that was matched, as its first batch would collect them."""
        collected = SimpleNamespace()
        self.batch_class._collect_deferred_mamba_cow_and_clear(collected, [req])
        return SimpleNamespace(
            forward_mode=self.forward_mode.EXTEND,
            mamba_cow_src_indices=collected.mamba_cow_src_indices,
            mamba_cow_dst_indices=collected.mamba_cow_dst_indices,
            mamba_clear_indices=collected.mamba_clear_indices,
        )

    def run_deferred(self, cache: Any, forward: Any) -> None:
        """Copies and clears that the forward pass begins with."""
        runner = SimpleNamespace(req_to_token_pool=cache.pool, is_draft_worker=False)
        self.deferred(runner, forward)

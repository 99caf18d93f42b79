"""Stands where vLLM's worker does: it holds the states of every block, moves them with vLLM's code, and runs no model.

vLLM's own are which blocks a step gets, zeroes and copies (the scheduler's output), the copy of a running state into
the block that it goes on in (`preprocess_mamba`), and the block that a step's kernels read and write
(`mamba_get_block_table_tensor`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import wire
from slots import Layout
from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateCopyFuncCalculator, MambaStateDtypeCalculator
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec, MambaSpec
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu_input_batch import CachedRequestState
from vllm.v1.worker.mamba_utils import MambaCopyBuffers, preprocess_mamba

KIND = MambaAttentionBackendEnum.GDN_ATTN
COPIES = {KIND: MambaStateCopyFuncCalculator.gated_delta_net_state_copy_func()}


class Worker(Executor):
    """One worker, as vLLM's engine core talks to it."""

    supports_pp = False

    def __init__(self, layout: Layout, raise_block_to: int | None, config: VllmConfig) -> None:
        """raise_block_to: tokens of a block that holds a state, where vLLM is to find that by itself."""
        self._layout = layout
        self._raise_block_to = raise_block_to
        self._requests: dict[str, CachedRequestState] = {}
        self._running_in: dict[str, int] = {}
        super().__init__(config)

    def _init_executor(self) -> None:
        current_platform.register_triton_kernel_overrides()
        if self._raise_block_to:  # vLLM's workers do this while they load: Platform.update_block_size_for_backend
            self.cache_config.block_size = self.cache_config.mamba_block_size = self._raise_block_to

    def get_kv_cache_specs(self) -> list[dict[str, KVCacheSpec]]:
        """Attention's keys and values are as large as a state, as vLLM sees to: that decides how layers are grouped."""
        block, layout = self.cache_config.block_size, self._layout
        dtypes = MambaStateDtypeCalculator.gated_delta_net_state_dtype(
            self.model_config.dtype, self.cache_config.mamba_cache_dtype, self.cache_config.mamba_ssm_cache_dtype
        )
        shapes = (layout.conv[::-1], layout.temporal)
        plain = MambaSpec(block_size=block, shapes=shapes, dtypes=dtypes, mamba_type=KIND, mamba_cache_mode="align")
        head = -(-plain.page_size_bytes // (4 * block))
        attention = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=head, dtype=torch.bfloat16)
        state = MambaSpec(
            block_size=block,
            shapes=shapes,
            dtypes=dtypes,
            mamba_type=KIND,
            mamba_cache_mode=self.cache_config.mamba_cache_mode,
            page_size_padded=attention.page_size_bytes,
        )
        recurrent = {f"recurrent.{layer}": state for layer in range(layout.layer_count)}
        return [{**recurrent, "attention": attention}]

    def determine_available_memory(self) -> list[int]:
        return [1 << 40]  # the number of blocks is given

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["NHD"]]

    def set_kv_cache_layout(self, layout_name: str) -> None: ...

    def initialize_from_config(self, kv_cache_configs: list[KVCacheConfig]) -> None:
        (config,) = kv_cache_configs
        self._config = config
        self._buffers = MambaCopyBuffers.create(
            1, config, COPIES, lambda n, dtype: CpuGpuBuffer(n, dtype=dtype, device="cpu", pin_memory=False)
        )
        self._spec = self._buffers.mamba_spec
        conv, temporal = (
            [torch.zeros(config.num_blocks, *shape, dtype=dtype) for _ in range(self._layout.layer_count)]
            for shape, dtype in zip(self._spec.shapes, self._spec.dtypes, strict=True)
        )
        self._conv, self._temporal = conv, temporal
        names = [f"recurrent.{layer}" for layer in range(self._layout.layer_count)]
        self._layers = {
            name: SimpleNamespace(kv_cache=[conv[layer], temporal[layer]]) for layer, name in enumerate(names)
        }
        # vLLM deals its layers out to groups as large as that of the attention layers; each has blocks of its own.
        self._groups = [
            next(i for i, group in enumerate(config.kv_cache_groups) if name in group.layer_names) for name in names
        ]

    def compile_or_warm_up_model(self) -> None: ...

    def collective_rpc(self, method: str | Callable, *args: Any, **kwargs: Any) -> list[Any]:
        raise NotImplementedError(f"the engine core asks its worker to {method}, which is not foreseen")

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...

    def matched(self, block_ids: tuple[list[int], ...], depth: int, spare: int) -> tuple[int | None, wire.State | None]:
        """What a request would start from that resumes at `depth` over these blocks.

        The copy is made that its first step would begin with, into the block `spare`.
        """
        ids = tuple([*own, spare] if group in self._groups else own for group, own in enumerate(block_ids))
        request = CachedRequestState("matched", [], [], None, None, ids, depth, [])
        step = SimpleNamespace(
            finished_req_ids=set(),
            preempted_req_ids=None,
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
            num_scheduled_tokens={"matched": 1},
        )
        self._preprocess(step, {}, {"matched": request})
        slots = list(enumerate(self._slots(ids, depth + 1)))
        conv = torch.stack([self._conv[layer][slot].transpose(-1, -2) for layer, slot in slots])
        return self._layout.decode(torch.stack([self._temporal[layer][slot] for layer, slot in slots]), conv)

    def run(self, step: SchedulerOutput, take: wire.Take) -> None:
        """A step of one request: what the forward pass would leave in its block is taken from the checker."""
        self._update_requests(step)
        for layer in range(self._layout.layer_count):
            for states in (self._conv[layer], self._temporal[layer]):
                states[step.new_block_ids_to_zero or []] = 0
                for copy in step.kv_cache_block_copies or []:
                    states[copy.dst_block_id] = states[copy.src_block_id]
        self._preprocess(step, self._running_in, self._requests)
        ((name, tokens),) = step.num_scheduled_tokens.items()
        request = self._requests[name]
        depth = request.num_computed_tokens + tokens
        taken = take(end=depth)
        for layer, slot in enumerate(self._slots(request.block_ids, depth)):
            temporal, conv = self._layout.encode(taken, layer)
            self._temporal[layer][slot] = temporal.to(self._temporal[layer].dtype)
            self._conv[layer][slot] = conv.transpose(-1, -2).to(self._conv[layer].dtype)

    def _update_requests(self, step: SchedulerOutput) -> None:
        """The worker's books of the requests, from what the scheduler tells it."""
        for name in step.finished_req_ids:
            self._requests.pop(name, None)
        for new in step.scheduled_new_reqs:
            self._requests[new.req_id] = CachedRequestState(
                new.req_id, new.prompt_token_ids, [], None, None, new.block_ids, new.num_computed_tokens, []
            )
        known = step.scheduled_cached_reqs
        for name, more, computed in zip(known.req_ids, known.new_block_ids, known.num_computed_tokens, strict=True):
            request = self._requests[name]
            request.num_computed_tokens = computed
            if name in known.resumed_req_ids:
                request.block_ids = more
            elif more is not None:
                for own, extra in zip(request.block_ids, more, strict=True):
                    own.extend(extra)

    def _preprocess(self, step: Any, running_in: dict[str, int], requests: dict[str, CachedRequestState]) -> None:
        names = list(step.num_scheduled_tokens)
        batch = SimpleNamespace(req_ids=names, num_accepted_tokens_cpu=np.ones(len(names), dtype=np.int64))
        preprocess_mamba(
            step, self._config, self.cache_config, running_in, batch, requests, self._layers, COPIES, self._buffers
        )

    def _slots(self, block_ids: tuple[list[int], ...], depth: int) -> list[int]:
        """Per layer, the block whose state a step that ends at `depth` reads and writes."""
        mode = self.cache_config.mamba_cache_mode
        slots = {}
        for group in set(self._groups):
            table = torch.tensor([block_ids[group]], dtype=torch.int32)
            lengths = torch.tensor([depth], dtype=torch.int32)
            slots[group] = int(mamba_get_block_table_tensor(table, lengths, self._spec, mode)[0, 0])
        return [slots[group] for group in self._groups]

"""vLLM behind the protocol: its engine core with scheduler, KV cache manager and block pool, and no model.

Every decision is made by the release's own code:

    match    KVCacheManager.get_computed_blocks, and the copy with which the first step would begin (worker.py)
    extend   Scheduler.schedule, which cuts a pass where a state has to be kept, and Scheduler.update_from_output
    decode   the same
    finish   Scheduler.update_from_output, which frees a request that has reached its length

The engine core is built as `vllm serve` builds it: it groups the layers, finds the block sizes, and its configuration
is gone over once more when its process has shaken hands.

What is not vLLM's:

- the kernels' arithmetic: wherever a step leaves a state, the checker's is taken, at the depth where vLLM ended it;
- how many tokens a step may have: the history says it. vLLM may end the step sooner, and then either goes on in the
  same pass or leaves the rest to the next one, as its rules have it;
- which request a step serves: the one that is asked for, alone; and that it is matched when `match` asks, where vLLM
  would wait until its first step.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
import vllm
import wire
from slots import Layout
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from worker import Worker

MOST_REQUESTS = 16
"""Requests that may be live at once."""

MOST_DECODED = 4096
"""Decode steps of one request."""

PROMPTS = 6
"""Prompts of full length whose keys and values fit: none is evicted in a cell, as eviction is not what is checked."""

LAST_TOKEN = 1
"""What a finishing request ends on. No step absorbs it."""

MODEL = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1 << 24,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
"""What vLLM is told that it serves: a hybrid model. Its layers are never built; worker.py says what they keep."""


@dataclass
class Live:
    """A request, the step whose result is still to come, and the donations of the call at hand."""

    number: int
    request: Request
    matched: tuple[KVCacheBlocks, int, int]
    pending: SchedulerOutput | None = None
    started: bool = False
    seen: set[int] = field(default_factory=set)
    donations: list[wire.Donation] = field(default_factory=list)

    @property
    def cached(self) -> int:
        """The tokens that it found in the cache."""
        return self.matched[1]

    @property
    def position(self) -> int:
        """The tokens that it has absorbed, or found in the cache."""
        return self.request.num_computed_tokens if self.started else self.cached


class VLLMDriver(wire.Driver):
    """The driver. `open` makes everything anew, so a cell that vLLM stopped leaves nothing behind."""

    def __init__(self, raised: bool) -> None:
        """raised: the block is one that vLLM raised by itself."""
        self._raised = raised
        self._folder = tempfile.TemporaryDirectory(prefix="mamba-replay-check-")
        (Path(self._folder.name) / "config.json").write_text(json.dumps(MODEL))
        self._core: EngineCore | None = None
        self._live: dict[int, Live] = {}
        self._next_number = 0

    def hello(self) -> dict[str, Any]:
        versions = {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        return {"engine": "vLLM", "versions": versions, "payloads": ["tag", "tensors"]}

    def open(
        self,
        geometry: wire.Geometry,
        payload: str,
        tokens: int,
        dtype: str | None,
        layers: Sequence[wire.Layer],
    ) -> None:
        if self._core is not None:
            self._core.shutdown()
        self._core, self._live, self._next_number = None, {}, 0
        if geometry.dcp != 1:
            raise ValueError(f"vLLM resumes recurrent states under dcp 1 only, not under {geometry.dcp}: use --dcp 1")
        longest = max(tokens + MOST_DECODED, 2 * geometry.page)
        arguments = EngineArgs(
            model=self._folder.name,
            dtype=dtype or "float32",
            skip_tokenizer_init=True,
            enforce_eager=True,
            load_format="dummy",
            block_size=None if self._raised else geometry.page,
            enable_prefix_caching=True,
            async_scheduling=False,
            max_model_len=longest,
            max_num_batched_tokens=longest,
            max_num_seqs=MOST_REQUESTS,
            num_gpu_blocks_override=PROMPTS * -(-longest // geometry.page) + 8 * MOST_REQUESTS,
        )
        worker = partial(Worker, Layout(layers), geometry.page if self._raised else None)
        config = arguments.create_engine_config()
        core = EngineCore(config, worker, log_stats=False)
        config.__post_init__()  # as EngineCoreProc does when its process has shaken hands
        (self._spare,) = core.scheduler.kv_cache_manager.block_pool.get_new_blocks(1)
        self._core = core

    @property
    def _scheduler(self) -> Any:
        if self._core is None:
            raise RuntimeError("no cache is open: the last `open` failed, or there was none")
        return self._core.scheduler

    @property
    def _states(self) -> Any:
        """vLLM's manager of blocks that hold states; the first of them, as all groups of such layers do the same."""
        managers = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        return next(one for one in managers if isinstance(one, MambaManager))

    def match(self, tokens: list[int]) -> wire.Match:
        manager = self._scheduler.kv_cache_manager
        asked = EngineCoreRequest(
            request_id=str(self._next_number),
            prompt_token_ids=tokens,
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=MOST_DECODED, ignore_eos=True),
            pooling_params=None,
            arrival_time=float(self._next_number),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        request, _ = self._core.preprocess_add_request(asked)
        live = Live(self._next_number, request, manager.get_computed_blocks(request))
        self._live[live.number] = live
        self._next_number += 1
        if not live.cached:
            return wire.Match(live.number, 0, None)
        ids = live.matched[0].get_block_ids()
        number, state = self._core.model_executor.matched(ids, live.cached, self._spare.block_id)
        return wire.Match(live.number, live.cached, number, state=state)

    def extend(self, request: int, start: int, end: int, take: wire.Take) -> list[wire.Donation]:
        live = self._live[request]
        if not live.started:
            self._scheduler.add_request(live.request)
        while live.position < end:
            if not self._step(live, end - start, end - live.position, take):
                if end == live.request.num_prompt_tokens:
                    raise RuntimeError(
                        f"vLLM schedules none of the tokens [{live.position}, {end}) that end the prompt"
                    )
                break  # it keeps to its blocks: the rest waits for the next pass
        return self._donated(live)

    def decode(self, request: int, token: int, take: wire.Take) -> list[wire.Donation]:
        live = self._live[request]
        self._settle(live, [token])
        whole = self._scheduler.max_model_len
        if not self._step(live, whole, whole, take):
            raise RuntimeError("vLLM schedules no decode step")
        return self._donated(live)

    def finish(self, request: int) -> list[wire.Donation]:
        live = self._live[request]
        if live.pending is None:
            raise ValueError("the request finishes before its last pass")
        # The scheduler finds by itself that the request has reached its length, and frees it.
        live.request.max_tokens = live.request.num_output_tokens + 1
        self._settle(live, [LAST_TOKEN])
        del self._live[request]
        return self._donated(live)

    def close(self) -> None:
        self._folder.cleanup()

    def _step(self, live: Live, budget: int, most: int, take: wire.Take) -> int:
        """One step of the request, of at most `most` tokens; how many it had.

        budget: the tokens that a step may have by configuration, which vLLM's rules ask for.
        """
        scheduler = self._scheduler
        scheduler.max_num_scheduled_tokens = max(budget, most)
        scheduler.scheduler_config.max_num_batched_tokens = most
        with self._alone(live):
            step = scheduler.schedule()
        tokens = step.total_num_scheduled_tokens
        if not tokens:
            return 0
        live.started = True
        self._note(live)
        self._core.model_executor.run(step, take)
        live.pending = step
        if live.position < live.request.num_tokens:
            self._settle(live, [])
        return tokens

    def _settle(self, live: Live, sampled: list[int]) -> None:
        """The result of the last step: the token that came out of it, none in the middle of a prompt."""
        name = live.request.request_id
        output = ModelRunnerOutput(req_ids=[name], req_id_to_index={name: 0}, sampled_token_ids=[sampled])
        with self._alone(live):
            self._scheduler.update_from_output(live.pending, output)
        live.pending = None

    @contextmanager
    def _alone(self, live: Live) -> Iterator[None]:
        """Other running requests are set aside: a step would serve them, too. And the first step matches anew, which
        must not find what others left since the answer to `match`."""
        scheduler = self._scheduler
        scheduler.kv_cache_manager.get_computed_blocks = lambda request: live.matched
        others = [one for one in scheduler.running if one is not live.request]
        scheduler.running = [one for one in scheduler.running if one is live.request]
        try:
            yield
        finally:
            scheduler.running = [*others, *scheduler.running]
            del scheduler.kv_cache_manager.get_computed_blocks

    def _note(self, live: Live) -> None:
        """What of this request's states can now be found by others: vLLM names a block by the tokens up to its end."""
        manager = self._states
        for index, block in enumerate(manager.req_to_blocks[live.request.request_id]):
            depth = (index + 1) * manager.block_size
            if not block.is_null and block.block_hash is not None and depth not in live.seen and depth > live.cached:
                live.seen.add(depth)
                live.donations.append(wire.Donation(live.number, depth, depth, "attached"))

    def _donated(self, live: Live) -> list[wire.Donation]:
        donations, live.donations = live.donations, []
        return donations

"""Where SGLang's releases differ in name: fields that moved, methods that were renamed. Told apart by looking at them.

What a release DECIDES is never here: that is its own code, which driver.py calls.
"""

from __future__ import annotations

import dataclasses
import inspect
from contextlib import ExitStack
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.runtime_context import get_parallel


def give_model_config(server_args: Any, config: Any) -> None:
    """SGLang asks the model's config for the kernel's chunk, and would read it from a checkpoint; both memos of it."""
    server_args.model_config = config
    server_args._model_config = config


def holder_of(req: Req) -> Any:
    """The object with the request's mamba and KV fields: the request itself, `req.kv` since 0.5.19."""
    return req if hasattr(req, "mamba_pool_idx") else req.kv


def prefix_length(req: Req) -> int:
    """Tokens in front of the next pass."""
    return req.prefix_len if hasattr(req, "prefix_len") else len(req.prefix_indices)


def set_pass(req: Req, start: int, end: int) -> None:
    """The next pass covers [start, end). The scheduler's admission does this from a token budget."""
    if hasattr(req, "set_extend_range"):
        req.set_extend_range(start, end)
    else:
        assert req.prefix_len == start
        req.extend_end = end


def foresees_the_length() -> bool:
    """Whether the overlapped loop leaves a request out that the result under way ends by its length: since 0.5.22."""
    return hasattr(Scheduler, "_reqs_finishing_inflight")


def lock_match(tree: Any, req: Req) -> None:
    """Admission pins what was matched."""
    if hasattr(tree, "lock"):
        req.lock = tree.lock(req.last_node)
        return
    result = tree.inc_lock_ref(req.last_node)
    if hasattr(req, "lock_receipt"):
        req.lock_receipt = result.to_dec_params()
        return
    req.swa_uuid_for_lock = result.swa_uuid_for_lock
    req.skip_lock_node_ids = {}


def ordered_chunk(orders: Any) -> int:
    """Which intermediate state the backend orders for the only request of the batch.

    Since 0.5.20 there are two orders: a row of the kernel's output `h`, and the chunk at which the kernel itself is to
    save its state. The KDA kernels go by the second.
    """
    chunk = getattr(orders, "track_chunk_idx", None)
    return int((orders.track_ssm_h_src if chunk is None else chunk)[0])


class Intermediates:
    """The kernel's output `h` of one layer, of which only the row that the backend reads was taken."""

    def __init__(self, row: torch.Tensor) -> None:
        self._row = row

    def squeeze(self, dim: int) -> Intermediates:
        return self

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        return self._row.expand(len(indices), *self._row.shape)


def track_extend(
    backend: Any, forward: Any, state: torch.Tensor, slots: torch.Tensor, orders: Any, activations: torch.dtype
) -> None:
    """Let the backend copy one layer's state of a prefill pass to its track slot, or the active slot's if it is final.

    state: the intermediate one. `h` has the dtype of the activations; what the kernel saves by itself is float32.
    """
    track = backend._track_mamba_state_extend
    if "h_track_buf" in inspect.signature(track).parameters:
        track(forward, None, slots, orders, h_track_buf=state.unsqueeze(0))
    else:
        track(forward, Intermediates(state.to(activations)), slots, orders)


def parallel_as(dcp: int) -> ExitStack:
    """The process as rank 0 of a server with `dcp` context-parallel ranks. No process groups are made."""
    wide = ("tp_size", "attn_tp_size", "moe_tp_size", "dcp_size", "attn_dcp_size")
    single = ("pp_size", "attn_cp_size", "attn_dp_size", "moe_ep_size", "moe_dp_size")
    ranks = (name.replace("_size", "_rank") for name in wide + single)
    values = {**dict.fromkeys(wide, dcp), **dict.fromkeys(single, 1), **dict.fromkeys(ranks, 0), "dcp_enabled": dcp > 1}
    stack = ExitStack()
    stack.enter_context(get_parallel().override(**values))
    return stack


def made_of(kind: type, **values: Any) -> Any:
    """A dataclass from the values that this release has fields for."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})

"""The two delta-rule recurrences, one token at a time in float64, and the gates that drive them.

Both layers keep one matrix S per value head, K rows by V columns, and treat it as a memory from keys to values. A token
lets the memory fade, asks it what it holds under the key, and writes back the share `beta` of the difference:

    S <- decay S                       fade
    S <- S + beta k (v - S^T k)^T      correct what is stored under k
    o  = scale S^T q                   read with the query

Written out, that is S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T, with
    KDA, "Kimi Linear: An Expressive, Efficient Attention Architecture" (arXiv 2510.26692): one alpha per key channel;
    GDN, "Gated Delta Networks: Improving Mamba2 with Delta Rule" (arXiv 2412.06464): one alpha per head, so it commutes
    with the rest (their S is the transpose of ours).
alpha = exp(g), g <= 0. The current token's decay acts on the old state only, and the query reads after the write.

Grouped value heads: q and k have H heads, everything else HV, a multiple; value head h uses q, k head h // (HV // H).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Recurrence(NamedTuple):
    """What a run over T tokens leaves behind, all float64 and owned by the caller."""

    o: Tensor  # [T, HV, V]
    state: Tensor  # [HV, K, V], after the last token
    kept: dict[int, Tensor]  # tokens absorbed in this run -> the state [HV, K, V] at that point; 0 is the initial state


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    *,
    scale: float | None = None,
    keep: Iterable[int] = (),
) -> Recurrence:
    """Kimi Delta Attention: each key channel fades at its own rate.

    q, k [T, H, K], already l2-normalised; v [T, HV, V]; g [T, HV, K] log decay; beta [T, HV]; state [HV, K, V] or None
    for zeros, never modified. `scale` defaults to K ** -0.5. `keep` names the token counts, 0 to T, whose states to
    return; `range(1, T + 1)` is every token.
    """
    return _delta_rule(q, k, v, g, beta, state, scale, keep)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    *,
    scale: float | None = None,
    keep: Iterable[int] = (),
) -> Recurrence:
    """Gated DeltaNet: a value head fades as a whole, so g is [T, HV]. Everything else is as in `kda`."""
    return _delta_rule(q, k, v, g.unsqueeze(-1), beta, state, scale, keep)


def _delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None,
    scale: float | None,
    keep: Iterable[int],
) -> Recurrence:
    """The recurrence of the module docstring, for a log decay g [T, HV, K or 1].

    A run cut in two is bit-identical to the whole. So the loop multiplies and sums elementwise, where a BLAS call may
    round by where a row lies in memory; and exp is taken token by token, as torch rounds it by place in the tensor.
    """
    tokens, key_dim = q.shape[0], q.shape[-1]
    value_heads, value_dim = v.shape[1:]
    wanted = set(keep)
    if outside := sorted(depth for depth in wanted if not 0 <= depth <= tokens):
        raise ValueError(f"cannot keep the state after {outside[0]} tokens of a run over {tokens}")

    scale = key_dim**-0.5 if scale is None else scale
    queries = _per_value_head(q.double() * scale, value_heads).unsqueeze(-1)  # [T, HV, K, 1]
    keys = _per_value_head(k.double(), value_heads).unsqueeze(-1)  # [T, HV, K, 1]
    written = keys * beta.double()[..., None, None]  # [T, HV, K, 1]
    log_decay = g.double().unsqueeze(-1)  # [T, HV, K or 1, 1]
    v = v.double()

    memory = v.new_zeros(value_heads, key_dim, value_dim) if state is None else state.double().clone()
    if memory.shape != (value_heads, key_dim, value_dim):
        raise ValueError(f"state {tuple(memory.shape)} does not fit {(value_heads, key_dim, value_dim)}")
    o = torch.empty_like(v)
    kept = {0: memory.clone()} if 0 in wanted else {}
    for t in range(tokens):
        memory *= log_decay[t].exp()
        recalled = (memory * keys[t]).sum(-2)  # [HV, V]
        memory += written[t] * (v[t] - recalled).unsqueeze(-2)
        o[t] = (memory * queries[t]).sum(-2)
        if t + 1 in wanted:
            kept[t + 1] = memory.clone()
    return Recurrence(o, memory, kept)


def _per_value_head(x: Tensor, value_heads: int) -> Tensor:
    """[T, H, K] -> [T, HV, K]: neighbouring value heads share a head of x."""
    group, rest = divmod(value_heads, x.shape[1])
    if rest:
        raise ValueError(f"{value_heads} value heads cannot share {x.shape[1]} key heads evenly")
    return x.repeat_interleave(group, dim=1)


def kda_gate(x: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """KDA's log decay [T, H, K] = -exp(A_log) softplus(x + dt_bias): x [T, H*K], a_log [H], dt_bias [H*K]."""
    heads = a_log.shape[0]
    return -a_log.double().exp()[:, None] * softplus(x.double() + dt_bias.double()).unflatten(-1, (heads, -1))


def gdn_gate(a: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """GDN's log decay [T, HV] = -exp(A_log) softplus(a + dt_bias): a [T, HV], a_log and dt_bias [HV]."""
    return -a_log.double().exp() * softplus(a.double() + dt_bias.double())


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) for all x. torch's own returns x itself from 20 on, which float64 can tell apart."""
    return torch.logaddexp(x, torch.zeros_like(x))


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis: eps inside the root, added to the sum and not to the norm."""
    x = x.double()
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()

"""FLA's own kernels: the batched executor against Triton's interpreter, bit for bit, and against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from fla.modules.causal_conv1d import causal_conv1d
from fla.modules.norm import FusedRMSNormGated
from fla.modules.norm.l2norm import l2norm
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from fla.ops.kda import chunk_kda, fused_recurrent_kda
from fla.ops.kda.naive import naive_recurrent_kda
from mamba_replay_check.kernels.executor.scope import Executor, executing
from torch import Tensor

KDA, GDN = "kda", "gdn"
OPS = {
    (KDA, "chunk"): chunk_kda,
    (KDA, "recurrent"): fused_recurrent_kda,
    (GDN, "chunk"): chunk_gated_delta_rule,
    (GDN, "recurrent"): fused_recurrent_gated_delta_rule,
}


@dataclass(frozen=True)
class Case:
    """One call of a linear-attention op.

    bounds: where packed sequences begin and end.
    raw:    what the kernel itself makes of raw input.
    """

    id: str
    mixer: str = KDA
    form: str = "chunk"
    tokens: int = 70
    heads: int = 1
    value_heads: int = 1
    dim: int = 64
    bounds: tuple[int, ...] = ()
    state: bool = True
    raw: frozenset[str] = frozenset()
    options: dict = field(default_factory=dict)

    def inputs(self, dtype: torch.dtype = torch.float32) -> dict[str, object]:
        torch.manual_seed(len(self.id))
        t, h, hv, d = self.tokens, self.heads, self.value_heads, self.dim
        q, k, v = torch.randn(1, t, h, d), torch.randn(1, t, h, d), torch.randn(1, t, hv, d)
        if "norm" not in self.raw:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        decays = (1, t, hv, d) if self.mixer == KDA else (1, t, hv)
        g = torch.randn(decays) if "gate" in self.raw else F.logsigmoid(torch.randn(decays)) / 4
        beta = torch.randn(1, t, hv) if "beta" in self.raw else torch.rand(1, t, hv)
        made = {"q": q.to(dtype), "k": k.to(dtype), "v": v.to(dtype), "g": g, "beta": beta.to(dtype)}
        if "gate" in self.raw:
            made |= {"A_log": torch.randn(hv) / 2, "dt_bias": torch.randn(hv * (d if self.mixer == KDA else 1))}
        if self.bounds:
            made["cu_seqlens"] = torch.tensor(self.bounds)
        if self.state:
            sequences = max(1, len(self.bounds) - 1)
            made |= {"initial_state": torch.randn(sequences, hv, d, d) / 8, "output_final_state": True}
        flags = {"gate": "use_gate_in_kernel", "norm": "use_qk_l2norm_in_kernel", "beta": "use_beta_sigmoid_in_kernel"}
        return made | {flags[name]: True for name in self.raw} | self.options

    def run(self, executor: Executor, inputs: dict[str, object]) -> list[Tensor]:
        copies = {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}
        with executing(executor), torch.inference_mode():
            return [x for x in OPS[self.mixer, self.form](**copies) if x is not None]


def oracle(case: Case, inputs: dict[str, object]) -> tuple[Tensor, Tensor]:
    """o [1, T, HV, V] and the final states [N, HV, K, V], token by token in float64."""
    q, k, v, g, beta = (inputs[name].double() for name in ("q", "k", "v", "g", "beta"))
    if "norm" in case.raw:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    if "beta" in case.raw:
        beta = beta.sigmoid()
    if "gate" in case.raw:
        bias = inputs["dt_bias"].double().view(g.shape[2:])
        rate = inputs["A_log"].double().exp().view(-1, *[1] * (g.ndim - 3))
        bound = case.options.get("lower_bound")
        g = -rate * F.softplus(g + bias) if bound is None else bound * torch.sigmoid(rate * (g + bias))
    g = g if case.mixer == KDA else g[..., None].expand(*g.shape, case.dim)
    q, k = (x.repeat_interleave(case.value_heads // case.heads, dim=2) for x in (q, k))
    out, finals = torch.empty_like(v), []
    bounds = case.bounds or (0, case.tokens)
    for n, (start, stop) in enumerate(pairwise(bounds)):
        state = inputs["initial_state"][n].double() if case.state else v.new_zeros(case.value_heads, case.dim, case.dim)
        for t in range(start, stop):
            state = state * g[0, t].exp()[..., None]
            delta = beta[0, t][:, None] * (v[0, t] - torch.einsum("hk,hkv->hv", k[0, t], state))
            state = state + k[0, t][..., None] * delta[:, None]
            out[0, t] = torch.einsum("hk,hkv->hv", q[0, t], state) * case.dim**-0.5
        finals.append(state)
    return out, torch.stack(finals)


def relative_error(got: Tensor, exact: Tensor) -> float:
    return ((got.double() - exact).norm() / exact.norm()).item()


RAW = frozenset({"gate", "norm", "beta"})
MIXERS = [
    Case("kda-plain", state=False),
    Case("kda-1-token", tokens=1),
    Case("kda-63-tokens", tokens=63),
    Case("kda-64-tokens", tokens=64),
    Case("kda-65-tokens", tokens=65),
    Case("kda-200-tokens", tokens=200),
    Case("kda-chunk-32", tokens=80, options={"chunk_size": 32}),
    Case("kda-gate-in-kernel", raw=frozenset({"gate"})),
    Case("kda-norm-in-kernel", raw=frozenset({"norm"})),
    Case("kda-beta-in-kernel", raw=frozenset({"beta"})),
    Case("kda-2-heads-all-in-kernel", heads=2, value_heads=2, raw=RAW),
    Case("kda-K128", tokens=66, dim=128),
    Case("kda-grouped-values", value_heads=2),
    Case("kda-packed", tokens=140, bounds=(0, 1, 66, 140)),
    Case("kda-packed-all-in-kernel", tokens=70, bounds=(0, 3, 4, 70), raw=RAW),
    Case("kda-intermediate-states", tokens=130, options={"return_intermediate_states": True}),
    Case("kda-recurrent", form="recurrent", tokens=70),
    Case("kda-recurrent-packed", form="recurrent", tokens=70, bounds=(0, 1, 30, 70)),
    Case("kda-recurrent-all-in-kernel", form="recurrent", tokens=40, raw=RAW),
    Case("gdn-plain", GDN, state=False),
    Case("gdn-1-token", GDN, tokens=1),
    Case("gdn-63-tokens", GDN, tokens=63),
    Case("gdn-64-tokens", GDN, tokens=64),
    Case("gdn-65-tokens", GDN, tokens=65),
    Case("gdn-200-tokens", GDN, tokens=200),
    Case("gdn-gate-in-kernel", GDN, raw=frozenset({"gate"})),
    Case("gdn-norm-in-kernel", GDN, raw=frozenset({"norm"})),
    Case("gdn-beta-in-kernel", GDN, raw=frozenset({"beta"})),
    Case("gdn-2-heads-all-in-kernel", GDN, heads=2, value_heads=2, raw=RAW),
    Case("gdn-K128", GDN, dim=128),
    Case("gdn-grouped-values", GDN, value_heads=2),
    Case("gdn-packed", GDN, tokens=200, bounds=(0, 1, 66, 200)),
    Case("gdn-packed-all-in-kernel", GDN, tokens=70, bounds=(0, 3, 4, 70), raw=RAW),
    Case("gdn-recurrent", GDN, form="recurrent", tokens=70),
    Case("gdn-recurrent-packed", GDN, form="recurrent", tokens=70, bounds=(0, 1, 30, 70)),
    Case("gdn-recurrent-all-in-kernel", GDN, form="recurrent", tokens=40, raw=RAW),
]


@pytest.mark.parametrize("case", MIXERS, ids=lambda case: case.id)
def test_a_mixer_is_bit_identical_and_right(case: Case) -> None:
    inputs = case.inputs()
    batched, stock = case.run(Executor.BATCHED, inputs), case.run(Executor.STOCK, inputs)
    assert len(batched) == len(stock)
    assert all(torch.equal(a, b) for a, b in zip(batched, stock, strict=True))
    exact = oracle(case, inputs)
    # A sum of n float32 products is off by at most n roundings; the longest here run over a chunk or a head.
    bound = max(64, case.dim) * torch.finfo(torch.float32).eps
    for got, want in zip(batched[:2], exact, strict=False):
        assert relative_error(got, want) < bound


def test_intermediate_states_are_the_states_before_each_chunk() -> None:
    case = next(c for c in MIXERS if c.id == "kda-intermediate-states")
    inputs = case.inputs()
    *_, states = case.run(Executor.BATCHED, inputs)
    assert torch.equal(states[0, 0], inputs["initial_state"][0].to(states.dtype))
    head = Case("head", tokens=64)
    half = {n: x[:, :64] if n in ("q", "k", "v", "g", "beta") else x for n, x in inputs.items()}
    _, after = oracle(head, half)
    assert relative_error(states[0, 1], after[0]) < 64 * torch.finfo(torch.float32).eps


def test_the_oracle_agrees_with_flas_own() -> None:
    case = Case("oracle", value_heads=2)
    inputs = case.inputs()
    out, state = naive_recurrent_kda(**inputs)
    exact = oracle(case, inputs)
    assert relative_error(out, exact[0]) < 1e-6
    assert relative_error(state, exact[1]) < 1e-6


@pytest.mark.parametrize("bound", [-5.0, -1.0])
def test_the_safe_gate_is_right(bound: float) -> None:
    """Triton's own interpreter cannot run it (FLA captured a builtin at import), so only the numbers are compared."""
    case = Case("safe", tokens=130, raw=frozenset({"gate"}), options={"safe_gate": True, "lower_bound": bound})
    inputs = case.inputs()
    got = case.run(Executor.BATCHED, inputs)
    for mine, want in zip(got, oracle(case, inputs), strict=True):
        assert relative_error(mine, want) < 64 * torch.finfo(torch.float32).eps


SIXTEEN_BITS = [
    Case("kda", tokens=130),
    Case("kda-recurrent", form="recurrent", tokens=130),
    Case("kda-packed", tokens=130, bounds=(0, 1, 70, 130)),
    Case("gdn", GDN, tokens=130),
    Case("gdn-K128", GDN, tokens=130, dim=128),
    Case("gdn-recurrent", GDN, form="recurrent", tokens=130),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("case", SIXTEEN_BITS, ids=lambda case: case.id)
def test_sixteen_bit_inputs_cost_a_few_roundings(case: Case, dtype: torch.dtype) -> None:
    """The oracle starts from the rounded inputs, so what is left is what the kernels round on the way: A, w, u, the new
    values, the states and the output. Six roundings of half an eps each, and the numbers must really have been rounded.
    """
    inputs = case.inputs(dtype)
    got = case.run(Executor.BATCHED, inputs)
    assert got[0].dtype == dtype
    eps = torch.finfo(dtype).eps
    for mine, want in zip(got, oracle(case, inputs), strict=True):
        assert relative_error(mine, want) < 6 * eps / 2
    assert relative_error(got[0], oracle(case, inputs)[0]) > eps / 16


# ---- the ops around the recurrence ----------------------------------------------------------------------------------


def both(op: Callable[[], tuple]) -> list[list[Tensor]]:
    results = []
    for executor in (Executor.BATCHED, Executor.STOCK):
        with executing(executor), torch.inference_mode():
            made = op()
        results.append([x for x in (made if isinstance(made, tuple) else (made,)) if x is not None])
    return results


@pytest.mark.parametrize("tokens", [1, 3, 64, 65, 200])
@pytest.mark.parametrize("state", [False, True], ids=["cold", "resumed"])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_the_short_convolution(tokens: int, state: bool, activation: str | None) -> None:
    torch.manual_seed(tokens)
    channels, width = 96, 4
    x, weight, bias = torch.randn(2, tokens, channels), torch.randn(channels, width), torch.randn(channels)
    before = torch.randn(2, channels, width) if state else None
    batched, stock = both(
        lambda: causal_conv1d(
            x, weight, bias, initial_state=before, output_final_state=True, activation=activation, backend="triton"
        )
    )
    assert all(torch.equal(a, b) for a, b in zip(batched, stock, strict=True))
    history = before[..., 1:] if state else torch.zeros(2, channels, width - 1)
    padded = torch.cat([history.mT, x], dim=1).double()
    want = F.conv1d(padded.mT, weight.double()[:, None], bias.double(), groups=channels).mT
    want = F.silu(want) if activation else want
    assert relative_error(batched[0], want) < 4 * torch.finfo(torch.float32).eps
    assert torch.equal(batched[1][..., 1:], padded[:, -(width - 1) :].mT.float())


def test_the_short_convolution_over_packed_sequences() -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(1, 140, 80), torch.randn(80, 4)
    bounds = torch.tensor([0, 1, 3, 70, 140])
    before = torch.randn(4, 80, 4)
    run = lambda x, before, bounds: causal_conv1d(  # noqa: E731
        x,
        weight,
        initial_state=before,
        output_final_state=True,
        activation="silu",
        backend="triton",
        cu_seqlens=bounds,
    )
    batched, stock = both(lambda: run(x, before, bounds))
    assert all(torch.equal(a, b) for a, b in zip(batched, stock, strict=True))
    with executing(Executor.BATCHED):
        for n, (start, stop) in enumerate(pairwise(bounds.tolist())):
            alone, state = run(x[:, start:stop], before[n : n + 1], None)
            assert torch.equal(alone, batched[0][:, start:stop])
            assert torch.equal(state[0], batched[1][n])


@pytest.mark.parametrize("shape", [(1, 64), (5, 3, 64), (130, 2, 128), (7, 100)], ids=str)
def test_l2norm(shape: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    x = torch.randn(shape)
    (batched,), (stock,) = both(lambda: l2norm(x))
    assert torch.equal(batched, stock)
    wide = x.double()
    want = wide / (wide.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    assert relative_error(batched, want) < 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("activation", ["swish", "sigmoid"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 64), (1, 70, 2, 128), (3, 100)], ids=str)
def test_gated_rms_norm(shape: tuple[int, ...], activation: str) -> None:
    torch.manual_seed(3)
    x, gate = torch.randn(shape), torch.randn(shape)
    norm = FusedRMSNormGated(shape[-1], activation=activation, eps=1e-5)
    torch.nn.init.normal_(norm.weight)
    norm.requires_grad_(False)
    (batched,), (stock,) = both(lambda: norm(x, gate))
    assert torch.equal(batched, stock)
    wide = x.double()
    want = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm.weight.double()
    want = want * (F.silu(gate.double()) if activation == "swish" else gate.double().sigmoid())
    assert relative_error(batched, want) < 8 * torch.finfo(torch.float32).eps

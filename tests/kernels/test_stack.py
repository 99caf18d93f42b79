"""The model on FLA's kernels against the float64 reference, and against itself cut in every way."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from mamba_replay_check.checker.layers import AttentionSpec
from mamba_replay_check.kernels import fla
from mamba_replay_check.kernels.backend import BackendError, choose_backend
from mamba_replay_check.kernels.executor.scope import Executor, executing
from mamba_replay_check.kernels.presets import PRESETS
from mamba_replay_check.kernels.stack import Span, Stack, Trace, float_type
from mamba_replay_check.kernels.weights import seeded_weights
from mamba_replay_check.reference import stack as reference
from torch import Tensor

MODELS = list(PRESETS)
CPU = choose_backend("cpu", "batched")

UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9}


@cache
def stack(model: str, chunk: int = 64, dtype: torch.dtype = torch.float32) -> Stack:
    return Stack(PRESETS[model], chunk, 0, dtype, CPU)


def tokens(length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 100_000, (length,), generator=torch.Generator().manual_seed(seed))


@cache
def cold(model: str, length: int, chunk: int = 64, dtype: torch.dtype = torch.float32) -> Trace:
    return stack(model, chunk, dtype).run([Span(tokens(length))])[0]


def resume(model: str, length: int, at: int) -> Span:
    trace = cold(model, length)
    state = trace.state(at // 64, at)
    return Span(tokens(length)[at:], at, state, {i: c.cut(at) for i, c in trace.caches.items()})


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "length, dtype",
    [*((n, torch.float32) for n in (1, 63, 64, 65, 500)), (65, torch.bfloat16), (500, torch.bfloat16)],
    ids=str,
)
def test_every_layer_against_the_reference(model: str, length: int, dtype: torch.dtype, record_property) -> None:
    """One layer at a time from the kernels' own input to it, so that errors do not add up over layers.

    A layer is a chain of matrix products over up to 128 channels and a recurrence within a chunk of 64; the classic
    bound for a sum of n rounded terms is n units of roundoff, and the worst chain here is one of 128 + 64 terms.
    """
    model_stack, trace = stack(model, dtype=dtype), cold(model, length, dtype=dtype)
    x = trace.inputs
    for i, spec in enumerate(model_stack.preset.layers):
        exact = reference.run_layer(model_stack.weights, i, spec, x).out
        error = relative(trace.hidden[i], exact)
        record_property(f"layer {i}", error)
        assert error < (128 + 64) * UNIT_ROUNDOFF[dtype]
        x = trace.hidden[i]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("chunk", [32, 64])
def test_states_against_the_reference(model: str, chunk: int) -> None:
    """h[m] is the state before chunk m: the reference's after exactly m * chunk tokens, and not one more."""
    trace, model_stack = cold(model, 200, chunk), stack(model, chunk)
    x = trace.inputs
    for i, spec in enumerate(model_stack.preset.layers):
        depths = [0, chunk, 2 * chunk, 199, 200]
        run = reference.run_layer(model_stack.weights, i, spec, x, keep=depths)
        x = trace.hidden[i]
        if isinstance(spec, AttentionSpec):
            continue
        for m in (1, 2):
            assert relative(trace.recurrent[i].chunks[m], run.kept[m * chunk].recurrent) < 1e-5
            assert torch.allclose(
                trace.recurrent[i].window(m * chunk).T.double(), run.kept[m * chunk].window, atol=1e-5
            )
        assert relative(trace.recurrent[i].final, run.kept[200].recurrent) < 1e-5
        assert relative(trace.recurrent[i].final, run.kept[199].recurrent) > 1e-3, "one token more shows"
        assert not trace.recurrent[i].chunks[0].any()


@pytest.mark.parametrize("model", MODELS)
def test_clean_resume_reproduces_the_cold_run(model: str) -> None:
    (resumed,) = stack(model).run([resume(model, 500, 256)])
    for i, spec in enumerate(PRESETS[model].layers):
        apart = relative(resumed.hidden[i], cold(model, 500).hidden[i][256:])
        assert apart < 1e-6
        if i == 0 and not isinstance(spec, AttentionSpec):
            assert torch.equal(resumed.recurrent[0].final, cold(model, 500).recurrent[0].final)


@pytest.mark.parametrize("model", MODELS)
def test_wrong_state_shows_at_the_first_token(model: str) -> None:
    span = resume(model, 500, 256)
    deeper = Span(span.tokens, 256, cold(model, 500).state(6, 384), span.caches)
    (resumed,) = stack(model).run([deeper])
    assert relative(resumed.hidden[:, 0], cold(model, 500).hidden[:, 256]) > 0.05


@pytest.mark.parametrize("model", MODELS)
def test_packed_spans_compute_what_single_ones_do(model: str) -> None:
    spans = [resume(model, 500, at) for at in (64, 256, 448)]
    packed = stack(model).run(spans)
    for span, together in zip(spans, packed, strict=True):
        (alone,) = stack(model).run([span])
        assert relative(together.hidden, alone.hidden) < 1e-6
        assert together.end == alone.end == 500
        for i in alone.recurrent:
            assert relative(together.recurrent[i].final, alone.recurrent[i].final) < 1e-6
            assert together.recurrent[i].chunks.shape == alone.recurrent[i].chunks.shape


def test_gated_delta_rule_is_fla_s_own_forward_pass() -> None:
    """The mixer calls FLA's kernels one by one to get at the chunk states; the result is chunk_gated_delta_rule's."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from mamba_replay_check.kernels.mixers import _gated_delta_rule

    torch.manual_seed(0)
    model = stack("qwen3-next")
    w = {k.removeprefix("layers.0."): v for k, v in model.weights.items() if k.startswith("layers.0.")}
    y, bounds = torch.randn(150, 64), torch.tensor([0, 70, 150])
    q, k, v = torch.randn(1, 150, 1, 64), torch.randn(1, 150, 1, 64), torch.randn(1, 150, 2, 64)
    beta, start = torch.rand(1, 150, 2), torch.randn(2, 2, 64, 64)
    with executing(Executor.BATCHED), torch.inference_mode():
        o, _, final, *_ = _gated_delta_rule(w, y, q, k, v, beta, start, bounds, 64)
        expected, last = chunk_gated_delta_rule(
            q,
            k,
            v,
            (y @ w["a_proj.weight"].T)[None],
            beta,
            initial_state=start,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            A_log=w["A_log"],
            dt_bias=w["dt_bias"],
            cu_seqlens=bounds,
        )
    assert torch.equal(o, expected)
    assert torch.equal(final, last)


def test_snapshots_that_a_pass_does_not_have() -> None:
    trace = cold("qwen3-next", 200)
    with pytest.raises(IndexError, match=r"no h\[4\]"):
        trace.state(4, 128)
    with pytest.raises(IndexError, match="window that ends at 201"):
        trace.state(None, 201)


def test_weights_are_seeded_by_name() -> None:
    """The same seed gives the same weights on every machine, whatever else the model holds."""
    weights = seeded_weights(PRESETS["kimi-linear"], 0, torch.float32, torch.device("cpu"))
    drawn = weights["layers.1.q_proj.weight"]
    first = torch.tensor([0.249008, 0.148179, -0.029096, 0.022300])
    assert torch.allclose(drawn.flatten()[:4], first, atol=1e-5)
    other = seeded_weights(PRESETS["kimi-linear"], 1, torch.float32, torch.device("cpu"))
    assert not torch.equal(drawn, other["layers.1.q_proj.weight"])
    assert torch.equal(
        drawn, seeded_weights(PRESETS["qwen3-next"], 0, torch.float32, CPU.device)["layers.1.q_proj.weight"]
    )


def test_gates_decay_as_in_a_real_model() -> None:
    """The mean log decay per token is neither nothing (a state that never forgets) nor everything."""
    trace = cold("kimi-linear", 500)
    assert 0.1 < float(trace.recurrent[0].final.norm()) < 1e3
    weights = stack("kimi-linear").weights
    decay = weights["layers.0.A_log"].exp() * torch.nn.functional.softplus(weights["layers.0.dt_bias"])
    assert 0.001 < float(decay.median()) < 1.6


@pytest.mark.parametrize(
    "choice, words",
    [
        (("tpu", None), "use auto, cpu or cuda"),
        (("cpu", "fast"), "batched, stock, compiled"),
        (("cpu", "compiled"), "--executor batched"),
        (("cpu", "stock", "bfloat16"), "--executor batched"),
    ],
)
def test_backends_that_cannot_be(choice: tuple, words: str) -> None:
    with pytest.raises(BackendError, match=words):
        choose_backend(*choice)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_choice_is_the_batched_interpreter() -> None:
    assert choose_backend().executor is Executor.BATCHED
    with pytest.raises(BackendError, match="needs no GPU"):
        choose_backend("cuda")


def test_importing_fla_leaves_torch_as_it_was() -> None:
    assert torch.compile.__module__ == "torch"
    assert type(torch.compiler.disable).__name__ == "function"
    assert callable(fla.chunk_kda)


def test_float_types() -> None:
    assert float_type("bfloat16") is torch.bfloat16

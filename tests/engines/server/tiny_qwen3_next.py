"""Writes a tiny seeded Qwen3-Next checkpoint: `python tiny_qwen3_next.py FOLDER SHAPE`, run by the engine's own Python.

Three linear-attention layers and one attention layer. The weights have ordinary sizes (variance one over fan-in), so
the log-probabilities vary by several nats, and a state forgets over some 50 tokens, so a wrong one is seen and stays
visible: with the class's own initial gates it would be forgotten within a token. Every token goes through all
experts: with fewer, rounding would now and then choose another one, which moves log-probabilities as far as a wrong
state does.

vLLM raises its block until the keys and values of a block are as large as a state, so the shape decides the block: 256
tokens for `narrow`, 1152 for `wide`, which does not divide the 2048 tokens that vLLM puts into one step. In `wide` the
attention layer is silent: it runs, and its output is multiplied by zero. What follows a prefix then depends on the
recurrent states alone, so a cold run of any other prefix says exactly what a state of that depth would say.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

SEED = 0
HIDDEN, VOCAB, LAYERS, EXPERTS, INNER = 128, 512, 4, 4, 64
HEADS, KV_HEADS = 4, 2
LINEAR_DIM, KERNEL = 128, 4
HEAD_DIM, KEY_HEADS, VALUE_HEADS, LOUDNESS = {"narrow": (64, 1, 1, 1.0), "wide": (32, 2, 4, 0.0)}[sys.argv[2]]

CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "linear_conv_kernel_dim": KERNEL,
    "linear_key_head_dim": LINEAR_DIM,
    "linear_value_head_dim": LINEAR_DIM,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": INNER,
    "shared_expert_intermediate_size": INNER,
    "num_experts": EXPERTS,
    "num_experts_per_tok": EXPERTS,
    "norm_topk_prob": True,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "mlp_only_layers": [],
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def weights() -> dict[str, torch.Tensor]:
    """The checkpoint's tensors by their names, float32."""
    random = torch.Generator().manual_seed(SEED)
    named: dict[str, torch.Tensor] = {}

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        named[f"{name}.weight"] = torch.randn(rows, columns, generator=random) * gain / columns**0.5

    def mlp(name: str) -> None:
        matrix(f"{name}.gate_proj", INNER, HIDDEN)
        matrix(f"{name}.up_proj", INNER, HIDDEN)
        matrix(f"{name}.down_proj", HIDDEN, INNER)

    named["model.embed_tokens.weight"] = torch.randn(VOCAB, HIDDEN, generator=random)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        # Norms of this family scale by 1 + weight, except the gated one of the linear layers.
        named[f"{at}.input_layernorm.weight"] = torch.zeros(HIDDEN)
        named[f"{at}.post_attention_layernorm.weight"] = torch.zeros(HIDDEN)
        if CONFIG["layer_types"][layer] == "full_attention":
            matrix(f"{at}.self_attn.q_proj", 2 * HEADS * HEAD_DIM, HIDDEN)
            matrix(f"{at}.self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN)
            matrix(f"{at}.self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN)
            matrix(f"{at}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, gain=LOUDNESS)
            named[f"{at}.self_attn.q_norm.weight"] = torch.zeros(HEAD_DIM)
            named[f"{at}.self_attn.k_norm.weight"] = torch.zeros(HEAD_DIM)
        else:
            keys, values = KEY_HEADS * LINEAR_DIM, VALUE_HEADS * LINEAR_DIM
            matrix(f"{at}.linear_attn.in_proj_qkvz", 2 * keys + 2 * values, HIDDEN)
            matrix(f"{at}.linear_attn.in_proj_ba", 2 * VALUE_HEADS, HIDDEN)
            matrix(f"{at}.linear_attn.out_proj", HIDDEN, values, gain=2.0)
            named[f"{at}.linear_attn.conv1d.weight"] = torch.randn(2 * keys + values, 1, KERNEL, generator=random) / 2
            named[f"{at}.linear_attn.A_log"] = (0.02 + 0.03 * torch.rand(VALUE_HEADS, generator=random)).log()
            named[f"{at}.linear_attn.dt_bias"] = torch.zeros(VALUE_HEADS)
            named[f"{at}.linear_attn.norm.weight"] = torch.ones(LINEAR_DIM)
        matrix(f"{at}.mlp.gate", EXPERTS, HIDDEN)
        matrix(f"{at}.mlp.shared_expert_gate", 1, HIDDEN)
        mlp(f"{at}.mlp.shared_expert")
        for expert in range(EXPERTS):
            mlp(f"{at}.mlp.experts.{expert}")
    named["model.norm.weight"] = torch.zeros(HIDDEN)
    matrix("lm_head", VOCAB, HIDDEN, gain=2.0)
    return named


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))

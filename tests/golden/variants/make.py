"""Write the folders beside this file: tiny random models of what architectures/ leaves out, and their logits.

    pip install torch transformers==5.24.0; python make.py

Each holds bfloat16 weights as transformers saves them, and `golden.safetensors`: `input_ids` int64 [40] and `logits`
float32 [40, vocab], one forward of transformers in float32 with eager attention but where noted.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "attn_implementation": "eager", "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "moe_intermediate_size": 16, "num_key_value_heads": 4,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
    "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
SIX_HEADS = {"n_head": 6, "n_heads": 6, "hidden_size": 48, "d_model": 48, "n_layer": 2, "n_layers": 2}

VARIANTS = {
    "falcon-grouped": {
        "model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True,
        "ffn_hidden_size": 40,
    },
    "falcon-grouped-one-norm": {
        "model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1,
    },
    "falcon-sequential-alibi": {
        "model_type": "falcon", "parallel_attn": False, "multi_query": False, "alibi": True, "bias": True,
        "attn_implementation": "sdpa",  # eager attention of 5.24 adds the biases twice
    },
    "bloom-six-heads": {"model_type": "bloom", **SIX_HEADS},
    "mpt-six-heads-clipped": {"model_type": "mpt", **SIX_HEADS, "attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.5}},
    "cohere-qk-norm": {"model_type": "cohere", "use_qk_norm": True, "attention_bias": True},
    "stablelm-parallel-qk-norm": {"model_type": "stablelm", "use_parallel_residual": True, "qk_layernorm": True},
    "phi-qk-norm": {"model_type": "phi", "qk_layernorm": True},
    "deepseek-v2-groups": {
        "model_type": "deepseek_v2", **LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy",
        "n_group": 4, "topk_group": 2, "routed_scaling_factor": 16.0, "attention_bias": True, "n_shared_experts": 2,
        "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek-v3-halves": {
        "model_type": "deepseek_v3", **LATENT, "q_lora_rank": 12, "rope_interleave": False, "n_group": 4,
        "topk_group": 2, "first_k_dense_replace": 0, "attention_bias": True,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
    },
    "qwen3-moe-some-dense": {
        "model_type": "qwen3_moe", "num_hidden_layers": 4, "mlp_only_layers": [1], "decoder_sparse_step": 2,
        "norm_topk_prob": False, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "use_sliding_window": True, "sliding_window": 6, "head_dim": 12, "attention_bias": True,
    },
    "olmoe-clipped": {
        "model_type": "olmoe", "clip_qkv": 1.0, "norm_topk_prob": True, "num_experts": 4, "num_experts_per_tok": 3,
        "attention_bias": True,
    },
    "mixtral-window": {"model_type": "mixtral", "num_local_experts": 4, "sliding_window": 6},
    "gpt-oss-default-rope": {
        "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 6,
        "num_hidden_layers": 3,
    },
    "exaone4-no-window": {"model_type": "exaone4", "sliding_window": None, "layer_types": ["full_attention"] * 2},
    "smollm3-window": {
        "model_type": "smollm3", "use_sliding_window": True, "sliding_window": 6, "no_rope_layers": [0, 1],
    },
    "gpt2-unscaled": {
        "model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "n_inner": 40,
        "scale_attn_weights": False, "activation_function": "relu",
    },
    "opt-no-bias": {"model_type": "opt", "enable_bias": False, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "starcoder2-no-bias": {"model_type": "starcoder2", "use_bias": False},
    "ernie4-5-bias": {"model_type": "ernie4_5", "use_bias": True, "head_dim": 12},
    "gpt-neox-no-bias-linear": {
        "model_type": "gpt_neox", "attention_bias": False,
        "rope_parameters": {
            "rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0, "partial_rotary_factor": 0.5,
        },
    },
    "olmo3-yarn": {
        "model_type": "olmo3", "num_hidden_layers": 4, "sliding_window": 6,
        "rope_parameters": {
            "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "nemotron-bias": {"model_type": "nemotron", "attention_bias": True, "mlp_bias": True, "head_dim": 12},
    "granite-bias-llama3": {
        "model_type": "granite", "attention_bias": True, "mlp_bias": True, "attention_multiplier": 0.3,
        "residual_multiplier": 0.5, "logits_scaling": 2.0, "embedding_multiplier": 3.0,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
        },
    },
    "gemma-legacy-gelu": {"model_type": "gemma", "hidden_act": "gelu", "head_dim": 12},
    "glm4-no-bias": {"model_type": "glm4", "attention_bias": False, "head_dim": 16},
}  # fmt: skip


def make(folder: Path, seed: int, settings: dict) -> None:
    """One model: weights of spread 1 / sqrt(in), norms around one, everything else small."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(**{**SMALL, **settings})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    corrections = [(name, tensor) for name, tensor in model.named_buffers() if "correction" in name]
    for name, tensor in [*model.named_parameters(), *corrections]:
        spread = 0.2 if tensor.ndim < 2 else tensor.shape[-1] ** -0.5
        norm = tensor.ndim < 3 and name.endswith("weight") and ("norm" in name or "ln_" in name)
        values = torch.randn(tensor.shape) * (0.2 if norm else spread) + (1.0 if norm else 0.0)
        tensor.data.copy_(values.to(torch.bfloat16))
    model.tie_weights()
    ids = torch.randint(3, config.vocab_size, (40,))
    with torch.no_grad():
        logits = model.eval()(ids[None], use_cache=False).logits[0]
    model.to(torch.bfloat16).save_pretrained(folder)
    save_file({"input_ids": ids, "logits": logits.contiguous()}, folder / "golden.safetensors")
    (folder / "generation_config.json").unlink(missing_ok=True)


if __name__ == "__main__":
    for seed, (name, settings) in enumerate(VARIANTS.items()):
        make(Path(__file__).parent / name, seed, settings)

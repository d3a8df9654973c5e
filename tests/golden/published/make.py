"""Write `sizes.json` beside this file: what transformers counts of models whose config.json is of a form in the wild.

    pip install torch transformers==5.24.0; python make.py

The configs have the shapes of well-known models and the keys that version 4 of transformers, or the models' own code
before it, wrote; much is left to the classes. Parameters are counted without a weight being made; a tied head counts
once. "rope" is the base that the model turns at.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

CONFIGS = {
    "gpt2": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_ctx": 1024,
        "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "layer_norm_epsilon": 1e-05,
        "vocab_size": 50257, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
    "opt-125m": {
        "_remove_final_layer_norm": False, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
        "do_layer_norm_before": True, "ffn_dim": 3072, "hidden_size": 768, "max_position_embeddings": 2048,
        "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12, "prefix": "</s>",
        "torch_dtype": "float16", "vocab_size": 50272, "word_embed_proj_dim": 768,
    },
    "pythia-70m": {
        "architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu", "hidden_size": 512, "intermediate_size": 2048,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox",
        "num_attention_heads": 8, "num_hidden_layers": 6, "rotary_emb_base": 10000, "rotary_pct": 0.25,
        "tie_word_embeddings": False, "use_parallel_residual": True, "vocab_size": 50304,
    },
    "bloom-560m": {
        "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
        "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "layer_norm_epsilon": 1e-05,
        "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 1024, "n_inner": None, "n_layer": 24,
        "num_attention_heads": 16, "offset_alibi": 100, "pretraining_tp": 1, "skip_bias_add": True,
        "unk_token_id": 0, "vocab_size": 250880,
    },
    "falcon-7b": {
        "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
        "bias": False, "hidden_size": 4544, "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True,
        "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71,
        "parallel_attn": True, "vocab_size": 65024,
    },
    "falcon-40b": {
        "alibi": False, "architectures": ["FalconForCausalLM"], "bias": False, "hidden_size": 8192,
        "layer_norm_epsilon": 1e-05, "model_type": "falcon", "new_decoder_architecture": True,
        "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8, "parallel_attn": True,
        "vocab_size": 65024,
    },
    "falcon-rw-1b": {
        "alibi": True, "architectures": ["FalconForCausalLM"], "bias": True, "hidden_size": 2048,
        "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": False,
        "new_decoder_architecture": False, "num_attention_heads": 32, "num_hidden_layers": 24,
        "parallel_attn": False, "vocab_size": 50304,
    },
    "mpt-7b": {
        "architectures": ["MPTForCausalLM"], "attn_config": {
            "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
            "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False,
            "qk_ln": False, "softmax_scale": None,
        },
        "d_model": 4096, "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4, "init_device": "cpu",
        "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048, "model_type": "mpt", "n_heads": 32,
        "n_layers": 32, "no_bias": True, "norm_type": "low_precision_layernorm", "vocab_size": 50432,
    },
    "phi-2": {
        "architectures": ["PhiForCausalLM"], "hidden_act": "gelu_new", "hidden_size": 2560,
        "intermediate_size": 10240, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "phi",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4,
        "qk_layernorm": False, "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "vocab_size": 51200,
    },
    "gemma-2b": {
        "architectures": ["GemmaForCausalLM"], "attention_bias": False, "head_dim": 256, "hidden_act": "gelu",
        "hidden_size": 2048, "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
        "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 10000.0, "vocab_size": 256000,
    },
    "gemma-2-2b": {
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
        "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
        "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000,
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "decoder_sparse_step": 1,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
        "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "olmoe-1b-7b": {
        "architectures": ["OlmoeForCausalLM"], "attention_bias": False, "clip_qkv": None, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 1024, "max_position_embeddings": 4096, "model_type": "olmoe",
        "norm_topk_prob": False, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
        "num_hidden_layers": 16, "num_key_value_heads": 16, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 50304,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "experts_per_token": 4, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": False,
        },
        "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
        "vocab_size": 201088,
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944,
        "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
        "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
        "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6,
        "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True,
        "tie_word_embeddings": False, "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128,
        "vocab_size": 102400,
    },
    "deepseek-v3": {
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "ep_size": 1,
        "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
        "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
        "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
        "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False,
        "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280,
    },
    "command-r": {
        "architectures": ["CohereForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 8192,
        "intermediate_size": 22528, "layer_norm_eps": 1e-05, "logit_scale": 0.0625,
        "max_position_embeddings": 131072, "model_max_length": 131072, "model_type": "cohere",
        "num_attention_heads": 64, "num_hidden_layers": 40, "num_key_value_heads": 64, "rope_theta": 8000000.0,
        "vocab_size": 256000,
    },
    "command-r7b": {
        "_sliding_window_pattern": 4, "architectures": ["Cohere2ForCausalLM"], "attention_bias": False,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25, "max_position_embeddings": 8192,
        "model_type": "cohere2", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj",
        "rope_scaling": None, "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096,
        "sliding_window_pattern": 4, "use_embedding_sharing": True, "use_gated_activation": True,
        "use_parallel_block": True, "use_parallel_embedding": True, "vocab_size": 256000,
    },
    "stablelm-2-1.6b": {
        "architectures": ["StableLmForCausalLM"], "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 5632, "layer_norm_eps": 1e-05, "max_position_embeddings": 4096,
        "model_type": "stablelm", "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32,
        "partial_rotary_factor": 0.25, "rope_theta": 10000, "tie_word_embeddings": False, "use_qkv_bias": True,
        "vocab_size": 100352,
    },
    "starcoder2-3b": {
        "activation_function": "gelu", "architectures": ["Starcoder2ForCausalLM"],
        "attention_softmax_in_fp32": True, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072,
        "intermediate_size": 12288, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16384,
        "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
        "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
        "rope_theta": 999999.4420358813, "sliding_window": 4096, "use_bias": True, "vocab_size": 49152,
    },
    "minitron-4b": {
        "architectures": ["NemotronForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_act": "relu2",
        "hidden_size": 3072, "intermediate_size": 9216, "max_position_embeddings": 4096, "mlp_bias": False,
        "model_type": "nemotron", "norm_eps": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "vocab_size": 256000,
    },
    "olmo-1b": {
        "architectures": ["OlmoForCausalLM"], "attention_bias": False, "clip_qkv": None, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 2048, "model_type": "olmo",
        "num_attention_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 16, "rope_scaling": None,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "vocab_size": 50304,
    },
    "olmo-2-7b": {
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 500000, "tie_word_embeddings": False, "vocab_size": 100352,
    },
    "granite-3-2b": {
        "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
        "logits_scaling": 8.0, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "granite",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 5000000.0, "tie_word_embeddings": True,
        "vocab_size": 49155,
    },
    "smollm3-3b": {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 11008, "max_position_embeddings": 65536, "mlp_bias": False, "model_type": "smollm3",
        "no_rope_layer_interval": 4, "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
        "use_sliding_window": False, "vocab_size": 128256,
    },
    "glm-4-9b-0414": {
        "architectures": ["Glm4ForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 13696, "max_position_embeddings": 32768, "model_type": "glm4",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 151552,
    },
    "ernie-4.5-0.3b": {
        "architectures": ["Ernie4_5ForCausalLM"], "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "intermediate_size": 3072, "max_position_embeddings": 131072, "model_type": "ernie4_5",
        "num_attention_heads": 16, "num_hidden_layers": 18, "num_key_value_heads": 2, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": True, "use_bias": False,
        "vocab_size": 103424,
    },
    "exaone-4.0-1.2b": {
        "architectures": ["Exaone4ForCausalLM"], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 4096, "layer_types": ["full_attention"] * 30, "max_position_embeddings": 65536,
        "model_type": "exaone4", "num_attention_heads": 32, "num_hidden_layers": 30, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 1000000, "sliding_window": None, "sliding_window_pattern": None, "tie_word_embeddings": True,
        "vocab_size": 102400,
    },
}  # fmt: skip


def counted(config: dict) -> dict:
    """The config with what transformers makes of it."""
    settings = copy.deepcopy({key: value for key, value in config.items() if key != "architectures"})
    read = AutoConfig.for_model(**settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(read)
    parameters = sum(tensor.numel() for tensor in {id(t): t for t in model.parameters()}.values())
    if read.tie_word_embeddings and model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        parameters -= model.get_output_embeddings().weight.numel()
    corrections = sum(t.numel() for name, t in model.named_buffers() if "correction" in name)
    rope = getattr(read, "rope_parameters", None) or {}
    return {"config": config, "parameters": parameters + corrections, "rope": rope.get("rope_theta")}


if __name__ == "__main__":
    sizes = {name: counted(config) for name, config in CONFIGS.items()}
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(size)}" for name, size in sizes.items())
    (Path(__file__).parent / "sizes.json").write_text(f"{{\n{text}\n}}\n")

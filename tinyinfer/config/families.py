"""The table of families: what config.json leaves unsaid about the models of one architecture, and how it says the rest.

Defaults are those of transformers' configuration classes. What a family calls its tensors stands in `model/names.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .facts import AFTER, BEFORE
from .family import Family
from .keys import Keys

ALONE = ("attention_norm",)  # parallel: the feed-forward sees what attention sees


def four_times_hidden(keys: Keys) -> int:
    """The feed-forward's usual width."""
    return 4 * keys.size("hidden_size")


def alibi_slopes(heads: int, steepest: float = 8.0) -> tuple[float, ...]:
    """What a score loses with each position back, for each head: https://arxiv.org/abs/2108.12409, section 3.

    2^(-steepest i / n) for i = 1 .. n, where n is the next power of two; of more than there are heads, every second.
    """
    count = 2 ** math.ceil(math.log2(heads))
    slopes = [2 ** (-steepest * i / count) for i in range(1, count + 1)]
    return tuple((slopes[1::2] + slopes[::2])[:heads] if count > heads else slopes)


def _heads(keys: Keys) -> int:
    return keys.size("num_attention_heads")


def _flag(name: str, fallback: bool = False) -> Callable[[Keys], bool]:
    return lambda keys: keys.flag(name, fallback)


def _falcon_kv_heads(keys: Keys) -> int:
    if keys.flag("new_decoder_architecture"):
        return keys.size("num_kv_heads", _heads(keys))
    return 1 if keys.flag("multi_query", True) else _heads(keys)


def _falcon_norms(keys: Keys) -> tuple[str, ...]:
    if not keys.flag("parallel_attn", True):
        return BEFORE
    both = keys.flag("new_decoder_architecture") and keys.get("num_ln_in_parallel_attn", 2) == 2
    return BEFORE if both else ALONE


def _falcon_slopes(keys: Keys) -> tuple[float, ...]:
    if not keys.flag("alibi"):
        return ()
    scale = (keys.size("hidden_size") // _heads(keys)) ** -0.5  # its scores lose the slope before they are scaled
    return tuple(scale * slope for slope in alibi_slopes(_heads(keys)))


def _gptj_rotary_share(keys: Keys) -> float:
    return keys.size("rotary_dim", 64) * _heads(keys) / keys.size("hidden_size")


LAYER_NORM = {"centered": True, "bias": True}
BIASED = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
UNBIASED = {"qkv_bias": False, "output_bias": False, "mlp_bias": False}
NO_KV_HEADS = {"num_key_value_heads": None}

_QWEN = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {
    "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "vocab_size": 256_000,
    "max_position_embeddings": 8192,
}  # fmt: skip
_GEMMA_FACTS = {"embedding_scale": lambda keys: math.sqrt(keys.size("hidden_size"))}
_GEMMA_2_AND_3 = _GEMMA | {
    "num_attention_heads": 8, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096,
}  # fmt: skip
_GEMMA3 = Family(
    "gemma3_text", windows=True,
    names={"hidden_act": "hidden_activation"},
    defaults=_GEMMA_2_AND_3 | {
        "vocab_size": 262_208, "sliding_window_pattern": 6, "max_position_embeddings": 131_072,
        "final_logit_softcapping": None,
    },
    facts=_GEMMA_FACTS | {
        "qk_norm": "head", "layer_norms": BEFORE + AFTER,
        "attention_softcap": None,  # stands in config.json but, with norms on queries and keys, is not used
    },
    norm={"offset": 1.0}, default_theta=1_000_000.0, local_theta=10_000.0,
)  # fmt: skip
_COHERE = {
    "defaults": {
        "norm_eps": 1e-5, "tie_word_embeddings": True, "logit_scale": 0.0625, "max_position_embeddings": 8192,
        "sliding_window": 4096, "sliding_window_pattern": 4,
    },
    "names": {"norm_eps": "layer_norm_eps", "mlp_bias": None},
    "norm": {"centered": True},
}  # fmt: skip
_GPT2_KEYS = NO_KV_HEADS | {
    "hidden_size": ("n_embd", "hidden_size"), "num_attention_heads": ("n_head", "num_attention_heads"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"), "norm_eps": "layer_norm_epsilon",
    "max_position_embeddings": ("n_positions", "max_position_embeddings"), "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
}  # fmt: skip
_OLMO = {"norm_eps": 1e-5, "max_position_embeddings": 2048}
_DEEPSEEK = {"num_experts": ("n_routed_experts", "num_experts", "num_local_experts")}

_MPT = Family(
    "mpt", rotary="none", norm={"centered": True},
    names=NO_KV_HEADS | {
        "hidden_size": ("d_model", "hidden_size"), "num_attention_heads": ("n_heads", "num_attention_heads"),
        "num_hidden_layers": ("n_layers", "num_hidden_layers"), "norm_eps": "layer_norm_epsilon",
        "max_position_embeddings": "max_seq_len", "intermediate_size": None, "hidden_act": None,
        "qkv_clip": "attn_config.clip_qkv", "attention_scale": "attn_config.softmax_scale", "logit_scale": None,
    },
    defaults={
        "norm_eps": 1e-5, "hidden_act": "gelu", "intermediate_size": four_times_hidden,
        "max_position_embeddings": 2048, "tie_word_embeddings": True,
    },
    facts=UNBIASED | {
        "gated": False,
        "alibi": lambda keys: alibi_slopes(_heads(keys), keys.number("attn_config.alibi_bias_max", 8)),
    },
    refused={
        "attn_config.alibi": (None, True), "attn_config.qk_ln": (None, False), "logit_scale": (None,),
        "attn_config.prefix_lm": (None, False), "attn_config.attn_type": (None, "multihead_attention"),
        "no_bias": (None, True),
    },
)  # fmt: skip

# The keys are the class names that config.json's "architectures" gives.
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family("llama", defaults={"max_position_embeddings": 2048}),
    "MistralForCausalLM": Family(
        "mistral", windows=True,
        defaults={"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131_072},
    ),
    "MixtralForCausalLM": Family(
        "mixtral", windows=True, names={"expert_size": "intermediate_size"}, default_theta=1_000_000.0, facts=UNBIASED,
        defaults={
            "norm_eps": 1e-5, "num_key_value_heads": 8, "num_experts": 8, "num_experts_per_tok": 2,
            "max_position_embeddings": 131_072,
        },
        experts={"normalized": True},
    ),
    "Qwen2ForCausalLM": Family(
        "qwen2", facts={"qkv_bias": True, "output_bias": False}, defaults=_QWEN, windows=True,
        window_key="use_sliding_window",
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3", facts={"qk_norm": "head"}, defaults=_QWEN | {"head_dim": 128}, windows=True,
        window_key="use_sliding_window",
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe", facts={"qk_norm": "head"}, names={"max_window_layers": None}, windows=True,
        window_key="use_sliding_window",
        defaults={
            "num_key_value_heads": 4, "sliding_window": 4096, "num_experts": 128, "num_experts_per_tok": 8,
            "expert_size": 768, "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": None,
        },
        experts={},
    ),
    "Phi3ForCausalLM": Family(
        "phi3", windows=True, rope_names={"su": "longrope", "yarn": "longrope"},
        defaults={
            "norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 1.0,
        },
    ),
    "PhiForCausalLM": Family(
        "phi", names={"norm_eps": "layer_norm_eps"},
        defaults={
            "norm_eps": 1e-5, "hidden_act": "gelu_new", "partial_rotary_factor": 0.5, "max_position_embeddings": 2048,
        },
        facts=BIASED | {
            "gated": False, "parallel": True, "layer_norms": ALONE, "head_bias": True,
            "qk_norm": lambda keys: "head" if keys.flag("qk_layernorm") else None,
        },
        norm=LAYER_NORM,
    ),
    "GemmaForCausalLM": Family(
        "gemma", defaults=_GEMMA | {"num_key_value_heads": 16}, facts=_GEMMA_FACTS, norm={"offset": 1.0},
        activations={"gelu": "gelu_tanh"},
    ),
    "Gemma2ForCausalLM": Family(
        "gemma2", windows=True, names={"hidden_act": "hidden_activation"},
        facts=_GEMMA_FACTS | {"layer_norms": BEFORE + AFTER},
        defaults=_GEMMA_2_AND_3 | {
            "sliding_window_pattern": 2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        },
        norm={"offset": 1.0},
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,  # the text half; its settings stand under "text_config"
    "GraniteForCausalLM": Family(
        "granite", defaults={"max_position_embeddings": 2048, "attention_scale": 1.0},
        names={
            "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
            "attention_scale": "attention_multiplier",
        },
        facts={"logit_scale": lambda keys: 1 / keys.number("logits_scaling", 1.0)},
    ),
    "SmolLM3ForCausalLM": Family(
        "smollm3", rotary="listed", default_theta=2_000_000.0, windows=True, window_key="use_sliding_window",
        defaults={"num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "Exaone4ForCausalLM": Family(
        "exaone4", windows=True, rotary="window", facts=UNBIASED | {"qk_norm": "head", "layer_norms": AFTER},
        defaults={
            "norm_eps": 1e-5, "num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4,
            "max_position_embeddings": 2048,
        },
    ),
    "Ernie4_5ForCausalLM": Family(
        "ernie4_5", default_theta=500_000.0, facts={"rope_interleaved": True},
        names=dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), "use_bias"),
        defaults={
            "norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": True,
            "max_position_embeddings": 131_072,
        },
    ),
    "Glm4ForCausalLM": Family(
        "glm4",
        facts={
            "rope_interleaved": True, "output_bias": False, "mlp_bias": False, "layer_norms": BEFORE + AFTER,
        },
        defaults={
            "norm_eps": 1.5625e-7, "num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5,
            "qkv_bias": True, "max_position_embeddings": 131_072,
        },
    ),
    "CohereForCausalLM": Family(
        "cohere", default_theta=500_000.0, **_COHERE,
        facts={
            "rope_interleaved": True, "parallel": True, "layer_norms": ALONE,
            "qk_norm": lambda keys: "each head" if keys.flag("use_qk_norm") else None,
        },
    ),
    "Cohere2ForCausalLM": Family(
        "cohere2", windows=True, rotary="window", **_COHERE,
        facts={"rope_interleaved": True, "parallel": True, "layer_norms": ALONE},
    ),
    "StableLmForCausalLM": Family(
        "stablelm", names={"norm_eps": "layer_norm_eps", "qkv_bias": "use_qkv_bias", "output_bias": None,
                           "mlp_bias": None, "parallel": "use_parallel_residual"},
        defaults={
            "norm_eps": 1e-5, "num_key_value_heads": 32, "partial_rotary_factor": 0.25,
            "max_position_embeddings": 4096,
        },
        facts={
            "layer_norms": lambda keys: ALONE if keys.flag("parallel") else BEFORE,
            "qk_norm": lambda keys: "each head" if keys.flag("qk_layernorm") else None,
        },
        norm=LAYER_NORM,
    ),
    "Starcoder2ForCausalLM": Family(
        "starcoder2", windows=True, facts={"gated": False}, norm=LAYER_NORM,
        names={"norm_eps": "norm_epsilon"} | dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), "use_bias"),
        defaults={
            "norm_eps": 1e-5, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "qkv_bias": True,
            "output_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "max_position_embeddings": 4096,
        },
    ),
    "NemotronForCausalLM": Family(
        "nemotron", names={"norm_eps": "norm_eps"}, norm=LAYER_NORM | {"offset": 1.0}, facts={"gated": False},
        defaults={
            "norm_eps": 1e-5, "hidden_act": "relu2", "partial_rotary_factor": 0.5, "max_position_embeddings": 4096,
        },
    ),
    "OlmoForCausalLM": Family(
        "olmo", names={"norm_eps": None, "mlp_bias": None}, defaults=_OLMO | {"qkv_clip": None},
        norm={"centered": True, "weight": False},
    ),
    "Olmo2ForCausalLM": Family(
        "olmo2", names={"qkv_clip": None, "mlp_bias": None}, defaults=_OLMO,
        facts={"qk_norm": "all heads", "layer_norms": AFTER},
    ),
    "Olmo3ForCausalLM": Family(
        "olmo3", windows=True, names={"qkv_clip": None, "mlp_bias": None, "local_rope_theta": "rope_theta"},
        defaults=_OLMO | {"sliding_window": 4096, "sliding_window_pattern": 4},
        facts={"qk_norm": "all heads", "layer_norms": AFTER}, default_theta=500_000.0, local_theta=500_000.0,
    ),
    "OlmoeForCausalLM": Family(
        "olmoe", names={"expert_size": "intermediate_size", "mlp_bias": None}, facts={"qk_norm": "all heads"},
        defaults={
            "norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8, "max_position_embeddings": 4096,
            "qkv_clip": None, "norm_topk_prob": False,
        },
        experts={},
    ),
    "GptOssForCausalLM": Family(
        "gpt_oss", windows=True, names={"expert_size": "intermediate_size", "gate_slope": "swiglu_alpha"},
        facts={"sinks": True, "gate_limit": lambda keys: keys.number("swiglu_limit", 7.0)},
        defaults={
            "norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
            "sliding_window_pattern": 2, "num_experts": 128, "num_experts_per_tok": 4,
            "qkv_bias": True, "output_bias": True, "gate_slope": 1.702, "max_position_embeddings": 131_072,
        },
        experts={"normalized": True, "bias": True}, default_theta=150_000.0,
        default_rope={
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    ),
    "DeepseekV2ForCausalLM": Family(
        "deepseek_v2", names=_DEEPSEEK, facts={"rope_interleaved": True}, latent=True,
        defaults={
            "q_lora_rank": 1536, "num_experts": 64, "expert_size": 1407, "n_shared_experts": 2,
            "max_position_embeddings": 2048, "n_group": None, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0,
        },
        experts={
            "normalized": False,
            "groups": lambda keys: keys.size("n_group") if keys.get("topk_method") == "group_limited_greedy" else 1,
        },
        refused={
            "topk_method": (None, "greedy", "group_limited_greedy"), "norm_topk_prob": (None, False),
            "moe_layer_freq": (None, 1), "scoring_func": (None, "softmax"),
        },
    ),
    "DeepseekV3ForCausalLM": Family(
        "deepseek_v3", names=_DEEPSEEK, facts={"rope_interleaved": _flag("rope_interleave", True)}, latent=True,
        defaults={
            "num_key_value_heads": 128, "q_lora_rank": 1536, "num_experts": 256, "num_experts_per_tok": 8,
            "expert_size": 2048, "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
            "norm_topk_prob": True, "routed_scaling_factor": 2.5, "max_position_embeddings": 4096,
        },
        experts={"scoring": "sigmoid", "correction": True, "group_judges": 2},
        refused={
            "topk_method": (None, "noaux_tc"), "moe_layer_freq": (None, 1), "scoring_func": (None, "sigmoid"),
        },
    ),
    "GPT2LMHeadModel": Family(
        "gpt2", rotary="none", norm=LAYER_NORM, names=_GPT2_KEYS,
        defaults={
            "norm_eps": 1e-5, "hidden_act": "gelu_new", "intermediate_size": four_times_hidden,
            "max_position_embeddings": 1024, "tie_word_embeddings": True,
            "attention_scale": lambda keys: None if keys.flag("scale_attn_weights", True) else 1.0,
        },
        facts=BIASED | {"gated": False, "position_offset": 0},
        refused={"scale_attn_by_inverse_layer_idx": (None, False), "add_cross_attention": (None, False)},
    ),
    "GPTJForCausalLM": Family(
        "gptj", norm=LAYER_NORM, names=_GPT2_KEYS,
        defaults={
            "norm_eps": 1e-5, "hidden_act": "gelu_new", "intermediate_size": four_times_hidden,
            "max_position_embeddings": 2048, "partial_rotary_factor": _gptj_rotary_share,
        },
        facts=UNBIASED | {
            "rope_interleaved": True, "parallel": True, "layer_norms": ALONE, "gated": False, "mlp_bias": True,
            "head_bias": True,
        },
    ),
    "OPTForCausalLM": Family(
        "opt", rotary="none", norm=LAYER_NORM,
        names=NO_KV_HEADS | {"norm_eps": None, "intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
        | dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), "enable_bias"),
        defaults={
            "norm_eps": 1e-5, "hidden_act": "relu", "max_position_embeddings": 2048, "tie_word_embeddings": True,
            "qkv_bias": True, "output_bias": True, "mlp_bias": True,
        },
        facts={"gated": False, "position_offset": 2},
        refused={
            "do_layer_norm_before": (None, True), "_remove_final_layer_norm": (None, False),
            "layer_norm_elementwise_affine": (None, True),
            "word_embed_proj_dim": lambda keys: (None, keys.get("hidden_size")),
        },
    ),
    "GPTNeoXForCausalLM": Family(
        "gpt_neox", norm=LAYER_NORM,
        names=NO_KV_HEADS | {
            "norm_eps": "layer_norm_eps", "rope_theta": ("rotary_emb_base", "rope_theta"),
            "partial_rotary_factor": ("rotary_pct", "partial_rotary_factor"), "parallel": "use_parallel_residual",
        },
        defaults={
            "norm_eps": 1e-5, "hidden_act": "gelu", "partial_rotary_factor": 0.25, "parallel": True,
            "qkv_bias": True, "output_bias": True, "max_position_embeddings": 2048,
        },
        facts={"mlp_bias": True, "gated": False},
    ),
    "FalconForCausalLM": Family(
        "falcon", norm=LAYER_NORM, rotary=lambda keys: "none" if keys.flag("alibi") else "all",
        names=NO_KV_HEADS | {
            "hidden_size": ("n_embed", "hidden_size"), "norm_eps": "layer_norm_epsilon", "hidden_act": "activation",
            "intermediate_size": "ffn_hidden_size",
        } | dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), "bias"),
        defaults={
            "norm_eps": 1e-5, "hidden_act": "gelu", "intermediate_size": four_times_hidden,
            "num_key_value_heads": _falcon_kv_heads, "tie_word_embeddings": True, "max_position_embeddings": 2048,
        },
        facts={
            "gated": False, "layer_norms": _falcon_norms, "alibi": _falcon_slopes,
            "parallel": lambda keys: keys.flag("new_decoder_architecture") or keys.flag("parallel_attn", True),
        },
    ),
    "BloomForCausalLM": Family(
        "bloom", rotary="none", norm=LAYER_NORM,
        names=NO_KV_HEADS | {
            "hidden_size": ("n_embed", "hidden_size"), "num_attention_heads": ("n_head", "num_attention_heads"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"), "norm_eps": "layer_norm_epsilon",
            "max_position_embeddings": ("seq_length", "max_position_embeddings"), "intermediate_size": None,
        },
        defaults={
            "norm_eps": 1e-5, "hidden_act": "gelu_new", "intermediate_size": four_times_hidden,
            "max_position_embeddings": 2048, "tie_word_embeddings": True,
        },
        facts=BIASED | {"gated": False, "embedding_norm": True, "alibi": lambda keys: alibi_slopes(_heads(keys))},
        refused={"apply_residual_connection_post_layernorm": (None, False)},
    ),
    "MptForCausalLM": _MPT,
    "MPTForCausalLM": _MPT,  # what the models' own code calls it
}  # fmt: skip

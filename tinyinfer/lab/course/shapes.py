"""The shapes that the course speaks of, as the facts that the engine's own arithmetic takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...config import Latent, ModelConfig, read_config


def shape(layers: int, heads: int, kv_heads: int, dim: int, hidden: int, inner: int, vocab: int) -> ModelConfig:
    """A model of the Llama family."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": dim,
        "num_key_value_heads": kv_heads, "max_position_embeddings": 2**20, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }  # fmt: skip
    return read_config(config)


def with_kv_heads(config: ModelConfig, kv_heads: int) -> ModelConfig:
    """The same model, with another number of key-value heads."""
    return replace(config, num_kv_heads=kv_heads)


def with_latent(config: ModelConfig) -> ModelConfig:
    """The same model with DeepSeek-V2's latent attention, https://arxiv.org/abs/2405.04434."""
    return replace(config, latent=Latent(512, 1536, 128, 64, 128, config.norm))


COURSE_MODEL = shape(24, 14, 2, 64, 896, 4864, 151_936)  # Qwen2.5-0.5B
SEVEN_B = shape(32, 32, 8, 128, 4096, 14_336, 32_000)
THIRTEEN_B = shape(40, 40, 40, 128, 5120, 13_824, 32_000)
SEVENTY_B = shape(80, 64, 8, 128, 8192, 28_672, 32_000)
DEEPSEEK_V2 = shape(60, 128, 128, 128, 5120, 12_288, 102_400)  # with full heads, unless said otherwise

"""How many numbers a model is, and how much memory it and its users take: arithmetic on a `ModelConfig`."""

from __future__ import annotations

import math
from collections import Counter

from ..cache import FORMS
from ..config import ModelConfig
from .tensors import Shapes, layer_shapes, outer_shapes


def parameters(config: ModelConfig) -> int:
    """How many numbers the model's tensors hold; a tied head counts once, with the embedding."""
    layers = Counter(config.layers)  # most are alike
    outer = _numbers(outer_shapes(config)) + (config.vocab_size if config.head_bias else 0)
    head = 0 if config.tied else config.vocab_size * config.hidden_size
    return outer + head + sum(count * _numbers(layer_shapes(config, layer)) for layer, count in layers.items())


def _numbers(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str = "float16") -> int:
    """Bytes that one more token takes in the key-value cache of all layers, while no window is full yet."""
    return config.num_layers * _layer_kv_bytes(config, kv_dtype)


def kv_bytes(config: ModelConfig, tokens: int, kv_dtype: str = "float16") -> int:
    """Bytes of keys and values that a sequence of `tokens` needs: a layer with a window keeps no more than that."""
    kept = sum(min(tokens, layer.window or tokens) for layer in config.layers)
    return kept * _layer_kv_bytes(config, kv_dtype)


def _layer_kv_bytes(config: ModelConfig, kv_dtype: str) -> int:
    """Bytes of a token's keys and values in one layer."""
    heads, dim = config.cache_shape
    return heads * FORMS[kv_dtype].nbytes(dim)


def tokens_that_fit(config: ModelConfig, memory: float, users: int = 1, kv_dtype: str = "float16") -> int:
    """The longest context, up to the model's own, that each of `users` can have in `memory` bytes beside each other."""
    share = memory / users
    low, high = 0, config.context
    while low < high:
        middle = (low + high + 1) // 2
        if kv_bytes(config, middle, kv_dtype) <= share:
            low = middle
        else:
            high = middle - 1
    return low

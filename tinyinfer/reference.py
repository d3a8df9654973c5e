"""The whole transformer in plain NumPy float32: no cache, no kernels, one function per equation. Read this first.

Everything else in the package computes the same numbers faster; the tests compare it with what stands here. Read from
top to bottom: an id becomes a vector, each layer lets the vectors look at each other (attention) and then thinks about
each by itself (the feed-forward), and the last vector is compared with every token there is.

    ids [n] -> embed -> x [n, hidden] -> layer -> layer -> ... -> norm -> head -> logits [n, vocab]

Shapes: n tokens, H query heads, G key-value heads (G divides H), D dimensions a head.
Sources: the transformer, https://arxiv.org/abs/1706.03762; Llama, https://arxiv.org/abs/2302.13971.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .config import LayerConfig, ModelConfig, Rope
from .model.names import ModelTensors, float_rows, floats

Array = np.ndarray


def forward(config: ModelConfig, tensors: ModelTensors, ids: Array) -> Array:
    """Logits of one sequence: ids int [n] -> float32 [n, vocab]. Row i scores what may follow ids[0..i]."""
    x = embed(config, tensors, ids)
    for settings, layer in zip(config.layers, tensors.layers, strict=True):
        weights = {name: floats(tensor) for name, tensor in layer.items()}
        x = transformer_layer(config, settings, weights, x)
    x = rms_norm(x, floats(tensors.final_norm) + np.float32(config.norm_offset), config.norm_eps)
    return softcap(linear(x, floats(tensors.head)), config.logit_softcap)


def embed(config: ModelConfig, tensors: ModelTensors, ids: Array) -> Array:
    """Each id picks its row of the embedding: [n] -> [n, hidden]."""
    return float_rows(tensors.embedding, ids) * np.float32(config.embedding_scale)


def transformer_layer(config: ModelConfig, settings: LayerConfig, weights: Mapping[str, Array], x: Array) -> Array:
    """One layer adds two things to each vector: what it saw elsewhere, and what it makes of that. [n, hidden]."""

    def norm(name: str, x: Array) -> Array:
        return rms_norm(x, weights[name] + np.float32(config.norm_offset), config.norm_eps)

    seen = self_attention(config, settings, weights, norm("attention_norm", x))
    if config.post_norms:
        seen = norm("attention_post_norm", seen)
    x = x + seen
    thought = feed_forward(config, weights, norm("mlp_norm", x))
    if config.post_norms:
        thought = norm("mlp_post_norm", thought)
    return x + thought


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Scale each vector to length sqrt(size), then each dimension by its weight. https://arxiv.org/abs/1910.07467."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(eps)) * weight


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x [n, in], weight [out, in] -> [n, out]. Nearly all the arithmetic and nearly all the weights are here."""
    y = x @ weight.T
    return y if bias is None else y + bias


def self_attention(config: ModelConfig, settings: LayerConfig, weights: Mapping[str, Array], x: Array) -> Array:
    """Every token asks (query), every earlier one answers (key) and tells (value). [n, hidden] -> [n, hidden]."""
    n = len(x)

    def heads(name: str, count: int) -> Array:
        return linear(x, weights[name], weights.get(f"{name}_bias")).reshape(n, count, config.head_dim)

    query = heads("query", config.num_heads)  # [n, H, D]
    key = heads("key", config.num_kv_heads)  # [n, G, D]
    value = heads("value", config.num_kv_heads)  # [n, G, D]
    if config.qk_norm:
        query = rms_norm(query, weights["query_norm"] + np.float32(config.norm_offset), config.norm_eps)
        key = rms_norm(key, weights["key_norm"] + np.float32(config.norm_offset), config.norm_eps)
    cos, sin = rotary_angles(settings.rope, np.arange(n), n)
    query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    mixed = attention(query, key, value, config.attention_scale, settings.window, config.attention_softcap)
    return linear(mixed.reshape(n, -1), weights["output"], weights.get("output_bias"))


def attention(
    query: Array, key: Array, value: Array, scale: float, window: int | None = None, cap: float | None = None
) -> Array:
    """softmax(q k^T * scale) v for each head: [n, H, D], [n, G, D], [n, G, D] -> [n, H, D].

    Where there are fewer key-value heads than query heads, H / G query heads share one (https://arxiv.org/abs/2305.13245).
    """
    share = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, share, axis=1), np.repeat(value, share, axis=1)  # [n, H, D]
    scores = np.einsum("ihd,jhd->hij", query, key) * np.float32(scale)  # [H, n, n]
    scores = softcap(scores, cap)
    scores = np.where(visible(len(query), window), scores, np.float32(-np.inf))
    return np.einsum("hij,jhd->ihd", softmax(scores), value)


def visible(n: int, window: int | None) -> Array:
    """Which token i may look at which j: itself and those before it, no further back than the window. Bool [n, n]."""
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    return (j <= i) & (j > i - (window or n))


def softmax(scores: Array) -> Array:
    """Scores to shares of one, along the last axis. The maximum is taken off first, so that exp can't overflow."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def softcap(scores: Array, cap: float | None) -> Array:
    """Bend scores so that they stay within -cap and cap; None leaves them."""
    return scores if cap is None else np.tanh(scores / np.float32(cap)) * np.float32(cap)


def feed_forward(config: ModelConfig, weights: Mapping[str, Array], x: Array) -> Array:
    """down(activation(gate(x)) * up(x)): [n, hidden] -> [n, hidden]. https://arxiv.org/abs/2002.05202."""
    gate = linear(x, weights["gate"], weights.get("gate_bias"))  # [n, intermediate]
    up = linear(x, weights["up"], weights.get("up_bias"))  # [n, intermediate]
    return linear(activation(config.activation, gate) * up, weights["down"], weights.get("down_bias"))


def activation(name: str, x: Array) -> Array:
    """The bend between two linear maps, element by element."""
    if name == "silu":
        return x * sigmoid(x)
    if name == "gelu_tanh":
        return x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x))) / 2
    if name == "gelu":
        return x * (1 + erf(x / np.float32(math.sqrt(2)))) / 2
    if name == "relu":
        return np.maximum(x, 0)
    raise KeyError(name)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), by way of tanh, which can't overflow."""
    return (np.tanh(x / 2) + 1) / 2


erf = np.vectorize(math.erf, otypes=[np.float32])


# Rotary position embedding (https://arxiv.org/abs/2104.09864): each pair of a head's dimensions turns by an angle that
# grows with the position, each pair at its own speed, so that a query and a key see how far apart they are.


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Turn dimension d and d + R/2 of each head by its angle: x [n, heads, D], cos and sin [n, R/2] -> [n, heads, D].

    Dimensions from R on stay as they are.
    """
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def rotary_angles(rope: Rope, positions: Array, length: int) -> tuple[Array, Array]:
    """Cosine and sine of every angle: positions int [n] -> two float32 [n, R/2].

    `length` is that of the whole sequence so far: some ways to stretch the context change speed as it grows.
    """
    angles = positions[:, None].astype(np.float32) * rotary_speeds(rope, length)
    magnitude = np.float32(rope.magnitude)
    return np.cos(angles) * magnitude, np.sin(angles) * magnitude


def rotary_speeds(rope: Rope, length: int) -> Array:
    """Radians a position, for each pair of dimensions: float32 [R/2], from fast to slow.

    A model trained on a short context is stretched to a longer one by slowing some pairs down. Each kind is one answer
    to the question of which: all alike (linear), by a larger base once the text is long (dynamic), only the slow ones
    (llama3, yarn), or as measured for each (longrope).
    """
    theta = rope.theta
    if rope.kind == "dynamic":
        growth = rope.factor * max(length, rope.original_length) / rope.original_length - (rope.factor - 1)
        theta *= growth ** (rope.dims / (rope.dims - 2))
    speeds = (1.0 / theta ** (np.arange(0, rope.dims, 2) / rope.dims)).astype(np.float32)
    if rope.kind == "linear":
        return speeds / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _blend(speeds, rope.factor, _llama3_share(rope, speeds))
    if rope.kind == "yarn":
        return _blend(speeds, rope.factor, _yarn_share(rope))
    if rope.kind == "longrope":
        return speeds / np.float32(rope.long_factor if length > rope.original_length else rope.short_factor)
    return speeds


def _blend(speeds: Array, factor: float, share: Array) -> Array:
    """Keep `share` of each speed (float [R/2], 0 to 1) and slow the rest down by the factor."""
    return (speeds * share + speeds / factor * (1 - share)).astype(np.float32)


def _llama3_share(rope: Rope, speeds: Array) -> Array:
    """Keep pairs that turn often within the original context, slow those that hardly turn, ramp between. Llama 3.1."""
    turns = rope.original_length * speeds / (2 * math.pi)
    return np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0, 1)


def _yarn_share(rope: Rope) -> Array:
    """As llama3, with a ramp that is linear over the dimensions. https://arxiv.org/abs/2309.00071, section 3.2."""

    def pair_that_turns(times: float) -> float:
        return rope.dims * math.log(rope.original_length / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dims - 1)
    ramp = (np.arange(rope.dims // 2) - low) / (high - low or 0.001)
    return 1 - np.clip(ramp, 0, 1)

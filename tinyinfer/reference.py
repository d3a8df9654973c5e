"""The whole transformer in plain NumPy float32: no cache, no kernels, one function per equation. Read this first.

Everything else in the package computes the same numbers faster; the tests compare it with what stands here. Read from
top to bottom: an id becomes a vector, each layer lets the vectors look at each other (attention) and then thinks about
each by itself (the feed-forward), and the last vector is compared with every token there is.

    ids [n] -> embed -> x [n, hidden] -> layer -> layer -> ... -> norm -> head -> logits [n, vocab]

Shapes: n tokens, H query heads, G key-value heads (G divides H), D dimensions a head.
Sources: the transformer, https://arxiv.org/abs/1706.03762; Llama, https://arxiv.org/abs/2302.13971.
What the facts of a `ModelConfig` mean is said here, where they are used; `reference_rope.py` holds the rotation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .config import Experts, LayerConfig, ModelConfig, Norm
from .model.tensors import ModelTensors, Tensors, float_rows, floats
from .reference_rope import rotary_angles, rotary_speeds, rotate

__all__ = ["forward", "rotary_angles", "rotary_speeds", "rotate"]

Array = np.ndarray
Weights = Mapping[str, Array]


def forward(config: ModelConfig, tensors: ModelTensors, ids: Array) -> Array:
    """Logits of one sequence: ids int [n] -> float32 [n, vocab]. Row i scores what may follow ids[0..i]."""
    x = embed(config, tensors, ids)
    for settings, layer in zip(config.layers, tensors.layers, strict=True):
        x = transformer_layer(config, settings, layer, x)
    x = norm(config.norm, tensors.outer, "final_norm", x)
    logits = linear(x, floats(tensors.head), _optional(tensors.outer, "head_bias"))
    return softcap(logits * np.float32(config.logit_scale), config.logit_softcap)


def embed(config: ModelConfig, tensors: ModelTensors, ids: Array) -> Array:
    """Each id picks its row of the embedding, and in some models each position a row of another: [n] -> [n, hidden]."""
    x = float_rows(tensors.embedding, ids) * np.float32(config.embedding_scale)
    if config.position_offset is not None:
        x = x + float_rows(tensors.outer["positions"], np.arange(len(ids)) + config.position_offset)
    return norm(config.norm, tensors.outer, "embedding_norm", x) if config.embedding_norm else x


def transformer_layer(config: ModelConfig, settings: LayerConfig, layer: Mapping[str, Tensors], x: Array) -> Array:
    """One layer adds two things to each vector: what it saw elsewhere, and what it makes of that. [n, hidden].

    Norms stand before the two, or after, or both. In a parallel layer neither sees what the other adds.
    """
    weights = {name: floats(tensor) for name, tensor in layer.items() if not name.startswith("expert_")}
    attend = latent_attention if config.latent else self_attention
    add = np.float32(config.residual_scale)

    def normed(name: str, x: Array) -> Array:
        return norm(config.norm, weights, name, x) if name in config.layer_norms else x

    def think(x: Array) -> Array:
        return mixture(config, weights, layer, x) if settings.sparse else feed_forward(config, weights, x)

    before = normed("attention_norm", x)
    seen = normed("attention_post_norm", attend(config, settings, weights, before)) * add
    if config.parallel:
        before = normed("mlp_norm", x) if "mlp_norm" in config.layer_norms else before
    else:
        x = x + seen
        before = normed("mlp_norm", x)
    thought = normed("mlp_post_norm", think(before)) * add
    return x + seen + thought if config.parallel else x + thought


def norm(settings: Norm, weights: Mapping[str, Tensors], name: str, x: Array) -> Array:
    """Bring each vector to one size, then multiply each dimension by its weight and add its bias, where there are."""
    weight, bias = _optional(weights, name), _optional(weights, f"{name}_bias")
    weight = np.float32(1) if weight is None else weight + np.float32(settings.offset)
    if settings.centered:
        return layer_norm(x, weight, bias, settings.eps)
    return rms_norm(x, weight, settings.eps)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Scale each vector to length sqrt(size), then each dimension by its weight. https://arxiv.org/abs/1910.07467."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(eps)) * weight


def layer_norm(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """The same with each vector's mean taken off first. https://arxiv.org/abs/1607.06450."""
    y = rms_norm(x - np.mean(x, axis=-1, keepdims=True), weight, eps)
    return y if bias is None else y + bias


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x [n, in], weight [out, in] -> [n, out]. Nearly all the arithmetic and nearly all the weights are here."""
    y = x @ weight.T
    return y if bias is None else y + bias


def self_attention(config: ModelConfig, settings: LayerConfig, weights: Weights, x: Array) -> Array:
    """Every token asks (query), every earlier one answers (key) and tells (value). [n, hidden] -> [n, hidden]."""
    n = len(x)

    def heads(name: str, count: int) -> Array:
        y = linear(x, weights[name], weights.get(f"{name}_bias"))
        if config.qk_norm and name != "value":
            y = y if config.qk_norm == "all heads" else y.reshape(n, count, config.head_dim)
            y = norm(config.norm, weights, f"{name}_norm", y)
        if config.qkv_clip is not None:
            y = np.clip(y, -np.float32(config.qkv_clip), np.float32(config.qkv_clip))
        return y.reshape(n, count, config.head_dim)

    query = heads("query", config.num_heads)  # [n, H, D]
    key = heads("key", config.num_kv_heads)  # [n, G, D]
    value = heads("value", config.num_kv_heads)  # [n, G, D]
    if settings.rope:
        cos, sin = rotary_angles(settings.rope, np.arange(n), n)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    mixed = attention(config, settings, weights, query, key, value)
    return linear(mixed.reshape(n, -1), weights["output"], weights.get("output_bias"))


def latent_attention(config: ModelConfig, settings: LayerConfig, weights: Weights, x: Array) -> Array:
    """Attention whose keys and values are unpacked from one short vector. https://arxiv.org/abs/2405.04434, 2.1.

    Only that vector and the rotary key need be kept of a token: [rank + rotary] numbers for all heads together.
    """
    n, latent = len(x), config.latent
    asked = x
    if latent.query_rank:
        asked = linear(x, weights["query_down"], weights.get("query_down_bias"))
        asked = norm(latent.norm, weights, "query_down_norm", asked)
    query = linear(asked, weights["query_up" if latent.query_rank else "query"]).reshape(n, config.num_heads, -1)
    short = norm(latent.norm, weights, "latent_norm", linear(x, weights["latent"], weights.get("latent_bias")))
    turned = linear(x, weights["rotary_key"], weights.get("rotary_key_bias"))[:, None]  # [n, 1, rotary]

    cos, sin = rotary_angles(settings.rope, np.arange(n), n)
    query = np.concatenate([query[..., : latent.plain], rotate(query[..., latent.plain :], cos, sin)], axis=-1)
    turned = np.repeat(rotate(turned, cos, sin), config.num_heads, axis=1)
    key = np.concatenate([linear(short, weights["latent_key"]).reshape(n, config.num_heads, -1), turned], axis=-1)
    value = linear(short, weights["latent_value"]).reshape(n, config.num_heads, -1)
    mixed = attention(config, settings, weights, query, key, value)
    return linear(mixed.reshape(n, -1), weights["output"], weights.get("output_bias"))


def attention(
    config: ModelConfig, settings: LayerConfig, weights: Weights, query: Array, key: Array, value: Array
) -> Array:
    """softmax(q k^T * scale) v for each head: [n, H, D], [n, G, D], [n, G, D'] -> [n, H, D'].

    Where there are fewer key-value heads than query heads, H / G query heads share one (https://arxiv.org/abs/2305.13245).
    """
    n, share = len(query), query.shape[1] // key.shape[1]
    key, value = np.repeat(key, share, axis=1), np.repeat(value, share, axis=1)
    scores = np.einsum("ihd,jhd->hij", query, key) * np.float32(config.attention_scale)  # [H, n, n]
    scores = softcap(scores, config.attention_softcap)
    if config.alibi:  # https://arxiv.org/abs/2108.12409: the further back, the lower, for each head at its own rate
        back = np.arange(n)[:, None] - np.arange(n)
        scores = scores - np.float32(config.alibi)[:, None, None] * back.astype(np.float32)
    scores = np.where(visible(n, settings.window), scores, np.float32(-np.inf))
    return np.einsum("hij,jhd->ihd", softmax(scores, weights.get("sinks")), value)


def visible(n: int, window: int | None) -> Array:
    """Which token i may look at which j: itself and those before it, no further back than the window. Bool [n, n]."""
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    return (j <= i) & (j > i - (window or n))


def softmax(scores: Array, sinks: Array | None = None) -> Array:
    """Scores to shares of one, along the last axis. The maximum is taken off first, so that exp can't overflow.

    With `sinks` [H], each head may give a share to nothing, at that score (https://arxiv.org/abs/2309.17453); scores
    [H, n, n], whose shares then come to less than one.
    """
    if sinks is None:
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)
    nothing = np.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
    return softmax(np.concatenate([scores, nothing], axis=-1))[..., :-1]


def softcap(scores: Array, cap: float | None) -> Array:
    """Bend scores so that they stay within -cap and cap; None leaves them."""
    return scores if cap is None else np.tanh(scores / np.float32(cap)) * np.float32(cap)


def feed_forward(config: ModelConfig, weights: Weights, x: Array) -> Array:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))). [n, hidden]. https://arxiv.org/abs/2002.05202."""
    up = linear(x, weights["up"], weights.get("up_bias"))  # [n, intermediate]
    if config.gated:
        inner = gated(config, linear(x, weights["gate"], weights.get("gate_bias")), up)
    else:
        inner = activation(config.activation, up)
    return linear(inner, weights["down"], weights.get("down_bias"))


def gated(config: ModelConfig, gate: Array, up: Array) -> Array:
    """How much of `up` gets through the gate."""
    if config.gate_limit is not None:
        return clamped(gate, up, config.gate_limit, config.gate_slope)
    return activation(config.activation, gate) * up


def clamped(gate: Array, up: Array, limit: float, slope: float) -> Array:
    """The gate of gpt-oss, which keeps both within a limit, and lets `up` through even where it is 0."""
    limit, slope = np.float32(limit), np.float32(slope)
    gate = np.minimum(gate, limit)
    return gate * sigmoid(slope * gate) * (np.clip(up, -limit, limit) + 1)


def mixture(config: ModelConfig, weights: Weights, layer: Mapping[str, Tensors], x: Array) -> Array:
    """Each token goes through a few of many small feed-forwards, in shares. https://arxiv.org/abs/2101.03961.

    In some models it also goes through one that all tokens share.
    """
    scores = linear(x, weights["router"], weights.get("router_bias"))
    chosen, shares = route(config.experts, scores, weights.get("router_correction"))
    y = np.zeros_like(x)
    for expert in np.unique(chosen):
        token, place = np.nonzero(chosen == expert)
        tensors = {name: floats(layer[name][expert]) for name in layer if name.startswith("expert_")}
        y[token] += shares[token, place, None] * feed_forward(config, _named(tensors, "expert_"), x[token])
    return y + feed_forward(config, _named(weights, "shared_"), x) if config.experts.shared_size else y


def route(experts: Experts, scores: Array, correction: Array | None) -> tuple[Array, Array]:
    """Which experts each token uses, and its share of each: router scores [n, E] -> int and float32 [n, used].

    A correction (https://arxiv.org/abs/2408.15664) changes the choice and not the shares.
    """
    shares = softmax(scores) if experts.scoring == "softmax" else sigmoid(scores)
    liking = shares if correction is None else shares + correction
    if experts.groups > 1:
        liking = in_best_groups(experts, liking)
    chosen = np.argsort(-liking, axis=-1, kind="stable")[:, : experts.used]
    shares = np.take_along_axis(shares, chosen, axis=-1)
    if experts.normalized:
        shares = shares / shares.sum(axis=-1, keepdims=True)
    return chosen, shares * np.float32(experts.scale)


def in_best_groups(experts: Experts, liking: Array) -> Array:
    """Leave each token only the experts of its best groups: [n, E], the others at -inf. arXiv 2405.04434, 2.2.2."""
    grouped = liking.reshape(len(liking), experts.groups, -1)
    worth = np.sort(grouped, axis=-1)[..., -experts.group_judges :].sum(axis=-1)
    best = np.argsort(-worth, axis=-1, kind="stable")[:, : experts.used_groups]
    kept = np.full_like(grouped, -np.inf)
    rows = np.arange(len(liking))[:, None]
    kept[rows, best] = grouped[rows, best]
    return kept.reshape(liking.shape)


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
    if name == "relu2":
        return np.square(np.maximum(x, 0))
    raise KeyError(name)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), by way of tanh, which can't overflow."""
    return (np.tanh(x / 2) + 1) / 2


erf = np.vectorize(math.erf, otypes=[np.float32])


def _optional(weights: Mapping[str, Tensors], name: str) -> Array | None:
    return floats(weights[name]) if name in weights else None


def _named(weights: Weights, start: str) -> dict[str, Array]:
    return {name.removeprefix(start): weight for name, weight in weights.items() if name.startswith(start)}

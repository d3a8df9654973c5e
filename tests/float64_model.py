"""A second opinion: the transformer in float64, token by token and head by head, straight from config.json's keys.

It shares no code and no table with tinyinfer, and its rotary embedding turns complex numbers.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]


def logits(config: dict[str, Any], tensors: Tensors, ids: list[int]) -> np.ndarray:
    """One forward over all ids: float64 [n, vocab]. `config` is in the form of version 5."""
    w = {name: array.astype(np.float64) for name, array in tensors.items()}
    x = embedded(config, w, ids)
    for i in range(config["num_hidden_layers"]):
        x = layer(config, w, i, x, lambda normed, i=i: attention(config, w, i, normed))
    return scored(config, w, x)


def embedded(config: dict[str, Any], w: Tensors, ids: list[int]) -> np.ndarray:
    x = w["model.embed_tokens.weight"][ids]
    return x * math.sqrt(config["hidden_size"]) if is_gemma(config) else x


def layer(config: dict[str, Any], w: Tensors, index: int, x: np.ndarray, attend: Any) -> np.ndarray:
    """What a layer makes of float64 [n, hidden]; `attend` takes what its first norm gives."""
    stem, gemma = f"model.layers.{index}.", is_gemma(config)
    seen = attend(normed(config, w, x, stem + "input_layernorm.weight"))
    after, before_mlp = ("post_attention_layernorm.weight",) * 2
    if gemma:
        seen, before_mlp = normed(config, w, seen, stem + after), "pre_feedforward_layernorm.weight"
    x = x + seen
    thought = feed_forward(w, stem, normed(config, w, x, stem + before_mlp), gemma)
    return x + (normed(config, w, thought, stem + "post_feedforward_layernorm.weight") if gemma else thought)


def scored(config: dict[str, Any], w: Tensors, x: np.ndarray) -> np.ndarray:
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return capped(normed(config, w, x, "model.norm.weight") @ head.T, config.get("final_logit_softcapping"))


def normed(config: dict[str, Any], w: Tensors, x: np.ndarray, name: str) -> np.ndarray:
    scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + config["rms_norm_eps"])
    return scaled * (w[name] + 1 if is_gemma(config) else w[name])


def is_gemma(config: dict[str, Any]) -> bool:
    return config["model_type"] == "gemma3_text"


def projected(config: dict[str, Any], w: Tensors, index: int, x: np.ndarray) -> list[np.ndarray]:
    """Queries, keys and values, [n, heads, dim] each, before any rotation."""
    heads, shared, dim = shape(config)
    stem = f"model.layers.{index}.self_attn."
    if stem + "qkv_proj.weight" in w:
        q, k, v = np.split(x @ w[stem + "qkv_proj.weight"].T, [heads * dim, (heads + shared) * dim], axis=1)
    else:
        q, k, v = (x @ w[f"{stem}{n}_proj.weight"].T + w.get(f"{stem}{n}_proj.bias", 0.0) for n in "qkv")
    q, k, v = (a.reshape(len(x), -1, dim) for a in (q, k, v))
    if stem + "q_norm.weight" in w:
        q, k = normed(config, w, q, stem + "q_norm.weight"), normed(config, w, k, stem + "k_norm.weight")
    return [q, k, v]


def shape(config: dict[str, Any]) -> tuple[int, int, int]:
    """Heads of queries, of keys, and the size of one."""
    heads = config["num_attention_heads"]
    return heads, config["num_key_value_heads"], config.get("head_dim") or config["hidden_size"] // heads


def attended(config: dict[str, Any], query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What one token [heads, dim] makes of the keys and values [n, kv_heads, dim] that it sees."""
    heads, shared, dim = shape(config)
    scale, out = 1 / math.sqrt(config.get("query_pre_attn_scalar") or dim), np.zeros((heads, dim))
    for h in range(heads):
        g = h // (heads // shared)
        scores = keys[:, g] @ query[h] * scale
        shares = np.exp(scores - scores.max())
        out[h] = shares / shares.sum() @ values[:, g]
    return out


def put_out(w: Tensors, index: int, out: np.ndarray) -> np.ndarray:
    """The output projection of [n, heads, dim]."""
    stem = f"model.layers.{index}.self_attn.o_proj."
    return out.reshape(len(out), -1) @ w[stem + "weight"].T + w.get(stem + "bias", 0.0)


def attention(config: dict[str, Any], w: Tensors, index: int, x: np.ndarray) -> np.ndarray:
    q, k, v = projected(config, w, index, x)
    window, rope, dim = window_of(config, index), rope_of(config, index), shape(config)[2]
    turn = [turns(rope, dim, config["max_position_embeddings"], t, len(x)) for t in range(len(x))]
    q, k = (np.stack([turned(row, turn[t]) for t, row in enumerate(a)]) for a in (q, k))
    firsts = [0 if window is None else max(t - window + 1, 0) for t in range(len(x))]
    rows = [attended(config, q[t], k[first : t + 1], v[first : t + 1]) for t, first in enumerate(firsts)]
    return put_out(w, index, np.array(rows))


def feed_forward(w: Tensors, stem: str, x: np.ndarray, gemma: bool) -> np.ndarray:
    stem += "mlp."
    if stem + "gate_up_proj.weight" in w:
        gate, up = np.split(x @ w[stem + "gate_up_proj.weight"].T, 2, axis=1)
    else:
        gate, up = (x @ w[f"{stem}{n}_proj.weight"].T + w.get(f"{stem}{n}_proj.bias", 0.0) for n in ("gate", "up"))
    if gemma:
        bent = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    else:
        bent = gate / (1 + np.exp(-gate))
    return (bent * up) @ w[stem + "down_proj.weight"].T + w.get(stem + "down_proj.bias", 0.0)


def capped(scores: np.ndarray, cap: float | None) -> np.ndarray:
    return scores if not cap else cap * np.tanh(scores / cap)


def window_of(config: dict[str, Any], layer: int) -> int | None:
    kinds = config.get("layer_types")
    if config["model_type"] in ("mistral", "phi3"):
        return config.get("sliding_window")
    return config["sliding_window"] if kinds and kinds[layer] == "sliding_attention" else None


def rope_of(config: dict[str, Any], layer: int) -> dict[str, Any]:
    rope = config["rope_parameters"]
    return rope[config["layer_types"][layer]] if "full_attention" in rope else rope


def turned(heads: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Dimension d is the real part, d + half the imaginary part, of a number that is multiplied by its turn."""
    half = len(turn)
    z = (heads[:, :half] + 1j * heads[:, half : 2 * half]) * turn
    return np.concatenate([z.real, z.imag, heads[:, 2 * half :]], axis=1)


def turns(rope: dict[str, Any], dim: int, longest: int, position: int, length: int) -> np.ndarray:
    """What each pair of dimensions is multiplied by at a position: magnitude * e^(i angle), complex [pairs]."""
    dim = int(dim * rope.get("partial_rotary_factor", 1.0))
    speeds = [speed(rope, dim, longest, pair, length) for pair in range(dim // 2)]
    return np.array([cmath.rect(magnitude(rope, longest), position * s) for s in speeds])


def magnitude(rope: dict[str, Any], longest: int) -> float:
    original = rope.get("original_max_position_embeddings", longest)
    factor = rope.get("factor", longest / original)
    if rope["rope_type"] == "yarn":  # https://arxiv.org/abs/2309.00071, the end of 3.4
        return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1
    if rope["rope_type"] == "longrope":  # https://arxiv.org/abs/2402.13753
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return 1.0


def speed(rope: dict[str, Any], dim: int, longest: int, pair: int, length: int) -> float:
    """Radians a position of one pair of dimensions."""
    kind, base = rope["rope_type"], rope["rope_theta"]
    plain = base ** (-2 * pair / dim)
    original = rope.get("original_max_position_embeddings", longest)
    wavelength = 2 * math.pi / plain
    if kind == "linear":
        return plain / rope["factor"]
    if kind == "dynamic":
        # the base for which the slowest pair is slowed by the stretch, once the text is longer than was trained
        stretch = max(rope["factor"] * length / longest - (rope["factor"] - 1), 1.0)
        return (base * stretch ** (dim / (dim - 2))) ** (-2 * pair / dim)
    if kind == "llama3":
        if wavelength > original / rope["low_freq_factor"]:
            return plain / rope["factor"]
        if wavelength < original / rope["high_freq_factor"]:
            return plain
        smooth = (original / wavelength - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        return (1 - smooth) * plain / rope["factor"] + smooth * plain
    if kind == "yarn":
        # pairs that turn 32 times or more in the original context stay, those that turn less than once are slowed
        fast = math.floor(dim / 2 * math.log(original / (32 * 2 * math.pi), base))
        slow = math.ceil(dim / 2 * math.log(original / (2 * math.pi), base))
        fast, slow = max(fast, 0), min(slow, dim - 1)
        slowed = min(max((pair - fast) / max(slow - fast, 0.001), 0), 1)
        return plain * (1 - slowed) + plain / rope["factor"] * slowed
    if kind == "longrope":
        return plain / rope["long_factor" if length > original else "short_factor"][pair]
    return plain

"""Rotary position embedding in plain NumPy (https://arxiv.org/abs/2104.09864): how a query and a key see how far apart
they are.

Each pair of a head's dimensions turns by an angle that grows with the position, each pair at its own speed.
"""

from __future__ import annotations

import math

import numpy as np

from .config import Rope

Array = np.ndarray


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

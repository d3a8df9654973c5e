"""Rotary angles for the positions of a chunk, and whether cached keys still fit a text of another length."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from .. import reference
from ..config import Rope


def rotary_angles(rope: Rope, start: int, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines for the `count` positions from `start` on, in a text of `length`: float32 [count, dims / 2]."""
    positions = np.arange(start, start + count, dtype=np.float32)[:, None]
    angles = positions * _speeds(rope, _length_that_counts(rope, length))
    magnitude = np.float32(rope.magnitude)
    return np.cos(angles) * magnitude, np.sin(angles) * magnitude


def keys_fit(ropes: Iterable[Rope], before: int, after: int) -> bool:
    """Whether keys rotated in a text of length `before` are the ones that a text of length `after` calls for."""
    return all(_length_that_counts(rope, before) == _length_that_counts(rope, after) for rope in ropes)


def _length_that_counts(rope: Rope, length: int) -> int:
    """Of all lengths that turn at the same speeds, the first."""
    if rope.kind == "dynamic":
        return max(length, rope.original_length)
    if rope.kind == "longrope":
        return rope.original_length + (length > rope.original_length)
    return 0


_speeds = lru_cache(maxsize=64)(reference.rotary_speeds)

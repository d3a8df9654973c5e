"""Rotary angles for the positions of a chunk, and whether cached keys still fit a text of another length."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from .. import reference
from ..config import Rope

GROWING = ("dynamic", "longrope")  # the scalings that go by the length of the text
PAGE = 256  # positions whose angles are worked out together and kept


def rotary_angles(rope: Rope, start: int, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines for the `count` positions from `start` on, in a text of `length`: float32 [count, dims / 2].

    They may be views of arrays that are kept: not to be written to.
    """
    length = length_that_counts(rope, length)
    if rope.kind == "dynamic":  # other angles at every length
        return _angles(rope, start, count, length)
    first, last = start // PAGE, (start + max(count, 1) - 1) // PAGE
    pages = [_page(rope, number, length) for number in range(first, last + 1)]
    span = slice(start - first * PAGE, start - first * PAGE + count)
    if len(pages) == 1:
        return pages[0][0][span], pages[0][1][span]
    cos, sin = (np.concatenate(part) for part in zip(*pages, strict=True))
    return cos[span], sin[span]


@lru_cache(maxsize=256)
def _page(rope: Rope, number: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    return _angles(rope, number * PAGE, PAGE, length)


def _angles(rope: Rope, start: int, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    positions = np.arange(start, start + count, dtype=np.float32)[:, None]
    angles = positions * _speeds(rope, length)
    magnitude = np.float32(rope.magnitude)
    return np.cos(angles) * magnitude, np.sin(angles) * magnitude


def turned_back(rope: Rope, keys: np.ndarray, start: int, by: int, length: int) -> np.ndarray:
    """Keys float32 [n, heads, D] of the positions from `start` on, as they would be at positions lower by `by`.

    They turn by the difference of the very angles that `rotary_angles` gives, rounded as those are, so that but for the
    last bits they are what they would be had they been rotated there at first. `length` is that of the text.
    """
    positions = np.arange(start, start + len(keys), dtype=np.float32)[:, None]
    speeds = _speeds(rope, length_that_counts(rope, length))
    angles = (positions - np.float32(by)) * speeds - (positions * speeds).astype(np.float64)
    return reference.rotate(keys, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))


def keys_fit(ropes: Iterable[Rope], before: int, after: int) -> bool:
    """Whether keys rotated in a text of length `before` are the ones that a text of length `after` calls for."""
    return all(length_that_counts(rope, before) == length_that_counts(rope, after) for rope in ropes)


def length_that_counts(rope: Rope, length: int) -> int:
    """Of all lengths of a text that turn at the same speeds, one that stands for them."""
    if rope.kind == "dynamic":
        return max(length, rope.original_length)
    if rope.kind == "longrope":
        return rope.original_length + (length > rope.original_length)
    return 0


_speeds = lru_cache(maxsize=64)(reference.rotary_speeds)

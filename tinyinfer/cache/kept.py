"""What a cache keeps of keys and values: the numbers themselves, in 32 or 16 bits, or 8-bit codes with scales."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LARGEST_HALF = 65504  # what float16 can't hold becomes this, with its sign
TINY = np.float32(2.0**-118)  # numbers below it count as zeros in int8: one over their scale would overflow


class Kept(NamedTuple):
    """Keys and values of some positions of one layer, as they are kept: [n, kv_heads, head_dim]; scales [n, kv_heads].

    The scales are those of int8, float32, else None.
    """

    keys: np.ndarray
    values: np.ndarray
    key_scales: np.ndarray | None = None
    value_scales: np.ndarray | None = None


def as_kept(numbers: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
    """float32 [n, heads, D] as it is kept; and, for int8, scales [n, heads]: the largest number of each over 127.

    A head with a NaN or an infinity gets codes 0 and the scale NaN.
    """
    if dtype == np.float16:
        return np.clip(numbers, -LARGEST_HALF, LARGEST_HALF).astype(np.float16), None
    if dtype != np.int8:
        return numbers, None
    largest = np.abs(numbers).max(-1)
    finite = np.isfinite(largest)
    usable = finite & (largest >= TINY)
    safe = np.where(usable, largest, np.float32(1))
    codes = np.rint(np.where(usable[..., None], numbers, 0) * (np.float32(127) / safe)[..., None])
    scales = np.where(usable, safe / np.float32(127), np.where(finite, np.float32(0), np.float32(np.nan)))
    return codes.astype(np.int8), scales


def widened(numbers: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """What `as_kept` gave, as float32 [n, heads, D]."""
    wide = numbers.astype(np.float32)
    return wide if scales is None else wide * scales[..., None]

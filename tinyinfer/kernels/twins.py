"""What the integer kernels compute, in NumPy: the same integers, and their floats without rounding between.

Read these first, then the kernels. Tests compare the two. Everything here takes the kernels' own layouts.
"""

from __future__ import annotations

import numpy as np

from .nf4 import LEVELS, ONE
from .quantize import GROUP, LARGEST, TINY


def quantize_rows(x: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Float32 [n, K] -> codes int8 [n, 32 groups], scales and sums float32 [n, groups], to the last bit."""
    n, width = x.shape
    padded = np.zeros((n, groups, GROUP), np.float32)
    padded.reshape(n, -1)[:, :width] = x
    largest = np.abs(padded).max(-1)
    finite = np.isfinite(largest)
    usable = finite & (largest >= TINY)
    safe = np.where(usable, largest, np.float32(1))
    scales = np.where(usable, safe / LARGEST, np.where(finite, np.float32(0), np.float32(np.nan)))
    codes = np.rint(np.where(usable[..., None], padded, 0) * (LARGEST / safe)[..., None])
    with np.errstate(over="ignore"):
        sums = scales * codes.sum(-1, dtype=np.float32)
    return codes.astype(np.int8).reshape(n, -1), scales, sums


def unpack_nibbles(codes: np.ndarray) -> np.ndarray:
    """uint8 [blocks, G, 4, 32] -> 0..15, int32 [8 blocks, G, 32]."""
    halves = np.stack([codes & 15, codes >> 4], axis=3)  # [blocks, G, chunk, half, 32]
    return _rows(halves.reshape(*codes.shape[:2], 8, 32))


def unpack_fives(codes: np.ndarray) -> np.ndarray:
    """uint8 [blocks, G, 5, 32] -> 0..31, int32 [8 blocks, G, 32]."""
    fifths = np.stack([codes[:, :, 4] >> bit & 1 for bit in range(8)], axis=2)  # [blocks, G, 8, 32]
    return unpack_nibbles(codes[:, :, :4]) + 16 * _rows(fifths)


def unpack_bytes(codes: np.ndarray) -> np.ndarray:
    """int8 [blocks, G, 8, 32] -> int32 [8 blocks, G, 32]."""
    return _rows(codes)


def _rows(codes: np.ndarray) -> np.ndarray:
    blocks, groups = codes.shape[:2]
    by_row = codes.reshape(blocks, groups, 8, 8, 4).transpose(0, 3, 1, 2, 4)  # [blocks, row, G, chunk, 4]
    return by_row.reshape(8 * blocks, groups, GROUP).astype(np.int32)


def group_sums(x_codes: np.ndarray, weight_codes: np.ndarray) -> np.ndarray:
    """int8 [n, 32 G] and int32 [rows, G, 32] -> int32 [n, rows, G]: the integers that the kernels scale."""
    x = x_codes.reshape(len(x_codes), -1, GROUP).astype(np.int32)
    return np.einsum("ngk,rgk->nrg", x, weight_codes)


def spread_scales(scales: np.ndarray, groups: int) -> np.ndarray:
    """Scales as the kernels take them, [blocks, S, 8] or [blocks, 8] -> float64 [8 blocks, groups]."""
    wide = (scales.view(np.float16) if scales.dtype == np.int16 else scales).astype(np.float64)
    by_row = wide.reshape(len(scales), -1, 8).transpose(0, 2, 1).reshape(8 * len(scales), -1)
    return by_row.repeat(groups // by_row.shape[1], axis=1)


def terms_int4(x_codes, x_scales, x_sums, codes, scales, minimums) -> np.ndarray:
    """What `matmul_int4` adds up: float64 [n, 8 blocks, 2 G], the products' part of each group, then the minimum's."""
    return _terms_of_steps(x_codes, x_scales, x_sums, unpack_nibbles(codes), scales, minimums, 8)


def terms_int5(x_codes, x_scales, x_sums, codes, scales, minimums) -> np.ndarray:
    """What `matmul_int5` adds up, likewise."""
    return _terms_of_steps(x_codes, x_scales, x_sums, unpack_fives(codes), scales, minimums, 16)


def _terms_of_steps(x_codes, x_scales, x_sums, weight_codes, scales, minimums, middle) -> np.ndarray:
    groups = x_scales.shape[1]
    sums = group_sums(x_codes, weight_codes)
    scale = spread_scales(scales, groups)
    minimum = spread_scales(minimums, groups) if minimums.size else -middle * scale
    products = sums * scale * x_scales[:, None].astype(np.float64)
    return np.concatenate([products, minimum * x_sums[:, None].astype(np.float64)], axis=-1)


def terms_int8(x_codes, x_scales, codes, scales) -> np.ndarray:
    """What `matmul_int8` adds up: float64 [n, 8 blocks, G]."""
    sums = group_sums(x_codes, unpack_bytes(codes))
    return sums * spread_scales(scales, x_scales.shape[1]) * x_scales[:, None].astype(np.float64)


def terms_nf4(x_codes, x_scales, codes, scales) -> np.ndarray:
    """What `matmul_nf4` adds up: float64 [n, 8 blocks, G]."""
    sums = group_sums(x_codes, LEVELS[unpack_nibbles(codes)].astype(np.int32))
    return sums * spread_scales(scales, x_scales.shape[1]) * x_scales[:, None].astype(np.float64) / ONE

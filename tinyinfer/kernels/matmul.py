"""x W^T over weights of 32 or 16 bits."""

from __future__ import annotations

import numpy as np

from ..checkpoint.safetensors import to_float32

TILE_ROWS = 256  # rows of a 16-bit weight widened at a time: small enough to stay in cache


def matmul(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Float32 [n, in] times [out, in] (float32, float16 or bfloat16 records) -> float32 [n, out], summed in float32."""
    if weight.dtype == np.float32:
        return x @ weight.T
    out = np.empty((len(x), len(weight)), np.float32)
    for begin in range(0, len(weight), TILE_ROWS):
        tile = weight[begin : begin + TILE_ROWS]
        np.matmul(x, to_float32(tile).T, out=out[:, begin : begin + len(tile)])
    return out

"""int8: eight bits a weight, symmetric, with a scale for each 32 columns of a row, or one for the whole row.

    w = scale * code      code -127..127; scale = max |w| / 127
                          float16 for a group (8.5 bits a weight), float32 for a row (8 + 32 / K bits)

    codes     int8 [NB, G, 8, 32]      byte j of line c: row j // 4 of the block, column 4 c + j % 4
    scales    float16 [NB, G, 8]       or float32 [NB, 8], one a row (layout.py draws both)

The rule is absmax: at eight bits the largest weight costs the others little. A file made elsewhere (GGUF's Q8_0) may
hold -128 too; it means what it says.
"""

from __future__ import annotations

import numpy as np


def encode(values: np.ndarray, per_row: bool) -> tuple[np.ndarray, np.ndarray, None]:
    """Float32 [rows, groups, size] -> codes int8 of that shape, scales [rows, groups].

    Scales are float32 where a row has one (`per_row`), else float16.
    Codes are chosen for the scale as stored. A scale beyond float16 comes out infinite: the caller refuses it.
    """
    largest = np.maximum(values.max(axis=-1), -values.min(axis=-1))
    scales = (largest / np.float32(127)).astype(np.float32 if per_row else np.float16)
    divisor = np.where(scales == 0, np.float32(1), scales.astype(np.float32))
    codes = values / divisor[..., None]
    np.clip(np.rint(codes, out=codes), -127, 127, out=codes)
    return codes.astype(np.int8), scales, None


def decode(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """int8 [rows, groups, size], float32 [rows, groups] -> float32 [rows, groups, size]."""
    return codes.astype(np.float32) * scales[..., None]

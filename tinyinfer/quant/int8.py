"""int8: eight bits a weight, symmetric, with a scale for each 32 columns of a row, or one for the whole row.

    w = scale * code      code -127..127
                          scale float16 for a group (8.5 bits a weight), float32 for a row (8 + 32 / K bits)

    codes     int8 [NB, G, 8, 32]      byte j of line c: row j // 4 of the block, column 4 c + j % 4
    scales    float16 [NB, G, 8]       or float32 [NB, 8], one a row (layout.py draws both)

How a scale is chosen. For a row it is absmax: max |w| / 127. For a group, the largest weight in size may be any number
of steps from 127 down to 96, and the one with the least squared error is kept. What a coarser step costs on average it
often gains by falling in with the weights: those of normal noise lose 8 % of their error, those that were rounded
before, to 4 or 5 bits and a scale, a third of it or nearly all, since steps are found that divide theirs.
A file made elsewhere (GGUF's Q8_0) may hold the code -128 too; it means what it says.
"""

from __future__ import annotations

import numpy as np

STEPS = range(127, 95, -1)  # to the largest in size


def encode(values: np.ndarray, per_row: bool) -> tuple[np.ndarray, np.ndarray, None]:
    """Float32 [rows, groups, size] -> codes int8 of that shape, scales [rows, groups].

    Scales are float32 where a row has one (`per_row`), else float16.
    Codes are chosen for the scale as stored. A scale beyond float16 comes out infinite: the caller refuses it.
    """
    largest = np.maximum(values.max(axis=-1), -values.min(axis=-1))
    scales = largest / np.float32(127) if per_row else _best_scales(values, largest)
    codes = values / _divisor(scales)[..., None]
    np.clip(np.rint(codes, out=codes), -127, 127, out=codes)
    return codes.astype(np.int8), scales if per_row else scales.astype(np.float16), None


def decode(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """int8 [rows, groups, size], float32 [rows, groups] -> float32 [rows, groups, size]."""
    return codes.astype(np.float32) * scales[..., None]


def _best_scales(values: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """The scale of least error for each group, float32 [rows, groups], as float16 holds it."""
    columns = np.ascontiguousarray(values.reshape(-1, values.shape[2]).T)  # NumPy is fast at sums over the first axis
    trials = ((largest.reshape(-1) / np.float32(steps)).astype(np.float16).astype(np.float32) for steps in STEPS)
    best = next(trials)
    least = _error(columns, best)
    for scale in trials:
        error = _error(columns, scale)
        wins = error < least
        best, least = np.where(wins, scale, best), np.where(wins, error, least)
    return best.reshape(values.shape[:2])


def _error(columns: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The squared error of each group: float32 [size, groups], [groups] -> [groups]."""
    off = columns / _divisor(scale)
    np.clip(np.rint(off, out=off), -127, 127, out=off)
    off *= scale
    off -= columns
    return np.einsum("kg,kg->g", off, off)


def _divisor(scales: np.ndarray) -> np.ndarray:
    return np.where(scales == 0, np.float32(1), scales)

"""int4: four bits a weight, and a scale for each group of 32, 64 or 128 columns of a row.

    with a minimum    w = scale * code + minimum      code 0..15, scale and minimum float16
    symmetric         w = scale * (code - 8)          code 0..15, scale float16, of either sign

    bits a weight, group 32 / 64 / 128:  5 / 4.5 / 4.25 with a minimum, 4.5 / 4.25 / 4.125 without

    codes     uint8 [NB, G, 4, 32]         byte j of line c: row j // 4 of the block,
                                           column 8 c + j % 4 in the low nibble, 8 c + 4 + j % 4 in the high one
    scales    float16 [NB, K / group, 8]   and minimums, likewise (layout.py draws both)

How a group's scale is chosen. A range that reaches from the smallest to the largest weight is the obvious choice; but
the extremes are rare, and a range that cuts them a little gives all others finer steps. So some shares of it are tried
and the one with the least squared error is kept. Its codes are then held, and the scale and minimum that fit them best
(least squares) replace the ones they came from, where that is better once both are rounded to float16. On normal
weights this takes 5 to 6 % off the error of the whole range.
A symmetric group's largest weight in size, e, becomes code 0, so that the scale is -e / 8 and its sign is part of the
form: the side with the extreme has a step more than the other.

Inside, groups are columns, [size, groups]: NumPy is fast at sums over the first axis, and slow over a short last one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

SHARES = (1.0, 0.94, 0.88)  # of the range from smallest to largest
REACH = (8.0, 8.5, 9.0)  # steps to the largest in size; beyond 8 it is cut


def encode(values: np.ndarray, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Float32 [rows, groups, size] -> codes uint8 of that shape, scales and minimums float16 [rows, groups].

    Codes are chosen for the scale as stored. A scale beyond float16 comes out infinite: the caller refuses it.
    """
    columns = np.ascontiguousarray(values.reshape(-1, values.shape[2]).T)
    trials = _symmetric_trials(columns) if symmetric else _trials(columns)
    best = next(trials)
    least = _error(columns, *best)
    for trial in trials:
        best, least = _better(columns, best, least, trial)
    fitted = _fitted(columns, _codes(columns, *best), symmetric)
    scale, minimum = _better(columns, best, least, fitted)[0]
    codes = _codes(columns, scale, minimum).astype(np.uint8).T.reshape(values.shape)
    scale, minimum = (part.astype(np.float16).reshape(values.shape[:2]) for part in (scale, minimum))
    return codes, scale, None if symmetric else minimum


def decode(codes: np.ndarray, scales: np.ndarray, minimums: np.ndarray | None) -> np.ndarray:
    """uint8 [rows, groups, size], float32 [rows, groups] -> float32 [rows, groups, size]."""
    if minimums is None:
        return (codes.astype(np.int8) - np.int8(8)).astype(np.float32) * scales[..., None]
    values = codes.astype(np.float32) * scales[..., None]
    values += minimums[..., None]
    return values


# ---- the choice of a scale: columns float32 [size, groups]; a scale and a minimum float32 [groups] each, as stored

Choice = tuple[np.ndarray, np.ndarray]


def _trials(columns: np.ndarray) -> Iterator[Choice]:
    low, high = columns.min(axis=0), columns.max(axis=0)
    for share in SHARES:
        cut = (high - low) * np.float32((1 - share) / 2)
        yield _stored((high - low) * np.float32(share / 15)), _stored(low + cut)


def _symmetric_trials(columns: np.ndarray) -> Iterator[Choice]:
    low, high = columns.min(axis=0), columns.max(axis=0)
    extreme = np.where(-low > high, low, high)
    for reach in REACH:
        scale = _stored(extreme / np.float32(-reach))
        yield scale, scale * np.float32(-8)


def _better(columns: np.ndarray, best: Choice, least: np.ndarray, trial: Choice) -> tuple[Choice, np.ndarray]:
    """For each group the choice of less error, and that error."""
    error = _error(columns, *trial)
    wins = error < least
    return (np.where(wins, trial[0], best[0]), np.where(wins, trial[1], best[1])), np.minimum(error, least)


def _fitted(columns: np.ndarray, codes: np.ndarray, symmetric: bool) -> Choice:
    """The scale and minimum of least squares for these codes; scale 0 where all codes are the same."""
    if symmetric:
        codes -= np.float32(8)
        scale = _stored(_quotient(_dot(codes, columns), _dot(codes, codes)))
        return scale, scale * np.float32(-8)
    middle_code, middle = codes.mean(axis=0), columns.mean(axis=0)
    codes -= middle_code
    scale = _stored(_quotient(_dot(codes, columns), _dot(codes, codes)))
    return scale, _stored(middle - scale * middle_code)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("kg,kg->g", a, b)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def _stored(numbers: np.ndarray) -> np.ndarray:
    """What is left of them in float16, as float32."""
    return numbers.astype(np.float16).astype(np.float32)


def _codes(columns: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    """The nearest codes, as float32."""
    codes = columns - minimum
    codes /= np.where(scale == 0, np.float32(1), scale)
    np.rint(codes, out=codes)
    return np.clip(codes, 0, 15, out=codes)


def _error(columns: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    """The squared error of each group."""
    off = _codes(columns, scale, minimum)
    off *= scale
    off += minimum
    off -= columns
    return _dot(off, off)

"""AWQ: columns that meet large inputs get finer steps, by being made larger before they are rounded.

Lin et al. 2023, https://arxiv.org/abs/2306.00978. A matrix W [N, K] gives the same products when its columns are
multiplied by factors and its inputs divided by them. A column made larger uses more of the steps it shares with its
group, so its error, divided again, is smaller; the others' is a little larger. The factors are

    mean|x|^alpha

for each column, divided by sqrt(largest * smallest) so that their size stays about 1; of `ALPHAS` that is taken which
moves the products least, and 0, no factors at all, is among them. What can take up the division is the model's matter
(`calibration/folds.py`).
Then the range of each group is cut where that moves its own products less: its errors e cost e H_gg e^T, with the block
of the group of H = X^T X (`curvature.py`), as if the other groups were exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from . import dequantize, quantize
from .curvature import damped
from .layout import Encoded
from .packed import Form
from .steps import Steps, quadratic
from .study import sample_rows

ALPHAS = np.arange(20) / 20
ROWS, TOKENS = 128, 512  # of matrices and inputs, to judge factors by


def factors(
    weights: Sequence[np.ndarray],
    inputs: Sequence[np.ndarray],
    form: Form,
    tie: Callable[[np.ndarray], np.ndarray] = lambda sizes: sizes,
) -> np.ndarray:
    """What to multiply the columns of matrices float32 [N, K] by that have the same inputs: float32 [K].

    inputs come in parts, float32 [n, K] each; `tie` evens the sizes of columns that must have one factor, [K] -> [K].
    The products of at most ROWS rows with at most TOKENS inputs are what factors are judged by.
    """
    count = sum(map(len, inputs))
    if not count:
        return np.ones(weights[0].shape[1], np.float32)
    sizes = tie(sum(np.abs(part).sum(axis=0, dtype=np.float64) for part in inputs) / count)
    sizes = np.maximum(sizes, sizes.max() * 1e-4) if sizes.any() else np.ones_like(sizes)
    x = np.concatenate([part[:: -(-count // TOKENS)] for part in inputs])
    whole = np.concatenate(weights)
    some = whole[sample_rows(whole.shape, ROWS)]
    trials = (_size_one(sizes**alpha) for alpha in ALPHAS)
    return min(trials, key=lambda trial: _moved(some, x, form, trial))


def _size_one(factors: np.ndarray) -> np.ndarray:
    return (factors / math.sqrt(factors.max() * factors.min())).astype(np.float32)


def _moved(weight: np.ndarray, x: np.ndarray, form: Form, factors: np.ndarray) -> float:
    """How far products move when the columns are rounded with these factors."""
    off = (dequantize(quantize(weight * factors, form)) / factors - weight) @ x.T
    return float(np.einsum("nt,nt->", off, off))


def encode(weight: np.ndarray, form: Form, steps: Steps, curvature: np.ndarray) -> Encoded:
    """Codes and scales of a matrix float32 [N, K] whose inputs have `curvature` [K, K], not yet in kernel order."""
    curvature = damped(curvature)
    codes, scales, minimums = np.empty(weight.shape, np.uint8), [], []
    for begin in range(0, weight.shape[1], form.group_size):
        group = slice(begin, begin + form.group_size)
        columns = np.ascontiguousarray(weight[:, group].T)
        scale, minimum = steps.wide.choose(columns, form.symmetric, quadratic(curvature[group, group]))
        codes[:, group] = steps.codes(columns, scale, minimum).T
        scales.append(scale)
        minimums.append(minimum)
    scale, minimum = (np.array(part, np.float16).T for part in (scales, minimums))
    return codes, scale, None if form.symmetric else minimum

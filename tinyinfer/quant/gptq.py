"""GPTQ: weights rounded column by column, each column's error made good by the columns that are still floats.

Frantar et al. 2022, https://arxiv.org/abs/2210.17323. What counts is not how far a weight moves but how far the
products do. Of a matrix W [N, K] whose inputs were the rows of X [n, K], with E = W - rounded W, that is

    |X E^T|^2 = tr(E H E^T),      H = X^T X [K, K]

Once the first columns are rounded, the floats right of them that make this least have a closed form, and so the paper
goes from left to right: round a column, move all columns after it, go on.

It reads the moves from the inverse of H. They are in H's own triangular factor as well, which is cheaper and needs no
inverse of a large matrix: with H = R R^T, R upper triangular, the floats of some columns B after the errors E_F of all
columns before them are

    W_B + E_F R_FB R_BB^-1

and within B, column by column, `move / R_BB^-1[j, j]` times row j of R_BB^-1, which is the paper's own equation: R^-1
is its Cholesky factor of the inverse. (QuIP, https://arxiv.org/abs/2307.13304, theorem 6, shows that both are one.)
B is a group of columns here: its scale is chosen from the floats as they are when it is reached. A little is added to
H's diagonal, as in the paper, so that inputs that hardly differ do not make it singular.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import BadRequest
from .layout import Encoded
from .packed import Form
from .steps import Steps

DAMPING = 0.01  # of the mean of H's diagonal


def hessian(inputs: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """X^T X, float32 [columns, columns], of inputs that come in several parts, float32 [n, columns] each."""
    total = np.zeros((columns, columns), np.float32)
    for part in inputs:
        total += part.T @ part
    return total


def encode(weight: np.ndarray, form: Form, steps: Steps, curvature: np.ndarray, damping: float = DAMPING) -> Encoded:
    """Codes and scales of a matrix float32 [N, K] whose inputs have `curvature` [K, K], not yet in kernel order.

    Rows do not depend on each other: matrices with the same inputs can be stacked. Raises `BadRequest` where the
    curvature is not finite.
    """
    factor = upper_factor(curvature, damping)
    rows, columns = weight.shape
    moved = np.empty((columns, rows), np.float32)  # what rounding took from each weight; columns are rows here
    codes = np.empty((columns, rows), np.uint8)
    scales, minimums = [], []
    for begin in range(0, columns, form.group_size):
        group = slice(begin, min(begin + form.group_size, columns))
        inverse = np.linalg.inv(factor[group, group])
        exact = weight[:, group].T
        floats = exact + inverse.T @ (factor[:begin, group].T @ moved[:begin])
        scale, minimum = steps.choose(floats, form.symmetric)
        codes[group] = _round(floats, inverse, steps, scale, minimum)
        moved[group] = exact - (codes[group] * scale + minimum)
        scales.append(scale)
        minimums.append(minimum)
    scale, minimum = (np.array(part, np.float16).T for part in (scales, minimums))
    return np.ascontiguousarray(codes.T), scale, None if form.symmetric else minimum


def _round(floats: np.ndarray, inverse: np.ndarray, steps: Steps, scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    """The codes of a group, float32 [size, N]: `floats` [size, N] change as the columns after a rounded one move."""
    codes = np.empty_like(floats)
    for column, values in enumerate(floats):
        codes[column] = steps.codes(values, scale, minimum)
        move = (values - (codes[column] * scale + minimum)) / inverse[column, column]
        floats[column + 1 :] -= inverse[column, column + 1 :, None] * move
    return codes


def upper_factor(curvature: np.ndarray, damping: float) -> np.ndarray:
    """R, float32 [K, K] and zero below its diagonal, with R R^T = the curvature and what is added to its diagonal.

    Where the text said nothing of a matrix (all zero), as if all its inputs mattered alike.
    """
    if not np.isfinite(curvature).all():
        raise BadRequest("the calibration text makes numbers that are not finite", "calibration")
    backwards = curvature[::-1, ::-1].astype(np.float64)
    backwards[np.diag_indices_from(backwards)] += damping * np.diagonal(backwards).mean() or 1.0
    return np.linalg.cholesky(backwards)[::-1, ::-1].astype(np.float32)

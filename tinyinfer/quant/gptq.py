"""GPTQ: weights rounded column by column, each column's error made good by the columns that are still floats.

Frantar et al. 2022, https://arxiv.org/abs/2210.17323. What counts is not how far a weight moves but how far the
products do, |X E^T|^2 = tr(E H E^T) for errors E (`curvature.py`).

Once the first columns are rounded, the floats right of them that make this least have a closed form, and so the paper
goes from left to right: round a column, move all columns after it, go on.

It reads the moves from the inverse of H. They are in H's own triangular factor as well, which is cheaper and needs no
inverse of a large matrix: with H = R R^T, R upper triangular, the floats of some columns B after the errors E_F of all
columns before them are

    W_B + E_F R_FB R_BB^-1

and within B, column by column, `move / R_BB^-1[j, j]` times row j of R_BB^-1, which is the paper's own equation: R^-1
is its Cholesky factor of the inverse. (QuIP, https://arxiv.org/abs/2307.13304, shows that both are one.)
B is a group of columns here: its scale is chosen from the floats as they are when it is reached, and the range that it
spans is cut where that moves products less: errors e of the group cost e R_BB R_BB^T e^T, all later columns having done
what they can.
"""

from __future__ import annotations

import numpy as np

from .curvature import damped
from .layout import Encoded
from .packed import Form
from .steps import Steps, quadratic


def encode(weight: np.ndarray, form: Form, steps: Steps, curvature: np.ndarray) -> Encoded:
    """Codes and scales of a matrix float32 [N, K] whose inputs have `curvature` [K, K], not yet in kernel order.

    Rows do not depend on each other: matrices with the same inputs can be stacked. Raises `BadRequest` where the
    curvature is not finite.
    """
    factor = upper_factor(damped(curvature))
    rows, columns = weight.shape
    moved = np.empty((columns, rows), np.float32)  # what rounding took from each weight; columns are rows here
    codes = np.empty((columns, rows), np.uint8)
    scales, minimums = [], []
    for begin in range(0, columns, form.group_size):
        group = slice(begin, min(begin + form.group_size, columns))
        inverse = np.linalg.inv(factor[group, group])
        exact = weight[:, group].T
        floats = exact + inverse.T @ (factor[:begin, group].T @ moved[:begin])
        cost = factor[group, group] @ factor[group, group].T  # what is left of it once later columns have moved
        scale, minimum = steps.wide.choose(floats, form.symmetric, quadratic(cost))
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


def upper_factor(curvature: np.ndarray) -> np.ndarray:
    """R with R R^T = the curvature: float32 [K, K], zero below its diagonal."""
    return np.linalg.cholesky(curvature[::-1, ::-1].astype(np.float64))[::-1, ::-1].astype(np.float32)

"""What errors of a matrix cost, by what it is multiplied with.

A matrix W [N, K] whose inputs are the rows of X [n, K] has products X W^T. Errors E [N, K] of the matrix move them by

    |X E^T|^2 = tr(E H E^T),      H = X^T X [K, K]

so that all there is to know of the inputs is H, half of the second derivative.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import BadRequest

DAMPING = 0.01  # of the mean of the diagonal, as GPTQ has it


def hessian(inputs: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """X^T X, float32 [columns, columns], of inputs that come in several parts, float32 [n, columns] each."""
    total = np.zeros((columns, columns), np.float32)
    for part in inputs:
        total += part.T @ part
    return total


def damped(curvature: np.ndarray) -> np.ndarray:
    """The same [K, K] with a little more on its diagonal, so that inputs that hardly differ do not make it singular.

    Where nothing was met, as if all inputs mattered alike. Raises `BadRequest` where it is not finite.
    """
    if not np.isfinite(curvature).all():
        raise BadRequest("the calibration text makes numbers that are not finite", "calibration")
    more = np.float32(DAMPING * np.diagonal(curvature).mean(dtype=np.float64) or 1.0)
    return curvature + more * np.eye(len(curvature), dtype=np.float32)

"""What quantizing costs: the plainest quantizers to compare with, and what each form would do to given matrices.

The plainest are absmax with one scale for a whole matrix, one for each row, or one for some columns of a row: for
study, not speed. One large weight sets the step for all that share its scale, so that the error falls as fewer share
one: matrix, row, group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..errors import BadRequest
from . import FORMS, error_ratio, quantization_error, quantize


def absmax(weight: np.ndarray, bits: int, per_row: bool = False) -> tuple[np.ndarray, float]:
    """Round a matrix to 2^bits - 1 even steps around zero: float [N, K] -> float32 [N, K], bits a weight.

    The scale is max |w| / (2^(bits - 1) - 1), float32, of the matrix or of each row. Raises `BadRequest` for other than
    4 or 8 bits, and for NaN and infinity.
    """
    if bits not in (4, 8):
        raise BadRequest(f"bits should be 4 or 8, found {bits}", "bits")
    weight = np.asarray(weight, np.float32)
    if not np.isfinite(weight).all():
        raise BadRequest("a matrix with NaN or infinity can't be quantized", "weight")
    top = np.float32(2 ** (bits - 1) - 1)
    scale = np.abs(weight).max(axis=1 if per_row else None, keepdims=True, initial=0) / top
    codes = np.rint(weight / np.where(scale == 0, np.float32(1), scale)).clip(-top, top)
    return codes * scale, bits + 32 * scale.size / max(prod(weight.shape), 1)


def absmax_groups(weight: np.ndarray, bits: int, size: int) -> tuple[np.ndarray, float]:
    """The same with a scale for each `size` neighbouring columns of a row, or what is left of them; raises likewise."""
    columns = weight.shape[1]
    filled = np.pad(np.asarray(weight, np.float32), ((0, 0), (0, -columns % size)))
    groups = filled.reshape(-1, size)
    rounded = absmax(groups, bits, per_row=True)[0].reshape(filled.shape)[:, :columns]
    return rounded, bits + 32 * len(groups) / max(weight.size, 1)


@dataclass(frozen=True)
class Outlook:
    """What a form would make of some matrices."""

    form: str
    bits_per_weight: float
    bytes: int
    relative_error: float


def sample_rows(shape: tuple[int, ...], count: int = 16) -> np.ndarray:
    """Rows of a matrix to judge it by, evenly spread: int [at most count]."""
    return np.unique(np.linspace(0, shape[0] - 1, min(count, shape[0])).astype(int))


def outlooks(shapes: Sequence[tuple[int, int]], samples: Sequence[np.ndarray]) -> list[Outlook]:
    """What each form would make of matrices of these shapes: sizes exactly, errors from some rows of each, float32.

    Raises as `quant.quantize`.
    """
    weights = sum(map(prod, shapes))
    found = []
    for name, form in FORMS.items():
        sums = [quantization_error(sample, quantize(sample, form)) for sample in samples]
        size = sum(map(form.nbytes, shapes))
        error = error_ratio(sum(error for error, _ in sums), sum(whole for _, whole in sums))
        found.append(Outlook(name, 8 * size / max(weights, 1), size, error))
    return found

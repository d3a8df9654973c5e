"""Quantized weights in NumPy: floats to codes and back, and where the codes lie. Kernels read what this writes.

packed.py    Form and PackedWeight: what a quantized matrix is
layout.py    kernel order, drawn
int8.py, int5.py, int4.py, nf4.py    one scheme each: what a code means, and how it is chosen
steps.py     how int4 and int5 choose scales
curvature.py, gptq.py, awq.py    codes chosen by what a matrix is multiplied with
study.py     the plainest schemes to compare with, and what each form would make of a model
"""

from __future__ import annotations

import numpy as np

from ..checkpoint.safetensors import to_float32
from ..errors import BadCheckpoint, BadRequest
from . import int4, int5, int8, nf4
from .layout import Encoded, codes_of_rows, pack_rows, row_spans, scales_of_rows, take_rows
from .packed import (
    ARRAYS,
    FORMS,
    SCHEMES,
    Form,
    PackedWeight,
    bits_per_weight,
    error_ratio,
    find_form,
    from_arrays,
    relative_error,
    squared_error,
)

__all__ = [
    "ARRAYS",
    "FORMS",
    "SCHEMES",
    "STEPS",
    "Form",
    "PackedWeight",
    "bits_per_weight",
    "dequantize",
    "dequantize_rows",
    "encode_rows",
    "error_ratio",
    "find_form",
    "from_arrays",
    "quantization_error",
    "quantize",
    "relative_error",
    "take_rows",
]

STEPS = {"int4": int4.STEPS, "int5": int5.STEPS}  # schemes of even steps


def quantize(weight: np.ndarray, form: Form | str, name: str = "weight") -> PackedWeight:
    """Quantize a matrix [N, K] of float32, float16 or bfloat16, a few rows at a time.

    `form` is a `Form` or what `find_form` takes; `name` is what errors call the matrix. Raises `BadCheckpoint` for NaN
    and infinity, `BadRequest` for weights beyond what float16 scales reach and for what is no matrix.
    """
    form = find_form(form) if isinstance(form, str) else form
    if weight.ndim != 2 or 0 in weight.shape:
        raise BadRequest(f"tensor {name!r}: expected a matrix to quantize, found shape {list(weight.shape)}")
    packed = pack_rows(form, weight.shape, lambda begin, end: encode_rows(to_float32(weight[begin:end]), form, name))
    return nf4.quantize_scales(packed) if form.double else packed


def encode_rows(values: np.ndarray, form: Form, name: str) -> Encoded:
    """The codes and plain scales of some rows, not yet in kernel order: float32 [rows, K]; raises as `quantize`."""
    check_weights(values, name)
    with np.errstate(over="ignore", invalid="ignore"):
        encoded = _encode_groups(values, form)
    check_scales(encoded, values, form, name)
    return encoded


def check_weights(values: np.ndarray, name: str) -> None:
    """Raises `BadCheckpoint` for NaN and infinity."""
    if not np.isfinite(values).all():
        raise BadCheckpoint(f"tensor {name!r}: can't be quantized: it holds NaN or infinity")


def check_scales(encoded: Encoded, values: np.ndarray, form: Form, name: str) -> None:
    """Raises `BadRequest` where weights were too large for scales of 16 bits."""
    _, scales, minimums = encoded
    if not (np.isfinite(scales).all() and (minimums is None or np.isfinite(minimums).all())):
        largest = f"weights of up to {np.abs(values).max():.3g}"
        raise BadRequest(f"tensor {name!r}: {largest} are beyond the float16 scales of {form.name}", "scheme")


def _encode_groups(values: np.ndarray, form: Form) -> Encoded:
    """Where K does not fill the last group, that is a group of what there is."""
    rows, columns = values.shape
    size = form.group_size or columns
    whole = columns // size * size
    parts = [values[:, :whole].reshape(rows, -1, size)] if whole else []
    if whole < columns:
        parts.append(values[:, whole:].reshape(rows, 1, -1))
    encoded = [_encode(form, part) for part in parts]
    codes = np.concatenate([part[0].reshape(rows, -1) for part in encoded], axis=1)
    scales = np.concatenate([part[1] for part in encoded], axis=1)
    minimums = None if form.symmetric else np.concatenate([part[2] for part in encoded], axis=1)
    return codes, scales, minimums


def _encode(form: Form, groups: np.ndarray) -> Encoded:
    if form.scheme in STEPS:
        return STEPS[form.scheme].encode(groups, form.symmetric)
    if form.scheme == "int8":
        return int8.encode(groups, form.group_size is None)
    return nf4.encode(groups, form.scale_dtype)


def dequantize(packed: PackedWeight) -> np.ndarray:
    """The whole matrix, float32 [N, K], a few rows at a time."""
    out = np.empty(packed.shape, np.float32)
    for begin, end in row_spans(packed.shape):
        out[begin:end] = _decode_rows(packed, np.arange(begin, end))
    return out


def quantization_error(weight: np.ndarray, packed: PackedWeight) -> tuple[float, float]:
    """|dequantized - weight|^2 and |weight|^2 of a float matrix and what it was quantized to, a few rows at a time."""
    sums = [
        squared_error(to_float32(weight[begin:end]), _decode_rows(packed, np.arange(begin, end)))
        for begin, end in row_spans(packed.shape)
    ]
    return sum(error for error, _ in sums), sum(whole for _, whole in sums)


def dequantize_rows(packed: PackedWeight, ids: np.ndarray) -> np.ndarray:
    """Some rows, float32 [n, K]: how a quantized embedding table is looked up. `ids` are ints [n] from 0 to N - 1."""
    ids = np.asarray(ids)
    if ids.size and not (ids.min() >= 0 and ids.max() < packed.shape[0]):  # a filling row would come back as zeros
        raise IndexError(f"rows {ids.min()} to {ids.max()} of a matrix of {packed.shape[0]}")
    return _decode_rows(packed, ids)


def _decode_rows(packed: PackedWeight, ids: np.ndarray) -> np.ndarray:
    codes = codes_of_rows(packed, ids)
    scales = scales_of_rows(packed.scales, ids) if packed.scale_steps is None else nf4.absmax_of_rows(packed, ids)
    groups = codes.reshape(*scales.shape, -1)
    if packed.scheme in STEPS:
        minimums = None if packed.minimums is None else scales_of_rows(packed.minimums, ids)
        values = STEPS[packed.scheme].decode(groups, scales, minimums)
    else:
        values = (int8 if packed.scheme == "int8" else nf4).decode(groups, scales)
    return values.reshape(len(ids), -1)[:, : packed.shape[1]]

"""Every form that quant/ makes, through the kernels: x W^T of what both sides dequantize to."""

from __future__ import annotations

import numpy as np
import pytest

from tinyinfer.kernels.int4 import matmul_int4
from tinyinfer.kernels.int5 import matmul_int5
from tinyinfer.kernels.int8 import matmul_int8
from tinyinfer.kernels.nf4 import matmul_nf4
from tinyinfer.kernels.quantize import quantize_rows
from tinyinfer.quant import dequantize, quantize
from tinyinfer.quant.nf4 import expand_scales
from tinyinfer.quant.packed import FORMS


def bits(scales):
    return scales.view(np.int16) if scales.dtype == np.float16 else scales


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize(("rows", "width"), [(20, 160), (7, 96)])
def test_kernels_read_what_quant_writes(form, n, rows, width):
    random = np.random.default_rng(rows)
    packed = quantize(random.standard_normal((rows, width)).astype(np.float32), form)
    weight = dequantize(packed)
    packed = expand_scales(packed) if packed.scheme == "nf4" else packed
    x = random.standard_normal((n, width)).astype(np.float32)
    groups = packed.codes.shape[1]
    x_codes = np.zeros((n, 32 * groups), np.int8)
    x_scales, x_sums = np.zeros((2, n, groups), np.float32)
    quantize_rows(x, x_codes, x_scales, x_sums, 0, n)
    out = np.zeros((n, rows), np.float32)
    place = (out, 0, rows, 0, len(packed.codes), False)
    scales = bits(packed.scales)
    if packed.scheme in ("int4", "int5"):
        none = np.zeros((0, 0, 8), np.int16)
        minimums = none if packed.minimums is None else bits(packed.minimums)
        kernel = matmul_int4 if packed.scheme == "int4" else matmul_int5
        kernel(x_codes, x_scales, x_sums, packed.codes, scales, minimums, *place)
    else:
        kernel = matmul_int8 if packed.scheme == "int8" else matmul_nf4
        kernel(x_codes, x_scales, packed.codes, scales, *place)
    rounded = (x_codes.reshape(n, groups, 32) * x_scales[..., None]).reshape(n, -1)[:, :width]
    # float32 sums, and for nf4 the 16-bit levels: half of 1 / 32767 each
    bound = 3e-5 * np.abs(rounded) @ np.abs(weight).T + 2e-5 * np.abs(rounded).sum(-1, keepdims=True) * weight.max()
    assert np.all(np.abs(out - rounded.astype(np.float64) @ weight.T) <= bound)

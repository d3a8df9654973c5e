"""Activations as 8-bit codes, in groups of 32 of a row, so that products with quantized weights are of integers."""

from __future__ import annotations

import numpy as np

from .jit import inlined, jit
from .simd import (
    add,
    divide,
    first_lanes,
    float_of_bits,
    larger,
    largest_of,
    load_masked,
    magnitude_bits,
    scaled_to_int,
    spread,
    store_bytes,
    sum_of,
)

GROUP = 32
LARGEST = np.float32(127)
# Below this a group counts as zeros: its scale, or one over it, would leave the range of normal float32.
TINY = np.float32(2.0**-118)
_TINY_BITS, _INFINITY_BITS = (int(value.view(np.int32)) for value in (TINY, np.float32(np.inf)))


@jit
def quantize_rows(x, codes, scales, sums, begin, end):
    """Quantize rows begin..end of x: a code is x / scale, rounded half to even, and the scale max(abs(x)) / 127.

    x float32 [n, K]; codes int8 [n, 32 G], scales and sums float32 [n, G], all written to, where 32 G >= K: what is
    beyond K counts as zeros. sums are scale * sum(codes), for weights that have a minimum.
    A group below 2**-118 becomes zeros. One with a NaN or an infinity gets codes 0 and the scale NaN, so that every
    product with it is NaN, and none is a number that looks right.
    """
    for row in range(begin, end):
        for group in range(scales.shape[1]):
            quantize_group(x, row, group, codes, scales, sums)


@inlined
def quantize_group(x, row, group, codes, scales, sums):
    """Quantize one group of one row, as `quantize_rows` says."""
    at, left = row * x.shape[1] + GROUP * group, x.shape[1] - GROUP * group
    a, b = _load_up_to(left, x, at), _load_up_to(left - 8, x, at + 8)
    c, d = _load_up_to(left - 16, x, at + 16), _load_up_to(left - 24, x, at + 24)
    bits = largest_of(
        larger(larger(magnitude_bits(a), magnitude_bits(b)), larger(magnitude_bits(c), magnitude_bits(d)))
    )
    scale, inverse = np.float32(0), np.float32(0)
    if bits >= _INFINITY_BITS:
        scale = np.float32(np.nan)
        a = b = c = d = spread(np.float32(0))
    elif bits >= _TINY_BITS:
        scale = divide(float_of_bits(bits), LARGEST)
        inverse = divide(LARGEST, float_of_bits(bits))
    factor = spread(inverse)
    a, b, c, d = scaled_to_int(a, factor), scaled_to_int(b, factor), scaled_to_int(c, factor), scaled_to_int(d, factor)
    code_at = row * codes.shape[1] + GROUP * group
    store_bytes(codes, code_at, a)
    store_bytes(codes, code_at + 8, b)
    store_bytes(codes, code_at + 16, c)
    store_bytes(codes, code_at + 24, d)
    scales[row, group] = scale
    sums[row, group] = scale * np.float32(sum_of(add(add(a, b), add(c, d))))


@inlined
def _load_up_to(count, x, at):
    """Eight floats, or the first `count` of them and zeros."""
    return load_masked(x, at, first_lanes(count, spread(np.float32(0))))

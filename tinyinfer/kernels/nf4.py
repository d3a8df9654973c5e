"""Products with NF4 weights: 4-bit codes that stand for sixteen levels, looked up as 16-bit integers.

x is in groups of 32 int8 codes; sums of a group are integers, scaled in float32.
"""

from __future__ import annotations

import numpy as np
from numba import types

from .jit import inlined, jit, spliced
from .simd import (
    add_level_products,
    broadcast_float,
    broadcast_words,
    high_nibbles,
    joined,
    level_row_sums,
    load_bytes,
    load_floats,
    look_ahead,
    look_up,
    low_nibbles,
    multiply,
    multiply_add,
    no_level_products,
    plus,
    pointer,
    spread,
    store_words,
    times,
    to_float,
    zeros_like,
)
from .tiles import multiply_by_fours, put, rows_from

ONE = 32767  # what stands for the level 1.0
# The quantiles of QLoRA (https://arxiv.org/abs/2305.14314, appendix E), off by at most half of 1 / ONE.
LEVELS = np.rint(
    ONE
    * np.array(
        [
            *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
            *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
            *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
            *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
        ]
    )
).astype(np.int16)


@jit
def matmul_nf4(x_codes, x_scales, codes, scales, out, column, rows, begin, end, accumulate):
    """For all n rows of x and the row blocks begin..end of a weight: out[:, column + row] = x . weight[row].

    x_codes int8 [n, 32 G] and x_scales float32 [n, G], as `quantize_rows` makes them, or wider.
    codes uint8 [blocks, G, 4, 32], laid out as for `matmul_int4`. scales [blocks, S, 8] where S divides G, int16
    (float16's bits) or float32: the largest magnitude of each block of weights, which the level 1 stands for.
    out float32 [n, ...]; accumulate: add to it. Nothing is checked.
    """
    groups, spans = codes.shape[1], scales.shape[1]
    weight = pointer(codes, 0), groups, pointer(scales, 0), spans, groups // spans, pointer(LEVELS, 0)
    x = x_codes, x_scales
    multiply_by_fours(_tile, _wide_rows, _wide_rows, x, weight, out, column, rows, begin, end, accumulate)


@spliced
def _wide_rows(x, first, end):
    """Codes widened to 16 bits: once, and not for each block of the weight."""
    x_codes, x_scales = x
    width, codes = x_codes.shape[1], rows_from(x_codes, first)
    words = np.empty((end - first) * width, np.int16)
    for at in range(0, words.size, 32):
        store_words(words, at, load_bytes(codes, at))
    return words, width, rows_from(x_scales, first), x_scales.shape[1]


@inlined
def _tile(tokens, blocks, x, weight, where):
    x_codes, x_width, x_scales, x_groups = x
    codes, groups, scales, spans, span, levels = weight
    x_at, x_scale_at = times(tokens, x_width), times(tokens, x_groups)
    at, scale_at = times(blocks, groups * 128), times(blocks, spans * 8)
    total = zeros_like(joined(load_floats(scales, scale_at)), tokens)
    left = span
    for _ in range(groups):
        look_ahead(codes, at)
        look_ahead(codes, plus(at, 64))
        look_ahead(scales, scale_at)
        scale = multiply(joined(load_floats(scales, scale_at)), spread(types.float32(1 / ONE)))
        sums = no_level_products(tokens, scale)
        for _ in range(4):
            packed = joined(load_bytes(codes, at))
            sums = add_level_products(sums, look_up(low_nibbles(packed), levels, 0), broadcast_words(x_codes, x_at))
            x_at = plus(x_at, 4)
            sums = add_level_products(sums, look_up(high_nibbles(packed), levels, 0), broadcast_words(x_codes, x_at))
            x_at = plus(x_at, 4)
            at = plus(at, 32)
        scaled = multiply(scale, broadcast_float(x_scales, x_scale_at))
        total = multiply_add(to_float(level_row_sums(sums)), scaled, total)
        x_scale_at = plus(x_scale_at, 1)
        left -= 1
        if left == 0:
            left = span
            scale_at = plus(scale_at, 8)
    put(total, tokens, blocks, where)

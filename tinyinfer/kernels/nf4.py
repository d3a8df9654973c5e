"""Products with NF4 weights: 4-bit codes that stand for sixteen levels, looked up as 16-bit integers.

x is in groups of 32 int8 codes; sums of a group are integers, scaled in float32.
"""

from __future__ import annotations

import numpy as np
from numba import types

from .jit import inlined, jit
from .simd import (
    add_level_products,
    broadcast_bytes,
    broadcast_float,
    high_nibbles,
    load_bytes,
    load_floats,
    look_up,
    low_nibbles,
    multiply,
    multiply_add,
    no_floats,
    no_level_products,
    plus,
    prefetch,
    row_sums,
    spread,
    times,
    to_float,
)
from .tiles import WIDE, put

AHEAD = 2048  # bytes of codes to ask memory for before they are needed: by itself the processor looks less far

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
    n = x_codes.shape[0]
    for first in range(0, n, WIDE):
        t, left = first, n - first
        for block in range(begin, end):
            if left >= WIDE:
                many = (t, t + 1, t + 2, t + 3, t + 4, t + 5, t + 6, t + 7)
                put(_tile(many, x_codes, x_scales, codes, scales, block), many, block, out, column, rows, accumulate)
                continue
            for u in range(first, n - 1, 2):
                two = (u, u + 1)
                put(_tile(two, x_codes, x_scales, codes, scales, block), two, block, out, column, rows, accumulate)
            if left % 2:
                one = (n - 1,)
                put(_tile(one, x_codes, x_scales, codes, scales, block), one, block, out, column, rows, accumulate)


@inlined
def _tile(tokens, x_codes, x_scales, codes, scales, block):
    groups, spans = codes.shape[1], scales.shape[1]
    x_at, x_scale_at = times(tokens, x_codes.shape[1]), times(tokens, x_scales.shape[1])
    at, scale_at = block * groups * 128, block * spans * 8
    total = no_floats(tokens)
    for _ in range(spans):
        scale = multiply(load_floats(scales, scale_at), spread(types.float32(1 / ONE)))
        for _ in range(groups // spans):
            sums = no_level_products(tokens)
            for line in range(0, 128, 64):
                prefetch(codes, at + AHEAD + line)
            for _ in range(4):
                packed = load_bytes(codes, at)
                low = look_up(low_nibbles(packed), LEVELS, 0)
                sums = add_level_products(sums, low, broadcast_bytes(x_codes, x_at))
                x_at = plus(x_at, 4)
                high = look_up(high_nibbles(packed), LEVELS, 0)
                sums = add_level_products(sums, high, broadcast_bytes(x_codes, x_at))
                x_at = plus(x_at, 4)
                at += 32
            scaled = multiply(scale, broadcast_float(x_scales, x_scale_at))
            total = multiply_add(to_float(row_sums(sums)), scaled, total)
            x_scale_at = plus(x_scale_at, 1)
        scale_at += 8
    return total

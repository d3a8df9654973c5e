"""Products with 4-bit weights: x in groups of 32 int8 codes, sums of a group in integers, scaled in float32."""

from __future__ import annotations

from numba import types

from .jit import inlined, jit
from .simd import (
    add_nibble_products,
    broadcast_bytes,
    broadcast_float,
    high_nibbles,
    load_bytes,
    load_floats,
    low_nibbles,
    multiply,
    multiply_add,
    no_floats,
    no_nibble_products,
    plus,
    prefetch,
    row_sums,
    spread,
    times,
    to_float,
)
from .tiles import WIDE, put

AHEAD = 2048  # bytes of codes to ask memory for before they are needed: by itself the processor looks less far


@jit
def matmul_int4(x_codes, x_scales, x_sums, codes, scales, minimums, out, column, rows, begin, end, accumulate):
    """For all n rows of x and the row blocks begin..end of a weight: out[:, column + row] = x . weight[row].

    x_codes int8 [n, 32 G], x_scales and x_sums float32 [n, G], as `quantize_rows` makes them, or wider.
    codes uint8 [blocks, G, 4, 32]: byte j of chunk c is row j // 4 of the block, k = 8 c + j % 4 of the group in the
    lower half and k = 8 c + 4 + j % 4 in the upper. scales and minimums int16 [blocks, S, 8], float16's bits, where S
    divides G; a weight is scale * code + minimum, or scale * (code - 8) where minimums is empty.
    out float32 [n, ...]; accumulate: add to it. Nothing is checked.
    """
    n = x_codes.shape[0]
    for first in range(0, n, WIDE):
        t, left = first, n - first
        for block in range(begin, end):
            if left >= WIDE:
                many = (t, t + 1, t + 2, t + 3, t + 4, t + 5, t + 6, t + 7)
                sums_of_many = _tile(many, x_codes, x_scales, x_sums, codes, scales, minimums, block)
                put(sums_of_many, many, block, out, column, rows, accumulate)
                continue
            for u in range(first, n - 1, 2):
                two = (u, u + 1)
                sums_of_two = _tile(two, x_codes, x_scales, x_sums, codes, scales, minimums, block)
                put(sums_of_two, two, block, out, column, rows, accumulate)
            if left % 2:
                one = (n - 1,)
                sums_of_one = _tile(one, x_codes, x_scales, x_sums, codes, scales, minimums, block)
                put(sums_of_one, one, block, out, column, rows, accumulate)


@inlined
def _tile(tokens, x_codes, x_scales, x_sums, codes, scales, minimums, block):
    groups, spans = codes.shape[1], scales.shape[1]
    x_at, x_scale_at = times(tokens, x_codes.shape[1]), times(tokens, x_scales.shape[1])
    at, scale_at = block * groups * 128, block * spans * 8
    total = no_floats(tokens)
    for _ in range(spans):
        scale = load_floats(scales, scale_at)
        minimum = load_floats(minimums, scale_at) if minimums.size else multiply(scale, spread(types.float32(-8)))
        for _ in range(groups // spans):
            sums = no_nibble_products(tokens)
            for line in range(0, 128, 64):
                prefetch(codes, at + AHEAD + line)
            for _ in range(4):
                packed = load_bytes(codes, at)
                sums = add_nibble_products(sums, low_nibbles(packed), broadcast_bytes(x_codes, x_at))
                x_at = plus(x_at, 4)
                sums = add_nibble_products(sums, high_nibbles(packed), broadcast_bytes(x_codes, x_at))
                x_at = plus(x_at, 4)
                at += 32
            scaled = multiply(scale, broadcast_float(x_scales, x_scale_at))
            total = multiply_add(to_float(row_sums(sums)), scaled, total)
            total = multiply_add(minimum, broadcast_float(x_sums, x_scale_at), total)
            x_scale_at = plus(x_scale_at, 1)
        scale_at += 8
    return total

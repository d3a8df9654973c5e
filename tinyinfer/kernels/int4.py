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
from .tiles import WIDE, partner, put

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
    wide = n - n % WIDE
    for t in range(0, wide, WIDE):
        many = (t, t + 1, t + 2, t + 3, t + 4, t + 5, t + 6, t + 7)
        for block in range(begin, end):
            total = _tile(many, block, x_codes, x_scales, x_sums, codes, scales, minimums)
            put(total, many, block, block, out, column, rows, accumulate)
    block = begin if wide < n else end
    while block < end:
        last = partner(block, end, rows)
        pair = (block, last)
        for t in range(wide, n):
            total_of_pair = _tile(t, pair, x_codes, x_scales, x_sums, codes, scales, minimums)
            put(total_of_pair, t, pair, last, out, column, rows, accumulate)
        block = last + 1


@inlined
def _tile(tokens, blocks, x_codes, x_scales, x_sums, codes, scales, minimums):
    groups, spans = codes.shape[1], scales.shape[1]
    x_at, x_scale_at = times(tokens, x_codes.shape[1]), times(tokens, x_scales.shape[1])
    at, scale_at = times(blocks, groups * 128), times(blocks, spans * 8)
    tiles = plus(tokens, blocks)
    total = no_floats(tiles)
    for _ in range(spans):
        scale = load_floats(scales, scale_at)
        minimum = load_floats(minimums, scale_at) if minimums.size else multiply(scale, spread(types.float32(-8)))
        for _ in range(groups // spans):
            sums = no_nibble_products(tiles)
            for line in range(0, 128, 64):
                prefetch(codes, plus(at, AHEAD + line))
            for _ in range(4):
                packed = load_bytes(codes, at)
                sums = add_nibble_products(sums, low_nibbles(packed), broadcast_bytes(x_codes, x_at))
                x_at = plus(x_at, 4)
                sums = add_nibble_products(sums, high_nibbles(packed), broadcast_bytes(x_codes, x_at))
                x_at = plus(x_at, 4)
                at = plus(at, 32)
            scaled = multiply(scale, broadcast_float(x_scales, x_scale_at))
            total = multiply_add(to_float(row_sums(sums)), scaled, total)
            total = multiply_add(minimum, broadcast_float(x_sums, x_scale_at), total)
            x_scale_at = plus(x_scale_at, 1)
        scale_at = plus(scale_at, 8)
    return total

"""Products with 4-bit weights: x in groups of 32 int8 codes, sums of a group in integers, scaled in float32."""

from __future__ import annotations

from numba import types

from .jit import inlined, jit, spliced
from .simd import (
    add_nibble_products,
    broadcast_bytes,
    broadcast_float,
    high_nibbles,
    joined,
    load_bytes,
    load_floats,
    look_ahead,
    low_nibbles,
    multiply,
    multiply_add,
    no_nibble_products,
    plus,
    pointer,
    row_sums,
    settled,
    spread,
    times,
    to_float,
    zeros_like,
)
from .tiles import multiply_by_eights, put, rows_from

f32 = types.float32


@jit
def matmul_int4(x_codes, x_scales, x_sums, codes, scales, minimums, out, column, rows, begin, end, accumulate):
    """For all n rows of x and the row blocks begin..end of a weight: out[:, column + row] = x . weight[row].

    x_codes int8 [n, 32 G], x_scales and x_sums float32 [n, G], as `quantize_rows` makes them, or wider.
    codes uint8 [blocks, G, 4, 32]: byte j of chunk c is row j // 4 of the block, k = 8 c + j % 4 of the group in the
    lower half and k = 8 c + 4 + j % 4 in the upper. scales and minimums int16 [blocks, S, 8], float16's bits, where S
    divides G; a weight is scale * code + minimum, or scale * (code - 8) where minimums is empty.
    out float32 [n, ...]; accumulate: add to it. Nothing is checked.
    """
    groups, spans = codes.shape[1], scales.shape[1]
    # -8 times the scale is a minimum too
    lows, factor = (minimums, f32(1)) if minimums.size else (scales, f32(-8))
    weight = pointer(codes, 0), groups, pointer(scales, 0), spans, groups // spans, pointer(lows, 0), factor
    x = x_codes, x_scales, x_sums
    multiply_by_eights(_tile, x_rows, x_rows, x, weight, out, column, rows, begin, end, accumulate)


@spliced
def x_rows(x, first, end):
    """What a tile needs of some rows of x: codes, their width, scales, sums, and how many groups there are."""
    x_codes, x_scales, x_sums = x
    scales, sums = rows_from(x_scales, first), rows_from(x_sums, first)
    return rows_from(x_codes, first), x_codes.shape[1], scales, sums, x_scales.shape[1]


@inlined
def _tile(tokens, blocks, x, weight, where):
    x_codes, x_width, x_scales, x_sums, x_groups = x
    codes, groups, scales, spans, span, lows, factor = weight
    x_at, x_scale_at = times(tokens, x_width), times(tokens, x_groups)
    at, scale_at = times(blocks, groups * 128), times(blocks, spans * 8)
    total = zeros_like(joined(load_floats(scales, scale_at)), tokens)
    left = span
    for _ in range(groups):
        look_ahead(codes, at)
        look_ahead(codes, plus(at, 64))
        look_ahead(scales, scale_at)
        look_ahead(lows, scale_at)
        scale = joined(load_floats(scales, scale_at))
        sums = no_nibble_products(tokens, scale)
        for _ in range(4):
            packed = joined(load_bytes(codes, at))
            sums = add_nibble_products(sums, low_nibbles(packed), broadcast_bytes(x_codes, x_at))
            x_at = plus(x_at, 4)
            sums = add_nibble_products(sums, high_nibbles(packed), broadcast_bytes(x_codes, x_at))
            x_at = plus(x_at, 4)
            at = plus(at, 32)
            sums = settled(sums)
        scaled = multiply(scale, broadcast_float(x_scales, x_scale_at))
        total = multiply_add(to_float(row_sums(sums)), scaled, total)
        low = multiply(joined(load_floats(lows, scale_at)), spread(factor))
        total = multiply_add(low, broadcast_float(x_sums, x_scale_at), total)
        x_scale_at = plus(x_scale_at, 1)
        left -= 1
        if left == 0:
            left = span
            scale_at = plus(scale_at, 8)
    put(total, tokens, blocks, where)

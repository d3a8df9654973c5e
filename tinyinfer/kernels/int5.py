"""Products with 5-bit weights: x in groups of 32 int8 codes, sums of a group in integers, scaled in float32."""

from __future__ import annotations

from numba import types

from .int4 import x_rows
from .jit import inlined, jit
from .simd import (
    add,
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
    no_products,
    plus,
    pointer,
    row_sums,
    spread,
    times,
    to_float,
    with_fifth_bits,
    zeros_like,
)
from .tiles import multiply_by_fours, put

f32 = types.float32


@jit
def matmul_int5(x_codes, x_scales, x_sums, codes, scales, minimums, out, column, rows, begin, end, accumulate):
    """For all n rows of x and the row blocks begin..end of a weight: out[:, column + row] = x . weight[row].

    x_codes int8 [n, 32 G], x_scales and x_sums float32 [n, G], as `quantize_rows` makes them, or wider.
    codes uint8 [blocks, G, 5, 32]: the lower four bits as for `matmul_int4`, then a line of fifth bits: bit b of byte j
    is of row j // 4 of the block, k = 4 b + j % 4 of the group. scales and minimums int16 [blocks, S, 8], float16's
    bits, where S divides G; a weight is scale * code + minimum, or scale * (code - 16) where minimums is empty.
    out float32 [n, ...]; accumulate: add to it. Nothing is checked.
    """
    groups, spans = codes.shape[1], scales.shape[1]
    # -16 times the scale is a minimum too
    lows, factor = (minimums, f32(1)) if minimums.size else (scales, f32(-16))
    weight = pointer(codes, 0), groups, pointer(scales, 0), spans, groups // spans, pointer(lows, 0), factor
    x = x_codes, x_scales, x_sums
    multiply_by_fours(_tile, x_rows, x_rows, x, weight, out, column, rows, begin, end, accumulate)


@inlined
def _tile(tokens, blocks, x, weight, where):
    x_codes, x_width, x_scales, x_sums, x_groups = x
    codes, groups, scales, spans, span, lows, factor = weight
    x_at, x_scale_at = times(tokens, x_width), times(tokens, x_groups)
    at, scale_at = times(blocks, groups * 160), times(blocks, spans * 8)
    total = zeros_like(joined(load_floats(scales, scale_at)), tokens)
    left = span
    for _ in range(groups):
        for line in range(0, 160, 64):
            look_ahead(codes, plus(at, line))
        look_ahead(scales, scale_at)
        look_ahead(lows, scale_at)
        scale = joined(load_floats(scales, scale_at))
        fifths = joined(load_bytes(codes, plus(at, 128)))
        whole = no_products(tokens, scale)
        for half in range(2):  # of the group: more products would not fit in 16 bits
            sums = no_nibble_products(tokens, scale)
            for line in range(2):
                packed, bit = joined(load_bytes(codes, at)), 4 * half + 2 * line
                low = with_fifth_bits(low_nibbles(packed), fifths, bit)
                sums = add_nibble_products(sums, low, broadcast_bytes(x_codes, x_at))
                x_at = plus(x_at, 4)
                high = with_fifth_bits(high_nibbles(packed), fifths, bit + 1)
                sums = add_nibble_products(sums, high, broadcast_bytes(x_codes, x_at))
                x_at = plus(x_at, 4)
                at = plus(at, 32)
            whole = add(whole, row_sums(sums))
        at = plus(at, 32)
        scaled = multiply(scale, broadcast_float(x_scales, x_scale_at))
        total = multiply_add(to_float(whole), scaled, total)
        lowest = multiply(joined(load_floats(lows, scale_at)), spread(factor))
        total = multiply_add(lowest, broadcast_float(x_sums, x_scale_at), total)
        x_scale_at = plus(x_scale_at, 1)
        left -= 1
        if left == 0:
            left = span
            scale_at = plus(scale_at, 8)
    put(total, tokens, blocks, where)

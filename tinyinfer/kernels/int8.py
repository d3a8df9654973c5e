"""Products with 8-bit weights: x in groups of 32 int8 codes, sums of a group in integers, scaled in float32."""

from __future__ import annotations

from .jit import inlined, jit
from .simd import (
    add_products,
    broadcast_bytes,
    broadcast_float,
    load_bytes,
    load_floats,
    multiply,
    multiply_add,
    no_floats,
    no_products,
    plus,
    prefetch,
    row_sums,
    times,
    to_float,
)
from .tiles import WIDE, put

AHEAD = 1024  # bytes of codes to ask memory for before they are needed: by itself the processor looks less far


@jit
def matmul_int8(x_codes, x_scales, codes, scales, out, column, rows, begin, end, accumulate):
    """For all n rows of x and the row blocks begin..end of a weight: out[:, column + row] = x . weight[row].

    x_codes int8 [n, 32 G] and x_scales float32 [n, G], as `quantize_rows` makes them, or wider.
    codes int8 [blocks, G, 8, 32], -127..127: byte j of chunk c is row j // 4 of the block, k = 4 c + j % 4 of a group.
    scales [blocks, S, 8] where S divides G, int16 (float16's bits) or float32; [blocks, 8] where S is 1.
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
    groups, spans = codes.shape[1], scales.size // (8 * scales.shape[0])
    x_at, x_scale_at = times(tokens, x_codes.shape[1]), times(tokens, x_scales.shape[1])
    at, scale_at = block * groups * 256, block * spans * 8
    total = no_floats(tokens)
    for _ in range(spans):
        scale = load_floats(scales, scale_at)
        for _ in range(groups // spans):
            sums = no_products(tokens)
            for line in range(0, 256, 64):
                prefetch(codes, at + AHEAD + line)
            for _ in range(8):
                sums = add_products(sums, load_bytes(codes, at), broadcast_bytes(x_codes, x_at))
                x_at = plus(x_at, 4)
                at += 32
            scaled = multiply(scale, broadcast_float(x_scales, x_scale_at))
            total = multiply_add(to_float(row_sums(sums)), scaled, total)
            x_scale_at = plus(x_scale_at, 1)
        scale_at += 8
    return total

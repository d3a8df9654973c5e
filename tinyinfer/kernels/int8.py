"""Products with 8-bit weights: x in groups of 32 int8 codes, sums of a group in integers, scaled in float32."""

from __future__ import annotations

import numpy as np

from .jit import inlined, jit, spliced
from .processor import uses
from .simd import (
    add_excess,
    add_products,
    broadcast_bytes,
    broadcast_float,
    joined,
    load_bytes,
    load_floats,
    look_ahead,
    multiply,
    multiply_add,
    no_products,
    plus,
    pointer,
    row_sums,
    store_raised,
    subtract,
    times,
    to_float,
    zeros_like,
)
from .tiles import multiply_by_eights, put, rows_from


@jit
def matmul_int8(x_codes, x_scales, codes, scales, out, column, rows, begin, end, accumulate):
    """For all n rows of x and the row blocks begin..end of a weight: out[:, column + row] = x . weight[row].

    x_codes int8 [n, 32 G] and x_scales float32 [n, G], as `quantize_rows` makes them, or wider.
    codes int8 [blocks, G, 8, 32], -127..127: byte j of chunk c is row j // 4 of the block, k = 4 c + j % 4 of a group.
    scales [blocks, S, 8] where S divides G, int16 (float16's bits) or float32; [blocks, 8] where S is 1.
    out float32 [n, ...]; accumulate: add to it. Nothing is checked.
    """
    groups, spans = codes.shape[1], scales.size // (8 * scales.shape[0])
    weight = pointer(codes, 0), groups, pointer(scales, 0), spans, groups // spans
    x = x_codes, x_scales
    multiply_by_eights(_tile, _rows, _eight_rows, x, weight, out, column, rows, begin, end, accumulate)


@spliced
def _rows(x, first, end):
    x_codes, x_scales = x
    return rows_from(x_codes, first), x_codes.shape[1], rows_from(x_scales, first), x_scales.shape[1]


@spliced
def _raised_rows(x, first, end):
    """Codes with 128 added: what has no sign is multiplied in fewer instructions, where there is one for it."""
    x_codes, x_scales = x
    width, codes = x_codes.shape[1], rows_from(x_codes, first)
    raised = np.empty((end - first) * width, np.uint8)
    for at in range(0, raised.size, 32):
        store_raised(raised, at, load_bytes(codes, at))
    return raised, width, rows_from(x_scales, first), x_scales.shape[1]


_eight_rows = _raised_rows if uses("avx512vnni") or uses("avxvnni") else _rows


@inlined
def _tile(tokens, blocks, x, weight, where):
    x_codes, x_width, x_scales, x_groups = x
    codes, groups, scales, spans, span = weight
    x_at, x_scale_at = times(tokens, x_width), times(tokens, x_groups)
    at, scale_at = times(blocks, groups * 256), times(blocks, spans * 8)
    total = zeros_like(joined(load_floats(scales, scale_at)), tokens)
    left = span
    for _ in range(groups):
        for line in range(0, 256, 64):
            look_ahead(codes, plus(at, line))
        look_ahead(scales, scale_at)
        scale = joined(load_floats(scales, scale_at))
        sums, excess = no_products(tokens, scale), no_products(0, scale)
        for _ in range(8):
            some_codes, some_x = joined(load_bytes(codes, at)), broadcast_bytes(x_codes, x_at)
            sums = add_products(sums, some_codes, some_x)
            excess = add_excess(excess, some_codes, some_x[0])
            x_at = plus(x_at, 4)
            at = plus(at, 32)
        sums = subtract(row_sums(sums), excess)
        scaled = multiply(scale, broadcast_float(x_scales, x_scale_at))
        total = multiply_add(to_float(sums), scaled, total)
        x_scale_at = plus(x_scale_at, 1)
        left -= 1
        if left == 0:
            left = span
            scale_at = plus(scale_at, 8)
    put(total, tokens, blocks, where)

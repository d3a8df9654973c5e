"""What the products of all schemes share: how many rows of x go together, and where a tile's sums are put.

A tile is eight rows of the weight times a few rows of x, `tokens`, a tuple of their numbers. Its sums stay in
registers, and each weight that is loaded and unpacked serves all its tokens.
"""

from __future__ import annotations

from .jit import inlined
from .simd import add, lane, load_float, load_floats, plus, store_float, store_floats, times

WIDE = 8  # tokens of the largest tile


@inlined
def put(total, tokens, block, out, column, rows, accumulate):
    """out[tokens, column + 8 block :] = total, or += total: eight rows, or those of them that the weight has.

    total: a tuple of f32x8, one for each of `tokens`; out float32 [n, ...]; rows: of the weight.
    """
    at = plus(times(tokens, out.shape[1]), column + 8 * block)
    count = rows - 8 * block
    if count >= 8:
        if accumulate:
            total = add(total, load_floats(out, at))
        store_floats(out, at, total)
    else:
        for row in range(count):
            one, place = lane(total, row), plus(at, row)
            if accumulate:
                one = add(one, load_float(out, place))
            store_float(out, place, one)

"""What the products of all schemes share: how many rows of x go together, and where a tile's sums are put.

A tile is one block of eight rows of the weight times a few rows of x, `tokens`; or one row of x times two blocks. What
there are several of is a tuple of numbers, the other a number. The sums of a tile stay in registers: each weight that
is loaded and unpacked serves all its tokens, or each bit of x both its blocks.
"""

from __future__ import annotations

from .jit import inlined
from .simd import add, lane, load_float, load_floats, plus, store_float, store_floats, times

WIDE = 8  # tokens of the largest tile


@inlined
def partner(block, end, rows):
    """The block that makes a pair with `block`: the next one if it is in the range and whole, else the same again."""
    return block + 1 if block + 1 < end and 8 * block + 16 <= rows else block


@inlined
def put(total, tokens, blocks, last, out, column, rows, accumulate):
    """out[tokens, column + 8 blocks :] = total, or += total: eight rows a block, or those of them that the weight has.

    total: a tuple of f32x8, one for each of `tokens` or `blocks`, of which `last` is the last and may be there twice;
    out float32 [n, ...]; rows: of the weight.
    """
    at = plus(times(tokens, out.shape[1]), plus(times(blocks, 8), column))
    count = rows - 8 * last
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

"""What the products of all schemes share: which rows go together, and where their sums are put.

A tile is one or two blocks, of eight rows of the weight each, times a few rows of x, `tokens`; both are tuples of
numbers. Its sums stay in registers, and each weight that is loaded and unpacked serves all its tokens.
Tiles take pointers and numbers, not arrays, which take far longer to compile.
"""

from __future__ import annotations

from .jit import spliced
from .processor import uses
from .simd import add, first_lanes, load_masked, plus, pointer, store_floats, store_masked, times

EIGHT, FOUR, TWO, ONE = (0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3), (0, 1), (0,)


@spliced
def multiply_by_eights(tile, few_rows, eight_rows, x, weight, out, column, rows, begin, end, accumulate):
    """out[:, column + row] = or += x . weight[row] for all rows of x and the blocks begin..end.

    x is a tuple of arrays, of which the first has as many rows as `out`; `weight` is whatever the tile needs of it.
    `few_rows(x, first, end)` gives what the tile needs of those rows of x, and `eight_rows` of whole eights, where it
    can pay to prepare more. `tile(tokens, blocks, x, weight, where)` counts tokens from the first of these, and leaves
    its sums to `put`.
    """
    n, width = out.shape
    for first in range(0, n, 8):
        where = pointer(out, first * width + column), width, rows, accumulate
        count = min(8, n - first)
        if count < 8:  # first in the code too: what decoding runs should lie close together
            _few_tokens(tile, begin, end, count, few_rows(x, first, first + count), weight, where)
        else:
            _eight_tokens(tile, begin, end, eight_rows(x, first, first + 8), weight, where)


@spliced
def _by_fours(tile, few_rows, eight_rows, x, weight, out, column, rows, begin, end, accumulate):
    n, width = out.shape
    for first in range(0, n, 8):
        where = pointer(out, first * width + column), width, rows, accumulate
        count = min(8, n - first)
        _few_tokens(tile, begin, end, count, few_rows(x, first, first + count), weight, where)


# The same, for what takes many registers to unpack: with the sums of eight tokens there would be too few in AVX2, which
# has sixteen. With AVX-512 there are 32.
multiply_by_fours = multiply_by_eights if uses("avx512f") else _by_fours


@spliced
def rows_from(array, first):
    """A pointer to the beginning of a row."""
    return pointer(array, first * array.shape[1])


@spliced
def _few_tokens(tile, begin, end, count, x, weight, where):
    for block in range(begin, end):
        done = 0
        while count - done >= 4:
            tile(plus(FOUR, done), (block,), x, weight, where)
            done += 4
        if count & 2:
            tile(plus(TWO, done), (block,), x, weight, where)
            done += 2
        if count & 1:
            tile(plus(ONE, done), (block,), x, weight, where)


@spliced
def _a_block_at_a_time(tile, begin, end, x, weight, where):
    for block in range(begin, end):
        tile(EIGHT, (block,), x, weight, where)


@spliced
def _two_blocks_at_a_time(tile, begin, end, x, weight, where):
    for block in range(begin, end - 1, 2):
        tile(EIGHT, (block, block + 1), x, weight, where)
    if (end - begin) % 2:
        for half in range(0, 8, 4):
            tile(plus(FOUR, half), (end - 1,), x, weight, where)


_eight_tokens = _two_blocks_at_a_time if uses("avx512f") else _a_block_at_a_time


@spliced
def put(total, tokens, blocks, where):
    """out[tokens, 8 block :] = total, or += total: all rows, or those of them that the weight has.

    where: out float32 [n, width] from its first row and column on, width, how many rows the weight has, whether to add.
    """
    out, width, rows, accumulate = where
    at = plus(times(tokens, width), 8 * blocks[0])
    count = rows - 8 * blocks[0]
    which = first_lanes(count, total[0])
    if accumulate:
        total = add(total, load_masked(out, at, which))
    if count >= 8 * len(blocks):
        store_floats(out, at, total)
    else:
        store_masked(out, at, which, total)

"""What adapters add to linear maps, as operations of a tape; `adapted.py` says what they mean.

The step says which adapters the rows of a chunk have: int64 [chunks + 1] where each chunk's begin, then their numbers,
and beside that a float32 scale for each.
"""

from __future__ import annotations

from numba import carray, types

from .addresses import floats, row_at, share, source, step_at, target
from .jit import Code, inlined
from .memory import float32_at, int64_at
from .simd import load_floats, multiply_add, spread, store_floats
from .table import ADAPTER_SCALES, ADAPTERS, CHUNKS, FIELDS, OVER, PIECES, ROW_CHUNKS, ROWS

f32 = types.float32


@inlined
def _used(step, row):
    """Numbers and scales of a row's adapters."""
    chunk, chunks = carray(int64_at(step[ROW_CHUNKS]), step[ROWS])[row], step[CHUNKS]
    starts = carray(int64_at(step[ADAPTERS]), chunks + 1)
    begin, end = starts[chunk], starts[chunk + 1]
    numbers = carray(int64_at(step[ADAPTERS] + 8 * (chunks + 1 + begin)), end - begin)
    return numbers, carray(float32_at(step[ADAPTER_SCALES] + 4 * begin), end - begin)


@inlined
def _ranks(starts, number):
    """Which rows of the narrow matrices are an adapter's."""
    place = carray(int64_at(starts + 8 * number), 2)
    return place[0], place[1]


@Code
def narrow_row(op, numbers, step, row):
    """narrow = down x * scale, for the adapters of a row."""
    op, step = row_at(op), step_at(step)
    x, size, narrow, width, column, down, ranks, starts = op[FIELDS : FIELDS + 8]
    given = source(x, op, step, size)[row]
    result, weights = target(narrow, op, step, width)[row], floats(down, ranks, size)
    used, scales = _used(step, row)
    for i in range(used.size):
        begin, end = _ranks(starts, used[i])
        for rank in range(begin, end, 4):  # four at a time, the last ones again where there are fewer
            _four_products(given, weights, rank, end - 1, scales[i], result[column:])


@inlined
def _four_products(x, weights, rank, last, scale, out):
    second, third, fourth = min(rank + 1, last), min(rank + 2, last), min(rank + 3, last)
    w0, w1, w2, w3 = weights[rank], weights[second], weights[third], weights[fourth]
    s0 = s1 = s2 = s3 = f32(0)
    for k in range(x.size):
        s0 += x[k] * w0[k]
        s1 += x[k] * w1[k]
        s2 += x[k] * w2[k]
        s3 += x[k] * w3[k]
    out[rank], out[second], out[third], out[fourth] = s0 * scale, s1 * scale, s2 * scale, s3 * scale


@Code
def widen_part(op, numbers, step, piece):
    """out += up^T narrow: a piece's share of the columns of all rows."""
    op, step = row_at(op), step_at(step)
    rows, out, width, out_column, narrow, narrow_width, column, up, stride, ranks, starts = op[FIELDS : FIELDS + 11]
    begin, end = share(rows, piece, op[PIECES]), share(rows, piece + 1, op[PIECES])
    factors, weights = source(narrow, op, step, narrow_width), floats(up, ranks, stride)
    result = floats(out, step[op[OVER]], width)
    for row in range(step[op[OVER]]):
        sums = result[row, out_column : out_column + rows]
        used, _ = _used(step, row)
        for i in range(used.size):
            first, last = _ranks(starts, used[i])
            _add_products(factors[row, column:], weights, first, last, begin, end, sums)


@inlined
def _add_products(factors, weights, first, last, begin, end, sums):
    """sums[k] += factors . weights[first:last, k], for k from begin to end."""
    whole = begin + (end - begin) // 32 * 32
    for k in range(begin, whole, 32):
        a, b = load_floats(sums, k), load_floats(sums, k + 8)
        c, d = load_floats(sums, k + 16), load_floats(sums, k + 24)
        for rank in range(first, last):
            factor, row = spread(factors[rank]), weights[rank]
            a, b = multiply_add(factor, load_floats(row, k), a), multiply_add(factor, load_floats(row, k + 8), b)
            c, d = multiply_add(factor, load_floats(row, k + 16), c), multiply_add(factor, load_floats(row, k + 24), d)
        store_floats(sums, k, a)
        store_floats(sums, k + 8, b)
        store_floats(sums, k + 16, c)
        store_floats(sums, k + 24, d)
    for k in range(whole, end):
        total = sums[k]
        for rank in range(first, last):
            total += factors[rank] * weights[rank, k]
        sums[k] = total

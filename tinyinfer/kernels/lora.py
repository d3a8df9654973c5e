"""What adapters add to linear maps, as operations of a tape; `adapted.py` says what they mean.

The step says which adapters the rows of a chunk have: int64 [chunks + 1] where each chunk's begin, then their numbers,
and beside that a float32 scale for each.
"""

from __future__ import annotations

from numba import carray, types

from .addresses import floats, row_at, share, source, step_at, target
from .jit import Code, inlined
from .memory import float32_at, int64_at
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
        for rank in range(begin, end):
            weight, total = weights[rank], f32(0)
            for k in range(size):
                total += given[k] * weight[k]
            result[column + rank] = total * scales[i]


@Code
def widen_part(op, numbers, step, piece):
    """out += up^T narrow: a piece's share of the columns of all rows."""
    op, step = row_at(op), step_at(step)
    rows, out, width, out_column, narrow, narrow_width, column, up, ranks, starts = op[FIELDS : FIELDS + 10]
    begin, end = share(rows, piece, op[PIECES]), share(rows, piece + 1, op[PIECES])
    factors, weights = source(narrow, op, step, narrow_width), floats(up, ranks, rows)
    result = floats(out, step[op[OVER]], width)
    for row in range(step[op[OVER]]):
        sums = result[row, out_column + begin : out_column + end]
        used, _ = _used(step, row)
        for i in range(used.size):
            first, last = _ranks(starts, used[i])
            for rank in range(first, last):
                factor, weight = factors[row, column + rank], weights[rank, begin:end]
                for k in range(sums.size):
                    sums[k] += factor * weight[k]

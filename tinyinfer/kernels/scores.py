"""Scores of a block of keys: query . key, for up to four rows of queries at once."""

from __future__ import annotations

from numba import types

from .jit import inlined, spliced
from .simd import (
    broadcast_float,
    load_float,
    load_floats,
    multiply_add,
    plus,
    prefetch,
    store_floats,
    times,
    zeros_like,
)
from .together import FOUR, LANES, THREE, load_wide, rows_of

f32 = types.float32


@spliced
def score(queries, first, count, keys, block, ahead, scores, column):
    """scores[:count, column : column + B] = queries[first : first + count] . keys[block], rows of D and [D, B].

    Meanwhile memory is asked for the keys `ahead` numbers further on.
    """
    if count == 1:
        _score_one(queries, first, keys, block, ahead, scores, column)
    elif count == 3:
        _score_several(queries, first, count, THREE, keys, block, ahead, scores, column)
    else:
        _score_several(queries, first, count, FOUR, keys, block, ahead, scores, column)


@inlined
def _score_one(queries, row, keys, block, ahead, scores, column):
    """scores[0, column : column + B] = queries[row] . keys[block], D and [D, B]."""
    dim, size = keys.shape[1], keys.shape[2]
    at, q = block * dim * size, row * dim
    wide, whole = size // 32 * 32, size // 8 * 8
    for j in range(0, wide, 32):
        columns = (j, j + 8, j + 16, j + 24)
        dots = _dots(load_floats, queries, (q, q, q, q), keys, plus(columns, at), ahead)
        store_floats(scores, plus(columns, column), dots)
    for j in range(wide, whole, 8):
        store_floats(scores, (column + j,), _dots(load_floats, queries, (q,), keys, (at + j,), ahead))
    _score_rest(queries, row, keys, block, whole, scores[0, column:])


@inlined
def _score_several(queries, first, count, rows, keys, block, ahead, scores, column):
    """scores[:count, column : column + B] = queries[first : first + count] . keys[block], rows of D and [D, B]."""
    once, twice, columns = rows
    dim, size = keys.shape[1], keys.shape[2]
    at = block * dim * size
    wide, whole = size // (2 * LANES) * (2 * LANES), size // 8 * 8
    q, s = times(rows_of(twice, first, count), dim), times(rows_of(twice, 0, count), scores.shape[1])
    for j in range(0, wide, 2 * LANES):
        places = plus(columns, j)
        store_floats(scores, plus(plus(s, places), column), _dots(load_wide, queries, q, keys, plus(places, at), ahead))
    q, s = times(rows_of(once, first, count), dim), times(rows_of(once, 0, count), scores.shape[1])
    for j in range(wide, whole, 8):
        dots = _dots(load_floats, queries, q, keys, plus(times(once, 0), at + j), ahead)
        store_floats(scores, plus(s, column + j), dots)
    for i in range(count):
        _score_rest(queries, first + i, keys, block, whole, scores[i, column:])


@inlined
def _dots(load, queries, q_at, keys, k_at, ahead):
    """For each of a tuple of places: the query at one . as many keys in a row at the other as `load` takes.

    Meanwhile memory is asked for the keys `ahead`.
    """
    dim, size = keys.shape[1], keys.shape[2]
    sums = zeros_like(load(keys, k_at[0]), q_at)
    for _ in range(dim):
        prefetch(keys, k_at[0] + ahead)
        sums = multiply_add(load(keys, k_at), broadcast_float(queries, q_at), sums)
        q_at, k_at = plus(q_at, 1), plus(k_at, size)
    return sums


@inlined
def _score_rest(queries, row, keys, block, begin, scores):
    """The same for the keys of a block that fill no register."""
    dim, size = keys.shape[1], keys.shape[2]
    for j in range(begin, size):
        sum_of_row = f32(0)
        for d in range(dim):
            sum_of_row += queries[row, d] * load_float(keys, (block * dim + d) * size + j)
        scores[j] = sum_of_row

"""Attention of new tokens over cached keys and values, compiled: block by block, with the softmax kept up online.

Blocks hold keys side by side, [D, B], so that a register holds one dimension of eight keys and their scores need no
sums across lanes; and the dimensions of a value side by side, [B, D]. No n x n matrix ever exists: for each query there
are the largest score so far, the sum of exponentials, and the weighted sum of values (https://arxiv.org/abs/2112.05682,
https://arxiv.org/abs/2205.14135). Query heads that share a key-value head are rows of one matrix: a key or value that
is loaded and widened serves four of them.
"""

from __future__ import annotations

import numpy as np
from numba import types

from .jit import inlined, jit
from .pieces import exp, fill
from .processor import uses
from .simd import (
    add,
    at_most,
    broadcast_float,
    exponential,
    highest,
    load_float,
    load_floats,
    load_sixteen,
    maximum,
    multiply,
    multiply_add,
    no_floats,
    plus,
    prefetch,
    spread,
    store_floats,
    subtract,
    times,
    total,
    zeros_like,
)  # fmt: skip

f32 = types.float32
LOWEST = f32(-3.4e38)  # below any score; minus infinity less itself would be NaN
TOGETHER = 4  # rows of queries that go over a block together
SPAN = 128  # positions, in whole blocks, whose scores become shares in one go

# Rows of queries: each once, for one register of keys or of values; and each twice, with the places of two registers.
LANES, load_wide = (16, load_sixteen) if uses("avx512f") else (8, load_floats)
THREE = (0, 1, 2), (0, 0, 1, 1, 2, 2), (0, LANES) * 3
FOUR = (0, 1, 2, 3), (0, 0, 1, 1, 2, 2, 3, 3), (0, LANES) * 4


@jit
def attend(
    queries, share, keys, key_scales, values, value_scales, blocks, first_block, start, begin, end, window, cap,
    slopes, sinks, states,
):  # fmt: skip
    """Let rows of queries look at the positions from `begin` to `end`.

    queries  float32 [m, D], scaled: the `share` heads of the token at position `start`, then those of the next
    keys     [all blocks, D, B] and values [all blocks, B, D] of that head, float32, int16 (float16's bits) or int8
    key_scales, value_scales   float32 [all blocks, B], which int8 is multiplied with; else of size 0
    blocks   int64: where the sequence's blocks stand, from its block number `first_block` on
    window   how far back a token sees, itself counted; cap bends scores; 0 for neither
    slopes   float32 [share] or of size 0: what a score loses with each position back
    sinks    float32 [share] or of size 0: the score of looking at nothing
    states   float32 [m, D + 2], written here: weighted sum of values, largest score, sum of exponentials
    """
    m, dim = queries.shape
    size = keys.shape[2]
    span = max(SPAN // size, 1)  # blocks
    scores = np.empty((TOGETHER, (span * size + 7) // 8 * 8), np.float32)
    for i in range(m):
        fill(states[i], f32(0))
        states[i, dim] = LOWEST
        if sinks.size:
            states[i, dim], states[i, dim + 1] = sinks[i % share], f32(1)
    newest_block = (start + m // share - 1) // size
    for number in range(begin // size, (end + size - 1) // size, span):
        base = number * size
        for first in range(0, m, TOGETHER):
            count = min(m - first, TOGETHER)
            oldest, newest = start + first // share, start + (first + count - 1) // share
            low, _ = _seen(oldest, base, span * size, begin, end, window)
            _, high = _seen(newest, base, span * size, begin, end, window)
            if low >= high:
                continue
            for i in range(low // size, (high + size - 1) // size):
                block = blocks[number + i - first_block]
                ahead = _to_next(blocks, number + i, first_block, newest_block) * dim * size
                if count == 1:
                    _score_one(queries, first, keys, block, ahead, scores, i * size)
                elif count == 3:
                    _score(queries, first, count, THREE, keys, block, ahead, scores, i * size)
                else:
                    _score(queries, first, count, FOUR, keys, block, ahead, scores, i * size)
                if key_scales.size:
                    for row in range(count):
                        _multiply(scores[row, i * size :], key_scales[block])
            for i in range(count):
                if cap > 0:
                    _bend(scores[i, low:high], cap)
                position = start + (first + i) // share
                if slopes.size:
                    _lean(scores[i, low:high], slopes[(first + i) % share], base + low - position)
                seen = _seen(position, base, span * size, begin, end, window)
                _to_shares(scores, i, low, high, seen, states, first + i)
            for i in range(low // size, (high + size - 1) // size):
                block = blocks[number + i - first_block]
                ahead = _to_next(blocks, number + i, first_block, newest_block) * dim * size
                if value_scales.size:
                    for row in range(count):
                        _multiply(scores[row, i * size :], value_scales[block])
                part = max(low - i * size, 0), min(high - i * size, size)
                if count == 1:
                    _mix_one(scores, i * size, part, values, block, ahead, states, first)
                elif count == 3:
                    _mix_several(scores, i * size, part, values, block, ahead, states, first, count, THREE)
                else:
                    _mix_several(scores, i * size, part, values, block, ahead, states, first, count, FOUR)


@inlined
def _to_next(blocks, number, first_block, newest):
    """How far from where a block stands the next one does, for memory to be asked for it: by itself the processor does
    not look beyond a page."""
    return blocks[min(number + 1, newest) - first_block] - blocks[number - first_block]


@inlined
def _seen(position, base, size, begin, end, window):
    """From where to where a token sees, of `size` positions from `base` on and those from `begin` to `end`."""
    low = max(begin, position - window + 1) if window > 0 else begin
    return max(low - base, 0), min(min(end, position + 1) - base, size)


@inlined
def _rows(which, first, count):
    """Some of the rows from `first` on, of which there are `count`: the last one again for those that are missing."""
    return at_most(plus(which, first), first + count - 1)


# ---- scores of a block: query . key


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
def _score(queries, first, count, rows, keys, block, ahead, scores, column):
    """scores[:count, column : column + B] = queries[first : first + count] . keys[block], rows of D and [D, B]."""
    once, twice, columns = rows
    dim, size = keys.shape[1], keys.shape[2]
    at = block * dim * size
    wide, whole = size // (2 * LANES) * (2 * LANES), size // 8 * 8
    q, s = times(_rows(twice, first, count), dim), times(_rows(twice, 0, count), scores.shape[1])
    for j in range(0, wide, 2 * LANES):
        places = plus(columns, j)
        store_floats(scores, plus(plus(s, places), column), _dots(load_wide, queries, q, keys, plus(places, at), ahead))
    q, s = times(_rows(once, first, count), dim), times(_rows(once, 0, count), scores.shape[1])
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


# ---- from scores to shares of the values


@inlined
def _multiply(row, scales):
    for j in range(scales.size):
        row[j] *= scales[j]


@inlined
def _bend(row, cap):
    """row = cap * tanh(row / cap)."""
    for j in range(row.size):
        bent = exp(f32(2) * row[j] / cap)
        row[j] = cap * (f32(1) - f32(2) / (bent + f32(1)))


@inlined
def _lean(row, slope, place):
    """row += slope * place, for places that grow by one."""
    for j in range(row.size):
        row[j] += slope * f32(place + j)


@inlined
def _to_shares(scores, i, low, high, seen, states, row):
    """Row i of the scores becomes exponentials: those that the query sees; the others from low to high become 0.

    states[row], [D + 2]: what it has seen before fades to the new largest score, and the sum of exponentials goes on.
    """
    at, dim = i * scores.shape[1], states.shape[1] - 2
    first, last = low // 8 * 8, (high + 7) // 8 * 8
    begin, end = min(max(seen[0], first), last), min(max(seen[1], first), last)
    unseen = scores[i, first:begin], scores[i, max(begin, end) : last]
    fill(unseen[0], LOWEST)
    fill(unseen[1], LOWEST)
    most = spread(states[row, dim])
    for j in range(first, last, 8):
        most = maximum(load_floats(scores, at + j), most)
    largest, sums = highest(most), no_floats(0)
    for j in range(first, last, 8):
        shares = exponential(subtract(load_floats(scores, at + j), spread(largest)))
        store_floats(scores, at + j, shares)
        sums = add(sums, shares)
    fill(unseen[0], f32(0))
    fill(unseen[1], f32(0))
    if largest != states[row, dim]:
        fade = exp(states[row, dim] - largest)
        mixed = states[row, :dim]
        for d in range(dim):
            mixed[d] *= fade
        states[row, dim] = largest
        states[row, dim + 1] *= fade
    if begin < end:
        states[row, dim + 1] += total(sums)


# ---- sums of values


@inlined
def _mix_one(shares, column, part, values, block, ahead, states, row):
    """states[row, :D] += shares[0, column:] . values[block], for a part of the block."""
    low, high = part
    size, dim = values.shape[1], values.shape[2]
    at, s = block * size * dim, row * (dim + 2)
    wide, whole = dim // 32 * 32, dim // 8 * 8
    for d in range(0, wide, 32):
        columns = (d, d + 8, d + 16, d + 24)
        p = plus((0, 0, 0, 0), column)
        _mix(load_floats, shares, p, low, high, values, plus(columns, at), ahead, states, plus(columns, s))
    for d in range(wide, whole, 8):
        _mix(load_floats, shares, (column,), low, high, values, (at + d,), ahead, states, (s + d,))
    _mix_rest(shares[0, column:], low, high, values, block, whole, states[row])


@inlined
def _mix_several(shares, column, part, values, block, ahead, states, first, count, rows):
    """states[first : first + count, :D] += shares[:count, column:] . values[block], for a part of the block."""
    low, high = part
    once, twice, columns = rows
    size, dim = values.shape[1], values.shape[2]
    at = block * size * dim
    wide, whole = dim // (2 * LANES) * (2 * LANES), dim // 8 * 8
    s, p = times(_rows(twice, first, count), dim + 2), plus(times(_rows(twice, 0, count), shares.shape[1]), column)
    for d in range(0, wide, 2 * LANES):
        places = plus(columns, d)
        _mix(load_wide, shares, p, low, high, values, plus(places, at), ahead, states, plus(s, places))
    s, p = times(_rows(once, first, count), dim + 2), plus(times(_rows(once, 0, count), shares.shape[1]), column)
    for d in range(wide, whole, 8):
        _mix(load_floats, shares, p, low, high, values, plus(times(once, 0), at + d), ahead, states, plus(s, d))
    for i in range(count):
        _mix_rest(shares[i, column:], low, high, values, block, whole, states[first + i])


@inlined
def _mix(load, shares, p_at, low, high, values, v_at, ahead, states, s_at):
    """For each of a tuple of places: as many dimensions of a state as `load` takes += shares . those of the values."""
    dim = values.shape[2]
    sums = load(states, s_at)
    p_at, v_at = plus(p_at, low), plus(v_at, low * dim)
    for _ in range(low, high):
        prefetch(values, v_at[0] + ahead)
        sums = multiply_add(load(values, v_at), broadcast_float(shares, p_at), sums)
        p_at, v_at = plus(p_at, 1), plus(v_at, dim)
    store_floats(states, s_at, sums)


@inlined
def _mix_rest(shares, low, high, values, block, begin, state):
    """The same for the dimensions that fill no register; value by value, as it is done there."""
    size, dim = values.shape[1], values.shape[2]
    for j in range(low, high):
        at = (block * size + j) * dim
        for d in range(begin, dim):
            state[d] += shares[j] * load_float(values, at + d)


@jit
def merge(state, into):
    """A look at one stretch of the past joins the looks at those before it: float32 [D + 2] each.

    Stretches are always joined in their order and by this function, whether they were looked at side by side or one
    after another; so a text gives the same floats however it is cut into steps.
    """
    dim = state.size - 2
    largest = max(state[dim], into[dim])
    share, faded = exp(state[dim] - largest), exp(into[dim] - largest)
    whole = dim // 8 * 8
    for d in range(0, whole, 8):
        kept = multiply(load_floats(into, d), spread(faded))
        store_floats(into, d, multiply_add(load_floats(state, d), spread(share), kept))
    for d in range(whole, dim):
        into[d] = into[d] * faded + state[d] * share
    into[dim], into[dim + 1] = largest, into[dim + 1] * faded + state[dim + 1] * share


@jit
def settle(state, out):
    """The end of looking: state float32 [D + 2] -> out [D], the mean of the values."""
    dim = out.size
    for d in range(dim):
        out[d] = state[d] / state[dim + 1]

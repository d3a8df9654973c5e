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
from .simd import (
    add,
    broadcast_float,
    exponential,
    highest,
    load_float,
    load_floats,
    maximum,
    multiply_add,
    no_floats,
    plus,
    prefetch,
    spread,
    store_floats,
    subtract,
    times,
    total,
)  # fmt: skip

f32 = types.float32
LOWEST = f32(-3.4e38)  # below any score; minus infinity less itself would be NaN
TOGETHER = 4  # rows of queries that go over a block together


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
    scores = np.empty((TOGETHER, (size + 7) // 8 * 8), np.float32)
    for i in range(m):
        fill(states[i], f32(0))
        states[i, dim] = LOWEST
        if sinks.size:
            states[i, dim], states[i, dim + 1] = sinks[i % share], f32(1)
    newest_block = (start + m // share - 1) // size
    for number in range(begin // size, (end + size - 1) // size):
        block, base = blocks[number - first_block], number * size
        # by itself the processor does not look beyond a page
        ahead = (blocks[min(number + 1, newest_block) - first_block] - block) * dim * size
        for first in range(0, m, TOGETHER):
            count = min(m - first, TOGETHER)
            oldest, newest = start + first // share, start + (first + count - 1) // share
            low, _ = _seen(oldest, base, size, begin, end, window)
            _, high = _seen(newest, base, size, begin, end, window)
            if low >= high:
                continue
            if count == 1:
                _score_one(queries, first, keys, block, ahead, scores)
            else:
                _score_four(queries, first, count, keys, block, ahead, scores)
            for i in range(count):
                row = scores[i]
                if key_scales.size:
                    _multiply(row, key_scales[block])
                if cap > 0:
                    _bend(row, cap)
                position = start + (first + i) // share
                if slopes.size:
                    _lean(row, slopes[(first + i) % share], base - position)
                seen = _seen(position, base, size, begin, end, window)
                _to_shares(scores, i, low, high, seen, states, first + i)
                if value_scales.size:
                    _multiply(row, value_scales[block])
            if count == 1:
                _mix_one(scores, low, high, values, block, ahead, states, first)
            else:
                _mix_four(scores, low, high, values, block, ahead, states, first, count)


@inlined
def _seen(position, base, size, begin, end, window):
    """From where to where in a block a token sees, of the positions from `begin` to `end`."""
    low = max(begin, position - window + 1) if window > 0 else begin
    return max(low - base, 0), min(min(end, position + 1) - base, size)


@inlined
def _four(first, count):
    """Four numbers from `first` on, of which there are `count`: the last one again for those that are missing."""
    return first, first + min(1, count - 1), first + min(2, count - 1), first + min(3, count - 1)


@inlined
def _twice(four):
    a, b, c, d = four
    return a, a, b, b, c, c, d, d


# ---- scores of a block: query . key


@inlined
def _score_one(queries, row, keys, block, ahead, scores):
    """scores[0] = queries[row] . keys[block], D and [D, B]."""
    dim, size = keys.shape[1], keys.shape[2]
    at, q = block * dim * size, row * dim
    wide, whole = size // 32 * 32, size // 8 * 8
    for j in range(0, wide, 32):
        columns = (j, j + 8, j + 16, j + 24)
        store_floats(scores, columns, _dots(queries, (q, q, q, q), keys, plus(columns, at), ahead))
    for j in range(wide, whole, 8):
        store_floats(scores, (j,), _dots(queries, (q,), keys, (at + j,), ahead))
    _score_rest(queries, row, keys, block, whole, scores[0])


@inlined
def _score_four(queries, first, count, keys, block, ahead, scores):
    """scores[:count] = queries[first : first + count] . keys[block], two to four rows of D and [D, B]."""
    dim, size = keys.shape[1], keys.shape[2]
    at = block * dim * size
    q, s = times(_four(first, count), dim), times(_four(0, count), scores.shape[1])
    wide, whole = size // 16 * 16, size // 8 * 8
    for j in range(0, wide, 16):
        columns = (j, j + 8, j, j + 8, j, j + 8, j, j + 8)
        store_floats(scores, plus(_twice(s), columns), _dots(queries, _twice(q), keys, plus(columns, at), ahead))
    for j in range(wide, whole, 8):
        place = at + j
        store_floats(scores, plus(s, j), _dots(queries, q, keys, (place, place, place, place), ahead))
    for i in range(count):
        _score_rest(queries, first + i, keys, block, whole, scores[i])


@inlined
def _dots(queries, q_at, keys, k_at, ahead):
    """For each of a tuple of places: the query at one . eight keys in a row at the other: a tuple of f32x8.

    Meanwhile memory is asked for the keys `ahead`.
    """
    dim, size = keys.shape[1], keys.shape[2]
    sums = no_floats(q_at)
    for _ in range(dim):
        prefetch(keys, k_at[0] + ahead)
        sums = multiply_add(load_floats(keys, k_at), broadcast_float(queries, q_at), sums)
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
def _mix_one(shares, low, high, values, block, ahead, states, row):
    """states[row, :D] += shares[0, low:high] . values[block]."""
    size, dim = values.shape[1], values.shape[2]
    at, s = block * size * dim, row * (dim + 2)
    wide, whole = dim // 32 * 32, dim // 8 * 8
    for d in range(0, wide, 32):
        columns = (d, d + 8, d + 16, d + 24)
        _mix(shares, (0, 0, 0, 0), low, high, values, plus(columns, at), ahead, states, plus(columns, s))
    for d in range(wide, whole, 8):
        _mix(shares, (0,), low, high, values, (at + d,), ahead, states, (s + d,))
    _mix_rest(shares[0], low, high, values, block, whole, states[row])


@inlined
def _mix_four(shares, low, high, values, block, ahead, states, first, count):
    """states[first : first + count, :D] += shares[:count, low:high] . values[block], for two to four rows."""
    size, dim = values.shape[1], values.shape[2]
    at = block * size * dim
    s, p = times(_four(first, count), dim + 2), times(_four(0, count), shares.shape[1])
    wide, whole = dim // 16 * 16, dim // 8 * 8
    for d in range(0, wide, 16):
        columns = (d, d + 8, d, d + 8, d, d + 8, d, d + 8)
        _mix(shares, _twice(p), low, high, values, plus(columns, at), ahead, states, plus(_twice(s), columns))
    for d in range(wide, whole, 8):
        place = at + d
        _mix(shares, p, low, high, values, (place, place, place, place), ahead, states, plus(s, d))
    for i in range(count):
        _mix_rest(shares[i], low, high, values, block, whole, states[first + i])


@inlined
def _mix(shares, p_at, low, high, values, v_at, ahead, states, s_at):
    """For each of a tuple of places: eight dimensions of a state += shares . those dimensions of the values."""
    dim = values.shape[2]
    sums = load_floats(states, s_at)
    p_at, v_at = plus(p_at, low), plus(v_at, low * dim)
    for _ in range(low, high):
        prefetch(values, v_at[0] + ahead)
        sums = multiply_add(load_floats(values, v_at), broadcast_float(shares, p_at), sums)
        p_at, v_at = plus(p_at, 1), plus(v_at, dim)
    store_floats(states, s_at, sums)


@inlined
def _mix_rest(shares, low, high, values, block, begin, state):
    """The same for the dimensions that fill no register."""
    size, dim = values.shape[1], values.shape[2]
    for d in range(begin, dim):
        mixed = f32(0)
        for j in range(low, high):
            mixed += shares[j] * load_float(values, (block * size + j) * dim + d)
        state[d] += mixed


@jit
def settle(states, out):
    """The end of several looks at different stretches of the past: states float32 [splits, D + 2] -> out [D]."""
    dim = out.size
    largest = LOWEST
    for s in range(states.shape[0]):
        largest = max(largest, states[s, dim])
    all_shares = f32(0)
    fill(out, f32(0))
    for s in range(states.shape[0]):
        state = states[s]
        fade = exp(state[dim] - largest)
        all_shares += state[dim + 1] * fade
        for d in range(dim):
            out[d] += state[d] * fade
    for d in range(dim):
        out[d] /= all_shares

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

from .jit import inlined, jit, spliced
from .mixes import room_for
from .pieces import exp, fill
from .scores import score
from .simd import (
    add,
    exponential,
    highest,
    load_floats,
    maximum,
    multiply,
    multiply_add,
    no_floats,
    spread,
    store_floats,
    subtract,
    total,
)
from .together import TOGETHER

f32 = types.float32
LOWEST = f32(-3.4e38)  # below any score; minus infinity less itself would be NaN
SPAN = 128  # positions, in whole blocks, whose scores become shares in one go


@spliced
def attend(
    queries, share, keys, key_scales, values, value_scales, mix, blocks, first_block, start, begin, end, window, cap,
    slopes, sinks, states,
):  # fmt: skip
    """Let rows of queries look at the positions from `begin` to `end`.

    queries  float32 [m, D], scaled: the `share` heads of the token at position `start`, then those of the next
    keys     [all blocks, D, B] of that head, float32, int16 (float16's bits) or int8
    values   [all blocks, B, D], the same; or for another `mix` as it takes them
    key_scales, value_scales   float32 [all blocks, B], which int8 is multiplied with; else of size 0
    mix      of `mixes.py`, for the form of the values
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
    room = np.empty(room_for(dim, size), np.float32)
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
                score(queries, first, count, keys, block, ahead, scores, i * size)
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
                ahead = _to_next(blocks, number + i, first_block, newest_block) * size * values.shape[2]
                if value_scales.size:
                    for row in range(count):
                        _multiply(scores[row, i * size :], value_scales[block])
                part = max(low - i * size, 0), min(high - i * size, size)
                mix(scores, i * size, part, values, block, ahead, states, first, count, room)


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

"""Attention of new tokens over cached keys and values, compiled: block by block, with the softmax kept up online.

Blocks hold keys side by side, [D, B], so that a register holds one dimension of eight keys and their scores need no
sums across lanes; and the dimensions of a value side by side, [B, D]. No n x n matrix ever exists: for each query there
are the largest score so far, the sum of exponentials, and the weighted sum of values (https://arxiv.org/abs/2112.05682,
https://arxiv.org/abs/2205.14135).
"""

from __future__ import annotations

import numpy as np
from numba import types

from .floats import widen
from .jit import inlined, jit
from .pieces import exp
from .simd import broadcast_float, load_floats, multiply_add, no_floats, plus, store_floats

f32 = types.float32
LOWEST = f32(-3.4e38)  # below any score; minus infinity less itself would be NaN


@jit
def attend(query, width, keys, values, blocks, first_block, start, begin, end, window, scale, cap, state):
    """Let a few queries in a row, of the positions from `start` on, look at the positions from `begin` to `end`.

    query    float32, the first query's first head at its beginning, the next query's `width` numbers later
    keys     [all blocks, D, B] and values [all blocks, B, D] of that head, float32 or int16 (float16's bits)
    blocks   int64: where the sequence's blocks stand, from its block number `first_block` on
    window   how far back a token sees, itself counted; cap bends scores; 0 for neither
    state    float32 [n, share, D + 2], written here, for the heads that share the key-value head: weighted sum of
             values, largest score, sum of exponentials
    """
    n, share, dim = state.shape[0], state.shape[1], keys.shape[1]
    size = keys.shape[2]
    scores = np.empty(size, np.float32)
    state[:, :, :dim] = f32(0)
    state[:, :, dim] = LOWEST
    state[:, :, dim + 1] = f32(0)
    for number in range(begin // size, (end + size - 1) // size):
        block = blocks[number - first_block]
        base = number * size
        for i in range(n):
            position = start + i
            low = max(begin, position - window + 1) if window > 0 else begin
            low, high = max(low - base, 0), min(min(end, position + 1) - base, size)
            if low >= high:
                continue
            for h in range(share):
                _score(query, i * width + h * dim, keys, block, scale, cap, scores)
                _take_in(scores, low, high, values, block, state[i, h])


@inlined
def _score(query, q_at, keys, block, scale, cap, scores):
    """scores [B] = query[q_at:] [D] . keys[block] [D, B] * scale, bent by cap."""
    size = scores.size
    whole = size // 8 * 8
    for first in range(0, whole, 32):
        if first + 32 <= whole:
            tile = (first, first + 8, first + 16, first + 24)
            store_floats(scores, tile, _dots(query, q_at, keys, block, tile))
        else:
            for j in range(first, whole, 8):
                store_floats(scores, (j,), _dots(query, q_at, keys, block, (j,)))
    for j in range(whole, size):
        scores[j] = f32(0)
        for d in range(keys.shape[1]):
            scores[j] += query[q_at + d] * widen(keys[block, d, j])
    for j in range(size):
        scores[j] *= scale
    if cap > 0:
        for j in range(size):
            bent = exp(f32(2) * scores[j] / cap)
            scores[j] = cap * (f32(1) - f32(2) / (bent + f32(1)))


@inlined
def _dots(query, q_at, keys, block, tile):
    """query . key for the keys of a block at the places of a tile, eight from each on: a tuple of f32x8."""
    dim, size = keys.shape[1], keys.shape[2]
    at = plus(tile, block * dim * size)
    sums = no_floats(tile)
    for d in range(dim):
        sums = multiply_add(load_floats(keys, at), broadcast_float(query, q_at + d), sums)
        at = plus(at, size)
    return sums


@inlined
def _take_in(scores, low, high, values, block, state):
    """Add the values low..high of a block to the running softmax.

    scores [B], values [all blocks, B, D], state [D + 2].
    """
    dim = state.size - 2
    seen = scores[low:high]
    largest = state[dim]
    for j in range(seen.size):
        largest = max(largest, seen[j])
    fade = exp(state[dim] - largest)
    total = f32(0)
    for j in range(seen.size):
        seen[j] = exp(seen[j] - largest)
        total += seen[j]
    mixed = state[:dim]
    for d in range(dim):
        mixed[d] *= fade
    at = (block * scores.size + low) * dim
    whole = dim // 8 * 8
    for d in range(0, whole, 32):
        if d + 32 <= whole:
            _mix(seen, values, at, dim, mixed, (d, d + 8, d + 16, d + 24))
        else:
            for e in range(d, whole, 8):
                _mix(seen, values, at, dim, mixed, (e,))
    rows = values[block]
    for d in range(whole, dim):
        for j in range(seen.size):
            mixed[d] += seen[j] * widen(rows[low + j, d])
    state[dim] = largest
    state[dim + 1] = state[dim + 1] * fade + total


@inlined
def _mix(shares, values, at, dim, mixed, tile):
    """mixed[tile] += shares . values, for the dimensions of a tile, eight from each on."""
    sums = load_floats(mixed, tile)
    place = plus(tile, at)
    for j in range(shares.size):
        sums = multiply_add(load_floats(values, place), broadcast_float(shares, j), sums)
        place = plus(place, dim)
    store_floats(mixed, tile, sums)


@jit
def settle(states, out):
    """The end of several looks at different stretches of the past: states float32 [splits, D + 2] -> out [D]."""
    dim = out.size
    largest = LOWEST
    for s in range(states.shape[0]):
        largest = max(largest, states[s, dim])
    total = f32(0)
    out[:] = f32(0)
    for s in range(states.shape[0]):
        state = states[s]
        fade = exp(state[dim] - largest)
        total += state[dim + 1] * fade
        for d in range(dim):
            out[d] += state[d] * fade
    for d in range(dim):
        out[d] /= total

"""The operations of a tape beside the linear maps, a piece at a time: each is compiled to be called by its address.

They take the addresses of their row of the table, of its numbers and of the step, and the number of the piece.
`tape.py` says what the fields of a row are.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from . import pieces
from .addresses import chunk_at, chunk_of, floats, numbers_at, row_at, share, source, step_at, target, vector
from .attention import attend, merge, settle
from .cached import (
    blocks_of,
    cache_float16,
    cache_float32,
    cache_int8,
    cache_int8_int4,
    pool_of,
    put_float16,
    put_float32,
    put_int4,
    put_int8,
)
from .jit import Code, inlined, spliced
from .memory import call_at, float32_at, int8_at, int64_at
from .mixes import mix_nibbles, mix_numbers
from .quantize import quantize_group
from .table import (
    ANGLES,
    BLOCK_SIZE,
    CHUNKS,
    CODE,
    END_LOOK,
    END_ROW,
    FIELDS,
    FIRST_BLOCK,
    FIRST_ROW,
    FIRST_STATE,
    NUM_STATES,
    OVER,
    OWN_ROW,
    PIECES,
    QUERY_TILE,
    ROW_BYTES,
    ROWS,
    SINGLE,
    START,
    STATES,
    STORE_TABLE,
    STRETCH,
    STRETCHES,
    TARGET_OWN,
    WANTED,
    WANTED_ROWS,
)  # fmt: skip

# ---- norms, codes, gates


@Code
def norm_row(op, numbers, step, row):
    """out = rms_norm(x) * weight; with `total`, also total += out."""
    op, step = row_at(op), step_at(step)
    x, weight, out, width, total = op[FIELDS : FIELDS + 5]
    normed = target(out, op, step, width)[row]
    pieces.rms_norm(source(x, op, step, width)[row], vector(weight, width), numbers_at(numbers)[0], normed)
    if total:
        pieces.add(floats(total, step[op[OVER]], width)[row], normed)


@inlined
def _quantize(op, step, row, begin, end):
    """The groups begin..end of a row of x as 8-bit codes."""
    x, size, codes, scales, sums, groups = op[FIELDS : FIELDS + 6]
    first, n = op[TARGET_OWN] * step[OWN_ROW], step[op[OVER]]
    x_codes = carray(int8_at(codes + 32 * groups * first), (n, 32 * groups))
    x_scales, x_sums = target(scales, op, step, groups), target(sums, op, step, groups)
    for group in range(begin, end):
        quantize_group(source(x, op, step, size), row, group, x_codes, x_scales, x_sums)


@Code
def quantize_row(op, numbers, step, row):
    """A row of x as 8-bit codes."""
    op, step = row_at(op), step_at(step)
    _quantize(op, step, row, 0, op[FIELDS + 5])


@Code
def quantize_part(op, numbers, step, piece):
    """A piece's share of the columns of all rows of x as 8-bit codes."""
    op, step = row_at(op), step_at(step)
    size, groups = op[FIELDS + 1], op[FIELDS + 5]
    begin = share(size, piece, op[PIECES]) // 32
    end = groups if piece == op[PIECES] - 1 else share(size, piece + 1, op[PIECES]) // 32
    for row in range(step[op[OVER]]):
        _quantize(op, step, row, begin, end)


@Code
def gated_part(op, numbers, step, piece):
    """out = activation(gate) * up: a piece's share of the columns of all rows."""
    op, step = row_at(op), step_at(step)
    both, width, activation, out = op[FIELDS : FIELDS + 4]
    begin, end = share(width, piece, op[PIECES]), share(width, piece + 1, op[PIECES])
    gates, result = source(both, op, step, 2 * width), target(out, op, step, width)
    for row in range(step[op[OVER]]):
        gate, up = gates[row, begin:end], gates[row, width + begin : width + end]
        pieces.gated(gate, up, activation, result[row, begin:end])


@Code
def gather_row(op, numbers, step, row):
    """out[row] = x[wanted[row]]."""
    op, step = row_at(op), step_at(step)
    x, width, out = op[FIELDS : FIELDS + 3]
    wanted = carray(int64_at(step[WANTED_ROWS]), step[WANTED])
    pieces.copy(floats(x, step[ROWS], width)[wanted[row]], target(out, op, step, width)[row])


# ---- attention. The fields of its operations begin alike:
# heads [rows, H + 2 G, D], H, G, D, which rotation, how many pairs it turns, norm weights of queries and keys or 0,
# the pool of blocks and the layer's place in it


@inlined
def _heads(op, step):
    """All heads of the step's rows, [rows, H + 2 G, D]."""
    heads, num_heads, kv_heads, dim = op[FIELDS : FIELDS + 4]
    return carray(float32_at(heads), (step[ROWS], num_heads + 2 * kv_heads, dim))


@inlined
def _turn(op, step, row, norm, eps, head):
    """Normalise and turn a head of a row, in place."""
    dim, rope, half = op[FIELDS + 3 : FIELDS + 6]
    if norm:
        pieces.rms_norm(head, vector(norm, dim), eps, head)
    if half:
        cos = floats(step[ANGLES + 2 * rope], step[ROWS], half)[row]
        sin = floats(step[ANGLES + 2 * rope + 1], step[ROWS], half)[row]
        pieces.rotate(head, cos, sin)


@spliced
def _store(op, numbers, step, piece, cache_of, put_key, put_value):
    """A row's key and value of one head, the key normalised and turned, for a chunk that looks at them."""
    num_heads, kv_heads, dim = op[FIELDS + 1 : FIELDS + 4]
    entry, g = piece // kv_heads, piece % kv_heads
    row, index = carray(int64_at(step[STORE_TABLE]), (entry + 1, 2))[entry]
    own, chunk = chunk_of(step, row), chunk_at(step, index)
    heads = _heads(op, step)[row]
    key = np.empty(dim, np.float32)
    pieces.copy(heads[num_heads + g], key)
    _turn(op, step, row, op[FIELDS + 7], numbers_at(numbers)[0], key)
    position = own[START] + row - own[FIRST_ROW]
    pool = pool_of(op, chunk)
    size = pool[BLOCK_SIZE]
    block, place = blocks_of(pool)[position // size - pool[FIRST_BLOCK]], position % size
    keys, key_scales, values, value_scales = cache_of(op, pool, g)
    value, value_at = heads[num_heads + kv_heads + g], (block * size + place) * values.shape[2]
    key_scale = put_key(key, keys.reshape(keys.size), block * dim * size + place, size)
    value_scale = put_value(value, values.reshape(values.size), value_at, 1)
    if key_scales.size:
        key_scales[block, place] = key_scale
    if value_scales.size:
        value_scales[block, place] = value_scale


@spliced
def _attend(op_address, numbers, step_address, piece, cache_of, mix):
    """A few queries of one chunk, of the heads of one key-value head, look at one stretch of the past."""
    op, step = row_at(op_address), step_at(step_address)
    num_heads, kv_heads, dim = op[FIELDS + 1 : FIELDS + 4]
    out, window = op[FIELDS + 10 : FIELDS + 12]
    eps, scale, cap, _ = numbers_at(numbers)
    looks, sharing = chunk_at(step, step[CHUNKS] - 1)[END_LOOK], num_heads // kv_heads
    g, look = piece // looks, piece % looks
    index = 0
    while chunk_at(step, index)[END_LOOK] <= look:
        index += 1
    chunk = chunk_at(step, index)
    if index:
        look -= chunk_at(step, index - 1)[END_LOOK]
    tile, stretch, stretches = look // chunk[STRETCHES], look % chunk[STRETCHES], chunk[STRETCHES]
    first = chunk[FIRST_ROW] + tile * QUERY_TILE
    n = min(QUERY_TILE, chunk[END_ROW] - first)
    start = chunk[START] + tile * QUERY_TILE
    oldest = max(start - window + 1, 0) if window else 0
    if step[SINGLE] and stretch == stretches - 1:
        # nobody but this piece looks at the new token: it does what the operation before this one does for several
        before = op_address - ROW_BYTES
        call_at(row_at(before)[CODE], before, numbers, step_address, first * kv_heads + g)
    slopes = vector(op[FIELDS + 12] + 4 * g * sharing, sharing if op[FIELDS + 12] else 0)
    sinks = vector(op[FIELDS + 13] + 4 * g * sharing, sharing if op[FIELDS + 13] else 0)
    queries = np.empty((n * sharing, dim), np.float32)
    for i in range(n):
        for h in range(sharing):
            query = queries[i * sharing + h]
            pieces.copy(_heads(op, step)[first + i, g * sharing + h], query)
            _turn(op, step, first + i, op[FIELDS + 6], eps, query)
            for d in range(dim):
                query[d] *= scale
    states, seen = (np.empty((n * sharing, dim + 2), np.float32), np.empty((n * sharing, dim + 2), np.float32))
    pool = pool_of(op, chunk)
    keys, key_scales, values, value_scales = cache_of(op, pool, g)
    blocks, first_block = blocks_of(pool), pool[FIRST_BLOCK]
    last = stretch if chunk[FIRST_STATE] >= 0 else (start + n - 1) // STRETCH
    for at in range(stretch, last + 1):
        begin, end = max(at * STRETCH, oldest), min((at + 1) * STRETCH, start + n)
        if at > stretch and begin >= end:
            continue
        attend(
            queries, sharing, keys, key_scales, values, value_scales, mix, blocks, first_block,
            start, begin, end, window, cap, slopes, sinks[: 0 if at else sharing], seen if at > stretch else states,
        )  # fmt: skip
        if at > stretch:
            for i in range(n * sharing):
                merge(seen[i], states[i])
    result = carray(float32_at(out), (step[ROWS], num_heads, dim))
    for i in range(n):
        kept = _states(step, chunk, first + i, num_heads, dim)
        for h in range(sharing):
            state = states[i * sharing + h : i * sharing + h + 1]
            if chunk[FIRST_STATE] >= 0:
                pieces.copy(state[0], kept[stretch, g * sharing + h])
            else:
                settle(state[0], result[first + i, g * sharing + h])


@inlined
def _states(step, chunk, row, num_heads, dim):
    """What the stretches of a row's past left behind, [stretches, H, D + 2]."""
    all_states = carray(float32_at(step[STATES]), (step[NUM_STATES], num_heads, dim + 2))
    first = chunk[FIRST_STATE] + (row - chunk[FIRST_ROW]) * chunk[STRETCHES]
    return all_states[first : first + chunk[STRETCHES]]


@Code
def store_float32(op, numbers, step, piece):
    """Into a cache of float32."""
    _store(row_at(op), numbers, step_at(step), piece, cache_float32, put_float32, put_float32)


@Code
def attend_float32(op, numbers, step, piece):
    """Over a cache of float32."""
    _attend(op, numbers, step, piece, cache_float32, mix_numbers)


@Code
def store_float16(op, numbers, step, piece):
    """Into a cache of float16."""
    _store(row_at(op), numbers, step_at(step), piece, cache_float16, put_float16, put_float16)


@Code
def attend_float16(op, numbers, step, piece):
    """Over a cache of float16."""
    _attend(op, numbers, step, piece, cache_float16, mix_numbers)


@Code
def store_int8(op, numbers, step, piece):
    """Into a cache of 8-bit codes."""
    _store(row_at(op), numbers, step_at(step), piece, cache_int8, put_int8, put_int8)


@Code
def attend_int8(op, numbers, step, piece):
    """Over a cache of 8-bit codes."""
    _attend(op, numbers, step, piece, cache_int8, mix_numbers)


@Code
def store_int8_int4(op, numbers, step, piece):
    """Into a cache of 8-bit keys and 4-bit values."""
    _store(row_at(op), numbers, step_at(step), piece, cache_int8_int4, put_int8, put_int4)


@Code
def attend_int8_int4(op, numbers, step, piece):
    """Over a cache of 8-bit keys and 4-bit values."""
    _attend(op, numbers, step, piece, cache_int8_int4, mix_nibbles)


@Code
def settle_row(op, numbers, step, row):
    """Put the looks at different stretches of the past together, where they were kept apart."""
    op, step = row_at(op), step_at(step)
    num_heads, dim, out = op[FIELDS : FIELDS + 3]
    chunk = chunk_of(step, row)
    if chunk[FIRST_STATE] >= 0:
        states = _states(step, chunk, row, num_heads, dim)
        mixed = target(out, op, step, num_heads * dim)[row]
        state = np.empty(dim + 2, np.float32)  # what is kept stays as it is: other threads may read it too
        for h in range(num_heads):
            pieces.copy(states[0, h], state)
            for stretch in range(1, chunk[STRETCHES]):
                merge(states[stretch, h], state)
            settle(state, mixed[h * dim : (h + 1) * dim])

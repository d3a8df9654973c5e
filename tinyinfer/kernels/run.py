"""A whole forward pass as one compiled call: the operations of a `Tape`, dealt out to a team of threads.

Every thread of the team runs `run` over the same table. It claims pieces of an operation from a counter until none are
left, waits until those that others have claimed are done, and goes on to the next. A thread that the system has put to
sleep holds up no more than the piece it has, and one that comes late finds everything claimed.

`tape.py` writes the table, and says what its columns mean for each operation.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from .attention import attend, settle
from .floats import matmul_floats
from .int4 import matmul_int4
from .int8 import matmul_int8
from .jit import Code, inlined, jit
from .memory import (
    call_at,
    fetch_add,
    float32_at,
    give_way,
    int8_at,
    int16_at,
    int64_at,
    load_shared,
    pause,
    uint8_at,
    uint16_at,
)  # fmt: skip
from .nf4 import matmul_nf4
from .pieces import add, gated, rms_norm, rotate
from .quantize import quantize_rows
from .table import (
    ANGLES,
    BLOCK_SIZE,
    BLOCK_TABLE,
    CHUNK_TABLE,
    CHUNK_WIDTH,
    CHUNKS,
    CODE,
    COLUMNS,
    COUNTED,
    COUNTER_STRIDE,
    END_ROW,
    END_TILE,
    FIRST_BLOCK,
    FIRST_ROW,
    KEYS,
    LOGITS,
    MOST_REGISTERS,
    NUM_BLOCKS,
    OF_EACH_TILE,
    OF_THE_WHOLE,
    OVER,
    PIECES,
    POOL_WIDTH,
    POOLS,
    QUERY_TILE,
    ROW_CHUNKS,
    ROWS,
    SPLITS,
    START,
    STATES,
    VALUES,
    WANTED,
    WANTED_ROWS,
)  # fmt: skip

PATIENCE = 500  # looks at whether the others are done, some 20 microseconds, before giving way


@jit
def run(table, numbers, step, counters):
    """Do every operation of the table together with whoever else is in this call; return when all is done.

    table int64 [operations, COLUMNS], numbers float32 [operations, 2]: written once for a model.
    step int64: this step's own, never changed. counters int64 [operations, 2 * COUNTER_STRIDE]: zeros, this step's own.
    """
    for index in range(table.shape[0]):
        op, counter = table[index], counters[index]
        pieces = _count(op, step)
        while True:
            piece = fetch_add(counter, 0, 1)
            if piece >= pieces:
                break
            call_at(op[CODE], op.ctypes.data, numbers[index].ctypes.data, step.ctypes.data, piece)
            fetch_add(counter, COUNTER_STRIDE, 1)
        looks = 0
        while load_shared(counter, COUNTER_STRIDE) < pieces:
            pause()
            looks += 1
            if looks > PATIENCE:  # whoever has the last piece may be waiting for this very core
                give_way()


@jit
def _count(op, step):
    """How many pieces an operation has at this step."""
    rows = step[op[OVER]]
    if rows == 0:
        return 0
    if op[COUNTED] == OF_THE_WHOLE:
        return op[PIECES]
    if op[COUNTED] == OF_EACH_TILE:
        return _chunk(step, step[CHUNKS] - 1)[END_TILE] * op[PIECES] * step[SPLITS]
    return rows * op[PIECES]


@jit
def _chunk(step, index):
    return carray(int64_at(step[CHUNK_TABLE]), (step[CHUNKS], step[CHUNK_WIDTH]))[index]


@jit
def _floats(address, rows, width):
    return carray(float32_at(address), (rows, width))


# ---- the operations, a piece at a time: each is called by its address, so that only what a model needs is compiled.
# They take the addresses of their row of the table, of its numbers and of the step.


@inlined
def _row(address):
    return carray(int64_at(address), COLUMNS)


@inlined
def _step(address):
    return carray(int64_at(address), MOST_REGISTERS)


@inlined
def _numbers(address):
    return carray(float32_at(address), 2)


@Code
def norm_row(op, numbers, step, row):
    """out = rms_norm(x) * weight; or, where there is a sum to add to, that += rms_norm(x) * weight."""
    op, step = _row(op), _step(step)
    _, _, _, _, x, weight, out, width, total = op[:9]
    n = step[op[OVER]]
    source, normed = _floats(x, n, width)[row], _floats(out, n, width)[row]
    rms_norm(source, _floats(weight, 1, width)[0], _numbers(numbers)[0], normed)
    if total:
        add(_floats(total, n, width)[row], normed)


# Linear maps: out[:, column:] (+)= x weight^T + bias, for the rows of the weight that are this piece's.


@inlined
def _target(op, step, piece):
    """What a piece writes to: out [n, width], and its rows of the weight, prepared to be added to."""
    _, _, pieces, _, rows, out, width, column, bias, accumulate = op[:10]
    target = _floats(out if out else step[LOGITS], step[op[OVER]], width)
    begin, end = _share(rows, piece, pieces), _share(rows, piece + 1, pieces)
    for t in range(target.shape[0]):
        part = target[t, column + begin : column + end]
        if not accumulate:
            part[:] = np.float32(0)
        if bias:
            add(part, _floats(bias, 1, rows)[0, begin:end])
    return target, begin, end


@inlined
def _linear(op, step, piece, weight):
    n = step[op[OVER]]
    target, begin, end = _target(op, step, piece)
    x, size = op[10], op[11]
    matmul_floats(_floats(x, n, size), weight, target, op[7], begin, end)


@Code
def linear_float32(op, numbers, step, piece):
    """With a weight of float32."""
    op = _row(op)
    _linear(op, _step(step), piece, _floats(op[12], op[4], op[11]))


@Code
def linear_bfloat16(op, numbers, step, piece):
    """With a weight of bfloat16."""
    op = _row(op)
    _linear(op, _step(step), piece, carray(uint16_at(op[12]), (op[4], op[11])))


@Code
def linear_float16(op, numbers, step, piece):
    """With a weight of float16."""
    op = _row(op)
    _linear(op, _step(step), piece, carray(int16_at(op[12]), (op[4], op[11])))


@Code
def quantize_row(op, numbers, step, row):
    """A row of x as 8-bit codes."""
    op, step = _row(op), _step(step)
    _, _, _, _, x, size, codes, scales, sums, groups = op[:10]
    n = step[op[OVER]]
    out = carray(int8_at(codes), (n, 32 * groups))
    quantize_rows(_floats(x, n, size), out, _floats(scales, n, groups), _floats(sums, n, groups), row, row + 1)


@inlined
def _codes(op, step):
    """x in 8 bits: codes, scales, sums."""
    x_codes, x_scales, x_sums, groups = op[10:14]
    n = step[op[OVER]]
    return carray(int8_at(x_codes), (n, 32 * groups)), _floats(x_scales, n, groups), _floats(x_sums, n, groups)


@inlined
def _nibbles(op):
    return carray(uint8_at(op[14]), ((op[4] + 7) // 8, op[13], 4, 32))


@inlined
def _bytes(op):
    return carray(int8_at(op[14]), ((op[4] + 7) // 8, op[13], 8, 32))


@inlined
def _half_scales(op):
    return carray(int16_at(op[15]), ((op[4] + 7) // 8, op[17], 8))


@inlined
def _float_scales(op):
    return carray(float32_at(op[15]), ((op[4] + 7) // 8, op[17], 8))


@Code
def linear_int4(op, numbers, step, piece):
    """With a weight of 4 bits."""
    op, step = _row(op), _step(step)
    target, begin, end = _target(op, step, piece)
    codes, scales, sums = _codes(op, step)
    minimums = carray(int16_at(op[16]), ((op[4] + 7) // 8 if op[16] else 0, op[17], 8))
    matmul_int4(
        codes, scales, sums, _nibbles(op), _half_scales(op), minimums,
        target, op[7], op[4], begin // 8, (end + 7) // 8, True,
    )  # fmt: skip


@Code
def linear_int8(op, numbers, step, piece):
    """With a weight of 8 bits that has scales of float16."""
    op, step = _row(op), _step(step)
    target, begin, end = _target(op, step, piece)
    codes, scales, _ = _codes(op, step)
    matmul_int8(codes, scales, _bytes(op), _half_scales(op), target, op[7], op[4], begin // 8, (end + 7) // 8, True)


@Code
def linear_int8_row(op, numbers, step, piece):
    """With a weight of 8 bits that has scales of float32."""
    op, step = _row(op), _step(step)
    target, begin, end = _target(op, step, piece)
    codes, scales, _ = _codes(op, step)
    matmul_int8(codes, scales, _bytes(op), _float_scales(op), target, op[7], op[4], begin // 8, (end + 7) // 8, True)


@Code
def linear_nf4(op, numbers, step, piece):
    """With a weight of NF4 that has scales of float16."""
    op, step = _row(op), _step(step)
    target, begin, end = _target(op, step, piece)
    codes, scales, _ = _codes(op, step)
    matmul_nf4(codes, scales, _nibbles(op), _half_scales(op), target, op[7], op[4], begin // 8, (end + 7) // 8, True)


@Code
def linear_nf4_double(op, numbers, step, piece):
    """With a weight of NF4 that has scales of float32."""
    op, step = _row(op), _step(step)
    target, begin, end = _target(op, step, piece)
    codes, scales, _ = _codes(op, step)
    matmul_nf4(codes, scales, _nibbles(op), _float_scales(op), target, op[7], op[4], begin // 8, (end + 7) // 8, True)


@jit
def _share(total, index, shares):
    """Where a share begins, in eights: neighbours never write to the same cache line."""
    return total if index == shares else total * index // shares // 8 * 8


@Code
def rotate_row(op, numbers, step, row):
    """Normalise and turn a row's queries and keys, and put its keys and values into the cache."""
    op, step = _row(op), _step(step)
    _, _, _, _, heads, width, num_heads, kv_heads, dim, rope, half, query_norm, key_norm, pool, layer = op[:15]
    row_heads = carray(float32_at(heads), (step[ROWS], width // dim, dim))[row]
    cos = _floats(step[ANGLES + 2 * rope], step[ROWS], half)[row]
    sin = _floats(step[ANGLES + 2 * rope + 1], step[ROWS], half)[row]
    for h in range(num_heads + kv_heads):
        weight = query_norm if h < num_heads else key_norm
        if weight:
            rms_norm(row_heads[h], _floats(weight, 1, dim)[0], _numbers(numbers)[0], row_heads[h])
        rotate(row_heads[h], cos, sin)
    chunk = _chunk(step, carray(int64_at(step[ROW_CHUNKS]), step[ROWS])[row])
    position = chunk[START] + row - chunk[FIRST_ROW]
    size = _pool(chunk, pool)[BLOCK_SIZE]
    block = _block_table(chunk, pool)[position // size - _pool(chunk, pool)[FIRST_BLOCK]]
    for g in range(kv_heads):
        keys, values = _cache(chunk, pool, layer, g, kv_heads, dim)
        key, value = row_heads[num_heads + g], row_heads[num_heads + kv_heads + g]
        k, v = keys[block], values[block, position % size]
        for d in range(dim):
            k[d, position % size] = key[d]
            v[d] = value[d]


@jit
def _pool(chunk, pool):
    return chunk[POOLS + pool * POOL_WIDTH :]


@jit
def _block_table(chunk, pool):
    # as long as it must be: nothing reads beyond what the sequence has
    return carray(int64_at(_pool(chunk, pool)[BLOCK_TABLE]), 1 << 30)


@jit
def _cache(chunk, pool, layer, g, kv_heads, dim):
    """Keys [blocks, D, B] and values [blocks, B, D] of one layer and head."""
    place = _pool(chunk, pool)
    size = place[BLOCK_SIZE]
    shape = place[NUM_BLOCKS], dim, size
    offset = 4 * (layer * kv_heads + g) * place[NUM_BLOCKS] * dim * size
    keys = carray(float32_at(place[KEYS] + offset), shape)
    values = carray(float32_at(place[VALUES] + offset), (place[NUM_BLOCKS], size, dim))
    return keys, values


@Code
def attend_tile(op, numbers, step, piece):
    """A few queries of one chunk and one key-value head look at one stretch of the past."""
    op, step = _row(op), _step(step)
    _, _, kv_heads, _, heads, width, share, dim, out, pool, layer, window = op[:12]
    splits = step[SPLITS]
    split, piece = piece % splits, piece // splits
    g, tile = piece % kv_heads, piece // kv_heads
    index = 0
    while _chunk(step, index)[END_TILE] <= tile:
        index += 1
    chunk = _chunk(step, index)
    if index:
        tile -= _chunk(step, index - 1)[END_TILE]
    first = chunk[FIRST_ROW] + tile * QUERY_TILE
    n = min(QUERY_TILE, chunk[END_ROW] - first)
    start = chunk[START] + tile * QUERY_TILE
    seen = max(start - window + 1, 0) if window else 0
    begin = seen + (start + n - seen) * split // splits
    end = seen + (start + n - seen) * (split + 1) // splits
    keys, values = _cache(chunk, pool, layer, g, kv_heads, dim)
    query = carray(float32_at(heads + 4 * (first * width + g * share * dim)), n * width)
    state = np.empty((n, share, dim + 2), np.float32)
    attend(
        query, width, keys, values, _block_table(chunk, pool), _pool(chunk, pool)[FIRST_BLOCK],
        start, begin, end, window, _numbers(numbers)[0], _numbers(numbers)[1], state,
    )  # fmt: skip
    states = carray(float32_at(step[STATES]), (step[ROWS], kv_heads * share, splits, dim + 2))
    result = carray(float32_at(out), (step[ROWS], kv_heads * share, dim))
    for i in range(n):
        for h in range(share):
            if splits > 1:
                states[first + i, g * share + h, split] = state[i, h]
            else:
                settle(state[i, h : h + 1], result[first + i, g * share + h])


@Code
def settle_row(op, numbers, step, row):
    """Put the looks at different stretches of the past together, where they were split."""
    op, step = _row(op), _step(step)
    _, _, _, _, num_heads, dim, out = op[:7]
    if step[SPLITS] > 1:
        states = carray(float32_at(step[STATES]), (step[ROWS], num_heads, step[SPLITS], dim + 2))
        result = carray(float32_at(out), (step[ROWS], num_heads, dim))
        for h in range(num_heads):
            settle(states[row, h], result[row, h])


@Code
def gated_stretch(op, numbers, step, piece):
    """out = activation(gate) * up, a stretch of one row."""
    op, step = _row(op), _step(step)
    _, _, stretches, _, both, width, activation, out = op[:8]
    row, stretch = piece // stretches, piece % stretches
    begin, end = _share(width, stretch, stretches), _share(width, stretch + 1, stretches)
    source = _floats(both, step[op[OVER]], 2 * width)[row]
    gated(
        source[begin:end],
        source[width + begin : width + end],
        activation,
        _floats(out, step[op[OVER]], width)[row, begin:end],
    )


@Code
def gather_row(op, numbers, step, row):
    """out[row] = x[wanted[row]]."""
    op, step = _row(op), _step(step)
    _, _, _, _, x, width, out = op[:7]
    wanted = carray(int64_at(step[WANTED_ROWS]), step[WANTED])
    _floats(out, step[WANTED], width)[row] = _floats(x, step[ROWS], width)[wanted[row]]

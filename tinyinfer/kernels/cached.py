"""Keys and values of one head in a pool of blocks: where they lie, and how those of a token are put there.

`cache/forms.py` says what the forms are. A pool is its part of a chunk's row of the table, see `table.py`.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types

from .addresses import floats
from .jit import inlined, spliced
from .memory import float32_at, int8_at, int16_at, int64_at, uint8_at
from .quantize import LARGEST, TINY
from .simd import divide, lane, load_floats, store_halves
from .table import (
    BLOCK_SIZE,
    BLOCK_TABLE,
    FIELDS,
    KEY_SCALES,
    KEYS,
    NUM_BLOCKS,
    POOL_WIDTH,
    POOLS,
    VALUE_SCALES,
    VALUES,
)

f32 = types.float32
LARGEST_HALF = f32(65504)


@inlined
def pool_of(op, chunk):
    """The pool that an operation of attention is about, for the sequence of a chunk."""
    return chunk[POOLS + op[FIELDS + 8] * POOL_WIDTH :]


@inlined
def blocks_of(pool):
    """Where the sequence's blocks stand, int64."""
    # as long as it must be: nothing reads beyond what the sequence has
    return carray(int64_at(pool[BLOCK_TABLE]), 1 << 30)


@inlined
def _first(op, pool, g):
    """The number of the block with which a head of a layer begins."""
    return (op[FIELDS + 9] * op[FIELDS + 2] + g) * pool[NUM_BLOCKS]


@inlined
def _array(op, pool, g, which, at, itemsize, rows, columns):
    """[blocks, rows, columns] of a head, of the pool's array `which`."""
    address = pool[which] + itemsize * _first(op, pool, g) * rows * columns
    return carray(at(address), (pool[NUM_BLOCKS], rows, columns))


@inlined
def _scales(op, pool, g, which):
    """float32 [blocks, B] of a head."""
    size = pool[BLOCK_SIZE]
    return floats(pool[which] + 4 * _first(op, pool, g) * size, pool[NUM_BLOCKS], size)


@inlined
def cache_float32(op, pool, g):
    """Keys [blocks, D, B], their scales, values [blocks, B, D] and their scales of one layer and head."""
    dim, size = op[FIELDS + 3], pool[BLOCK_SIZE]
    keys = _array(op, pool, g, KEYS, float32_at, 4, dim, size)
    return keys, floats(0, 0, 0), _array(op, pool, g, VALUES, float32_at, 4, size, dim), floats(0, 0, 0)


@inlined
def cache_float16(op, pool, g):
    """The same, as float16's bits."""
    dim, size = op[FIELDS + 3], pool[BLOCK_SIZE]
    keys = _array(op, pool, g, KEYS, int16_at, 2, dim, size)
    return keys, floats(0, 0, 0), _array(op, pool, g, VALUES, int16_at, 2, size, dim), floats(0, 0, 0)


@inlined
def cache_int8(op, pool, g):
    """The same, as 8-bit codes."""
    dim, size = op[FIELDS + 3], pool[BLOCK_SIZE]
    keys, values = (
        _array(op, pool, g, KEYS, int8_at, 1, dim, size),
        _array(op, pool, g, VALUES, int8_at, 1, size, dim),
    )
    return keys, _scales(op, pool, g, KEY_SCALES), values, _scales(op, pool, g, VALUE_SCALES)


@inlined
def cache_int8_int4(op, pool, g):
    """The same keys, and values of 4 bits, uint8 [blocks, B, bytes]."""
    dim, size = op[FIELDS + 3], pool[BLOCK_SIZE]
    keys, width = _array(op, pool, g, KEYS, int8_at, 1, dim, size), codes_from(dim) + dim // 16 * 8 + min(dim % 16, 8)
    return (
        keys,
        _scales(op, pool, g, KEY_SCALES),
        _array(op, pool, g, VALUES, uint8_at, 1, size, width),
        floats(0, 0, 0),
    )


# How the numbers of one head of a token are put into the cache, float32 [D]: at `at` of a flat array, `stride` apart.
# They give the scale, which int8 alone has beside them.


@inlined
def put_float32(numbers, out, at, stride):
    """As they are."""
    for d in range(numbers.size):
        out[at + d * stride] = numbers[d]
    return f32(0)


@inlined
def put_float16(numbers, out, at, stride):
    """To nearest; beyond float16's range the largest it has."""
    size = numbers.size
    whole = size // 8 * 8
    eight, halves = np.empty(8, np.float32), np.empty(8, np.int16)
    for first in range(0, whole, 8):
        if stride == 1:
            store_halves(out, at + first, load_floats(numbers, first))
        else:
            store_halves(halves, 0, load_floats(numbers, first))
            for d in range(8):
                out[at + (first + d) * stride] = halves[d]
    for d in range(whole, size):
        eight[0] = numbers[d]
        store_halves(halves, 0, load_floats(eight, 0))
        out[at + d * stride] = halves[0]
    return f32(0)


@inlined
def put_int8(numbers, out, at, stride):
    """As codes of -127 to 127. With a NaN or an infinity the scale is NaN, and so is whatever is multiplied with it."""
    largest, finite = f32(0), True
    for d in range(numbers.size):
        size = abs(numbers[d])
        largest = max(largest, size)
        finite &= size < f32(np.inf)
    scale, inverse = f32(0), f32(0)
    if not finite:
        scale = f32(np.nan)
    elif largest >= TINY:
        scale, inverse = divide(largest, LARGEST), divide(LARGEST, largest)
    for d in range(numbers.size):
        out[at + d * stride] = np.int8(np.rint(numbers[d] * inverse)) if inverse > 0 else np.int8(0)
    return scale


@inlined
def put_int4(numbers, out, at, stride):
    """As groups of 4-bit codes with scales and minimums, in bytes side by side."""
    dim = numbers.size
    eight, halves = np.zeros(8, np.float32), np.empty(8, np.int16)
    bits = halves.view(np.uint8)
    for begin in range(0, dim, 32):
        group = numbers[begin : min(begin + 32, dim)]
        least, most, finite = LARGEST_HALF, -LARGEST_HALF, True
        for d in range(group.size):
            finite &= abs(group[d]) < f32(np.inf)
            least, most = min(least, group[d]), max(most, group[d])
        least, most = max(least, -LARGEST_HALF), min(most, LARGEST_HALF)
        eight[0], eight[1] = (divide(most - least, f32(15)), least) if finite else (f32(np.nan), f32(0))
        store_halves(halves, 0, load_floats(eight, 0))
        for i in range(4):
            out[at + begin // 8 + i] = bits[i]
        rounded = load_floats(halves, 0)
        scale, least = lane(rounded, 0), lane(rounded, 1)
        inverse = divide(f32(1), scale) if scale > 0 else f32(0)
        codes = at + codes_from(dim) + begin // 2
        for d in range(group.size):
            code = (
                np.uint8(min(max(np.rint((group[d] - least) * inverse), f32(0)), f32(15)))
                if inverse > 0
                else np.uint8(0)
            )
            place = codes + d // 16 * 8 + d % 8
            out[place] = out[place] | code << np.uint8(4) if d % 16 >= 8 else code
    return f32(0)


@spliced
def codes_from(dim):
    """Where among the bytes of a head of 4 bits a number its codes begin: behind scales and minimums."""
    return (dim + 31) // 32 * 4

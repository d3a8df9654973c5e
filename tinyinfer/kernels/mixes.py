"""Sums of a block of values, each times its share, for up to four rows of queries at once.

There is one way for values of which each is a number by itself, and one for those of 4 bits (`cache/forms.py`, Int4).
"""

from __future__ import annotations

from numba import types

from .cached import codes_from
from .jit import inlined, spliced
from .simd import (
    broadcast_float,
    load_float,
    load_floats,
    load_nibbles,
    load_sixteen,
    load_two_halves,
    multiply_add,
    plus,
    prefetch,
    store_floats,
    times,
)
from .together import FOUR, LANES, THREE, load_wide, rows_of

f32 = types.float32


@spliced
def mix_numbers(shares, column, part, values, block, ahead, states, first, count, room):
    """states[first : first + count, :D] += shares[:count, column:] . values[block], for a part of the block.

    values [all blocks, B, D], float32, int16 (float16's bits) or int8. Meanwhile memory is asked for what comes `ahead`
    elements further on. room: float32 of the size that `room_for` gives, to be written over.
    """
    if count == 1:
        _mix_one(shares, column, part, values, block, ahead, states, first)
    elif count == 3:
        _mix_several(shares, column, part, values, block, ahead, states, first, count, THREE)
    else:
        _mix_several(shares, column, part, values, block, ahead, states, first, count, FOUR)


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
    s, p = times(rows_of(twice, first, count), dim + 2), plus(times(rows_of(twice, 0, count), shares.shape[1]), column)
    for d in range(0, wide, 2 * LANES):
        places = plus(columns, d)
        _mix(load_wide, shares, p, low, high, values, plus(places, at), ahead, states, plus(s, places))
    s, p = times(rows_of(once, first, count), dim + 2), plus(times(rows_of(once, 0, count), shares.shape[1]), column)
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


# ---- values of 4 bits


@inlined
def room_for(dim, size):
    """How many float32 `mix_nibbles` wants for scales and minimums of a block, which are stored eight at a time."""
    return size * codes_from(dim) // 2 + 8


@spliced
def mix_nibbles(shares, column, part, values, block, ahead, states, first, count, room):
    """`mix_numbers` of values of 4 bits, uint8 [all blocks, B, bytes of a value]."""
    low, high = part
    dim, width = states.shape[1] - 2, values.shape[2]
    at, halves = block * values.shape[1] * width, codes_from(dim) // 2
    for j in range(low, high):
        for i in range(0, halves, 2):
            store_floats(room, j * halves + i, load_two_halves(values, at + j * width + 2 * i))
    if count == 1:
        _mix_one_of_nibbles(shares, column, part, values, at, ahead, states, first, room)
    elif count == 3:
        _mix_several_of_nibbles(shares, column, part, values, at, ahead, states, first, count, room, THREE[0])
    else:
        _mix_several_of_nibbles(shares, column, part, values, at, ahead, states, first, count, room, FOUR[0])


@inlined
def _mix_one_of_nibbles(shares, column, part, values, at, ahead, states, row, room):
    low, high = part
    dim, s = states.shape[1] - 2, row * states.shape[1]
    codes, wide, whole = at + codes_from(dim), dim // 32 * 32, dim // 16 * 16
    for d in range(0, wide, 32):
        v, places = plus((0, 8), codes + d // 2), plus((0, 16), s + d)
        _mix_sixteens(shares, column, low, high, values, v, v[0] + ahead, room, d // 16, states, places)
    for d in range(wide, whole, 16):
        v = codes + d // 2
        _mix_sixteens(shares, (column,), low, high, values, v, v + ahead, room, d // 16, states, (s + d,))
    _mix_rest_of_nibbles(shares[0, column:], low, high, values, codes, whole, room, states[row])


@inlined
def _mix_several_of_nibbles(shares, column, part, values, at, ahead, states, first, count, room, once):
    low, high = part
    dim = states.shape[1] - 2
    codes, whole = at + codes_from(dim), dim // 16 * 16
    s, p = times(rows_of(once, first, count), dim + 2), plus(times(rows_of(once, 0, count), shares.shape[1]), column)
    for d in range(0, whole, 16):
        v = codes + d // 2
        _mix_sixteens(shares, p, low, high, values, v, v + ahead, room, d // 32 * 2, states, plus(s, d))
    for i in range(count):
        _mix_rest_of_nibbles(shares[i, column:], low, high, values, codes, whole, room, states[first + i])


@inlined
def _mix_sixteens(shares, p_at, low, high, values, v_at, next_at, room, scale_at, states, s_at):
    """For each of a tuple of places: sixteen dimensions of a state, of one group, += shares . those of the values.

    What is the same for all of them is no tuple, so that it is loaded and widened once.
    """
    width, halves = values.shape[2], codes_from(states.shape[1] - 2) // 2
    sums = load_sixteen(states, s_at)
    p_at, v_at = plus(p_at, low), plus(v_at, low * width)
    next_at, scale_at = next_at + low * width, scale_at + low * halves
    for _ in range(low, high):
        prefetch(values, next_at)
        scale, least = broadcast_float(room, scale_at), broadcast_float(room, scale_at + 1)
        numbers = multiply_add(load_nibbles(values, v_at), scale, least)
        sums = multiply_add(numbers, broadcast_float(shares, p_at), sums)
        p_at, v_at = plus(p_at, 1), plus(v_at, width)
        next_at, scale_at = next_at + width, scale_at + halves
    store_floats(states, s_at, sums)


@inlined
def _mix_rest_of_nibbles(shares, low, high, values, codes, begin, room, state):
    """The same for the dimensions after the last sixteen; value by value, as it is done there."""
    width, dim = values.shape[2], state.size - 2
    halves, flat = codes_from(dim) // 2, values.reshape(values.size)
    for j in range(low, high):
        for d in range(begin, dim):
            scale_at = j * halves + d // 32 * 2
            code = flat[codes + j * width + d // 16 * 8 + d % 8] >> (d % 16 // 8 * 4) & 15
            state[d] += shares[j] * multiply_add(f32(code), room[scale_at], room[scale_at + 1])

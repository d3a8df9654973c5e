"""Sums of a block of values, each times its share, for up to four rows of queries at once.

There is one way for values of which each is a number by itself, and one for those of 4 bits (`cache/forms.py`, Int4).
"""

from __future__ import annotations

from numba import types

from .cached import codes_from
from .jit import inlined
from .simd import (
    broadcast_float,
    broadcast_half,
    lane,
    load_float,
    load_floats,
    load_nibbles,
    load_sixteen,
    multiply_add,
    plus,
    prefetch,
    store_floats,
    times,
)
from .together import FOUR, LANES, THREE, load_wide, rows_of

f32 = types.float32


@inlined
def mix_numbers(shares, column, part, values, block, ahead, states, first, count):
    """states[first : first + count, :D] += shares[:count, column:] . values[block], for a part of the block.

    values [all blocks, B, D], float32, int16 (float16's bits) or int8. Meanwhile memory is asked for what comes `ahead`
    elements further on.
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
def mix_nibbles(shares, column, part, values, block, ahead, states, first, count):
    """`mix_numbers` of values of 4 bits, uint8 [all blocks, B, bytes of a value]."""
    if count == 1:
        _mix_one_of_nibbles(shares, column, part, values, block, ahead, states, first)
    elif count == 3:
        _mix_several_of_nibbles(shares, column, part, values, block, ahead, states, first, count, THREE[0])
    else:
        _mix_several_of_nibbles(shares, column, part, values, block, ahead, states, first, count, FOUR[0])


@inlined
def _mix_one_of_nibbles(shares, column, part, values, block, ahead, states, row):
    low, high = part
    dim, at = states.shape[1] - 2, block * values.shape[1] * values.shape[2]
    s, codes = row * (dim + 2), at + codes_from(dim)
    wide, whole = dim // 32 * 32, dim // 16 * 16
    for d in range(0, wide, 32):
        places = plus((0, 8), codes + d // 2), plus((0, 0), at + d // 8)
        _mix_sixteens(shares, plus((0, 0), column), low, high, values, places, ahead, states, plus((0, 16), s + d))
    for d in range(wide, whole, 16):
        places = (codes + d // 2,), (at + d // 8,)
        _mix_sixteens(shares, (column,), low, high, values, places, ahead, states, (s + d,))
    _mix_rest_of_nibbles(shares[0, column:], low, high, values, at, whole, states[row])


@inlined
def _mix_several_of_nibbles(shares, column, part, values, block, ahead, states, first, count, once):
    low, high = part
    dim, at = states.shape[1] - 2, block * values.shape[1] * values.shape[2]
    codes, whole = at + codes_from(dim), dim // 16 * 16
    s, p = times(rows_of(once, first, count), dim + 2), plus(times(rows_of(once, 0, count), shares.shape[1]), column)
    none = times(once, 0)
    for d in range(0, whole, 16):
        places = plus(none, codes + d // 2), plus(none, at + d // 32 * 4)
        _mix_sixteens(shares, p, low, high, values, places, ahead, states, plus(s, d))
    for i in range(count):
        _mix_rest_of_nibbles(shares[i, column:], low, high, values, at, whole, states[first + i])


@inlined
def _mix_sixteens(shares, p_at, low, high, values, places, ahead, states, s_at):
    """For each of a tuple of places: sixteen dimensions of a state += shares . those of the values.

    places: where their codes lie and where the scale does, of the block's first value.
    """
    width = values.shape[2]
    code_at, scale_at = plus(places[0], low * width), plus(places[1], low * width)
    sums, p_at = load_sixteen(states, s_at), plus(p_at, low)
    for _ in range(low, high):
        prefetch(values, code_at[0] + ahead)
        scales, lows = broadcast_half(values, scale_at), broadcast_half(values, plus(scale_at, 2))
        numbers = multiply_add(load_nibbles(values, code_at), scales, lows)
        sums = multiply_add(numbers, broadcast_float(shares, p_at), sums)
        p_at, code_at, scale_at = plus(p_at, 1), plus(code_at, width), plus(scale_at, width)
    store_floats(states, s_at, sums)


@inlined
def _mix_rest_of_nibbles(shares, low, high, values, at, begin, state):
    """The same for the dimensions after the last sixteen; value by value, as it is done there."""
    width, dim = values.shape[2], state.size - 2
    flat = values.reshape(values.size)
    for j in range(low, high):
        value_at = at + j * width
        for d in range(begin, dim):
            scale_at = value_at + d // 32 * 4
            scale, least = lane(broadcast_half(values, scale_at), 0), lane(broadcast_half(values, scale_at + 2), 0)
            code = flat[value_at + codes_from(dim) + d // 16 * 8 + d % 8] >> (d % 16 // 8 * 4) & 15
            state[d] += shares[j] * multiply_add(f32(code), scale, least)

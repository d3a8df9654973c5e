"""Products with weights of 32 or 16 bits: rows as they lie in the file, widened in registers.

A tile is two rows of the weight times a few rows of x. With one row of x (decoding) the weight is read once, in order,
and that is all the time there is; with many, each number that is loaded is used several times.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .jit import inlined, jit
from .processor import uses
from .simd import (
    add,
    at_most,
    load_float,
    load_floats,
    load_sixteen,
    look_ahead,
    multiply_add,
    plus,
    pointer,
    store_float,
    times,
    total,
    zeros_like,
)
from .tiles import FOUR, ONE

STEP = 16  # numbers of a row between one look ahead and the next
_load, LANES = (load_sixteen, 16) if uses("avx512f") else (load_floats, 8)


@intrinsic
def widen(typing_context, weight):
    """A weight as float32, in registers: from float32, uint16 (bfloat16's bits) or int16 (float16's bits)."""

    def generate(context, builder, signature, arguments):
        bits = arguments[0]
        if weight == types.float32:
            return bits
        if weight == types.int16:
            return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())
        upper = builder.shl(builder.zext(bits, ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(upper, ir.FloatType())

    return types.float32(weight), generate


@jit
def matmul_floats(x, weight, out, column, begin, end):
    """out[:, column + row] += x . weight[row] for the rows from `begin` to `end`, summed in float32.

    x float32 [n, in]; weight [rows, in], float32, uint16 (bfloat16's bits) or int16 (float16's); out [n, width].
    """
    n, size = x.shape
    last, width = n - 1, out.shape[1]
    fours = (n + 1) // 4 * 4  # three are done as four, the last twice
    x, out = pointer(x, 0), pointer(out, column)
    for t in range(0, fours, 4):
        for row in range(begin, end, 2):
            _tile(at_most(plus(FOUR, t), last), row, min(row + 1, end - 1), x, pointer(weight, 0), size, out, width)
    for t in range(fours, n):
        for row in range(begin, end, 2):
            _tile(plus(ONE, t), row, min(row + 1, end - 1), x, pointer(weight, 0), size, out, width)


@inlined
def _tile(tokens, row, next_row, x, weight, size, out, width):
    """Two rows of the weight, which may be the same."""
    x_at, a_at, b_at = times(tokens, size), row * size, next_row * size
    a = b = zeros_like(_load(weight, a_at), tokens)
    for _ in range(size // STEP):
        look_ahead(weight, a_at)
        look_ahead(weight, b_at)
        for _ in range(STEP // LANES):
            some = _load(x, x_at)
            a = multiply_add(some, _load(weight, a_at), a)
            b = multiply_add(some, _load(weight, b_at), b)
            x_at, a_at, b_at = plus(x_at, LANES), a_at + LANES, b_at + LANES
    a, b = total(a), total(b)
    for _ in range(size % STEP):
        some = load_float(x, x_at)
        a = multiply_add(some, load_float(weight, a_at), a)
        b = multiply_add(some, load_float(weight, b_at), b)
        x_at, a_at, b_at = plus(x_at, 1), a_at + 1, b_at + 1
    # all are read before any is written: a row that is here twice is added to once
    places = times(tokens, width)
    a_places, b_places = plus(places, row), plus(places, next_row)
    a, b = add(load_float(out, a_places), a), add(load_float(out, b_places), b)
    store_float(out, a_places, a)
    store_float(out, b_places, b)

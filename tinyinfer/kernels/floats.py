"""Products with weights of 32 or 16 bits, compiled: rows as they lie in the file, widened in registers.

With one row of x (decoding) the weights are read once, in order, and that is all the time there is. With many, a few
rows of the weight are widened once and meet every row of x in tiles, so that what is loaded is used several times.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .jit import jit

f32 = types.float32
TILE = 4  # rows of the weight in a tile


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
    if n < 3:
        for row in range(begin, end):
            w = weight[row]
            for t in range(n):
                v = x[t]
                total = f32(0)
                for k in range(v.size):
                    total += v[k] * widen(w[k])
                out[t, column + row] += total
        return
    wide = np.empty((TILE, size), np.float32)
    for first in range(begin, end, TILE):
        rows = min(TILE, end - first)
        for r in range(TILE):
            narrow, full = weight[first + min(r, rows - 1)], wide[r]
            for k in range(size):
                full[k] = widen(narrow[k])
        t = 0
        while t + 2 <= n:
            _tile_2(x[t], x[t + 1], wide, out[t, column + first :], out[t + 1, column + first :], rows)
            t += 2
        if t < n:
            _tile_2(x[t], x[t], wide, out[t, column + first :], np.empty(TILE, np.float32), rows)


@jit
def _tile_2(x0, x1, wide, out0, out1, rows):
    """Two rows of x with four of the weight: eight sums at once."""
    w0, w1, w2, w3 = wide[0], wide[1], wide[2], wide[3]
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = f32(0)
    for k in range(x0.size):
        u, v = x0[k], x1[k]
        a0 += u * w0[k]
        a1 += u * w1[k]
        a2 += u * w2[k]
        a3 += u * w3[k]
        b0 += v * w0[k]
        b1 += v * w1[k]
        b2 += v * w2[k]
        b3 += v * w3[k]
    _store(out0, rows, a0, a1, a2, a3)
    _store(out1, rows, b0, b1, b2, b3)


@jit
def _store(out, rows, s0, s1, s2, s3):
    out[0] += s0
    if rows > 1:
        out[1] += s1
    if rows > 2:
        out[2] += s2
    if rows > 3:
        out[3] += s3

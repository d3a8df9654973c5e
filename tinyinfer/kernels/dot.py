"""A few vectors times the rows of a matrix, compiled, for weights of 32 or 16 bits.

Decoding reads every weight for a handful of multiplications, so what counts is that weights are read once, in order,
and widened in registers.
"""

from __future__ import annotations

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from .jit import jit

# The element type says what a weight is: float32, uint16 for bfloat16's bits, int16 for float16's bits.
_FLOAT16_FEATURES = ("f16c", "neon")


def has_float16() -> bool:
    """Whether this processor widens float16 itself; LLVM would call a function that is not there."""
    features = binding.get_host_cpu_features()
    return any(features.get(name) for name in _FLOAT16_FEATURES)


@intrinsic
def widen(typing_context, weight):
    """A weight as float32, in registers."""

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
def dot_rows(x, weight, out, first, begin, end):
    """out[:, first + row] = x . weight[row] for each row from `begin` to `end`, summed in float32.

    x float32 [n, in]; weight [rows, in], float32, uint16 (bfloat16's bits) or int16 (float16's); out float32 [n, ...].
    """
    for row in range(begin, end):
        w = weight[row]
        for i in range(x.shape[0]):
            v = x[i]
            total = types.float32(0)
            for k in range(v.size):
                total += v[k] * widen(w[k])
            out[i, first + row] = total

"""A few vectors times the rows of a matrix, compiled, for weights of 32 or 16 bits; and what threads share work with.

Decoding reads every weight for a handful of multiplications, so what counts is that weights are read once, in order,
and widened in registers. Rows are dealt out in pieces that threads claim from a counter, so that one which the system
has put to sleep holds up no more than the piece it has.
"""

from __future__ import annotations

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import jit

_FLOAT16_FEATURES = ("f16c", "neon")


def has_float16() -> bool:
    """Whether this processor widens float16 itself; LLVM would call a function that is not there."""
    features = binding.get_host_cpu_features()
    return any(features.get(name) for name in _FLOAT16_FEATURES)


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


@intrinsic
def fetch_add(typing_context, counters, index, amount):
    """Add to an int64 counter, at once for all threads; gives what it was before."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", builder.gep(array.data, [arguments[1]]), arguments[2], "seq_cst")

    return types.int64(counters, types.intp, types.int64), generate


@intrinsic
def pause(typing_context):
    """Tell the processor that this is a waiting loop."""

    def generate(context, builder, signature, arguments):
        machine = binding.get_process_triple().split("-")[0]
        if machine == "x86_64":
            hint = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, hint, "llvm.x86.sse2.pause"), [])
        elif machine in ("aarch64", "arm64"):
            hint = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            number = ir.Constant(ir.IntType(32), 1)  # yield
            builder.call(cgutils.get_or_insert_function(builder.module, hint, "llvm.aarch64.hint"), [number])
        return context.get_dummy_value()

    return types.void(), generate


@jit
def dot_rows(x, weight, out, first, rows_a_piece, counters):
    """out[:, first + row] = x . weight[row], summed in float32, for every row of the pieces that this thread claims.

    x float32 [n, in]; weight [rows, in], float32, uint16 (bfloat16's bits) or int16 (float16's); out float32 [n, ...].
    counters int64 [2]: the next piece to claim, and how many are done.
    """
    rows = weight.shape[0]
    while True:
        begin = fetch_add(counters, 0, 1) * rows_a_piece
        if begin >= rows:
            return
        for row in range(begin, min(begin + rows_a_piece, rows)):
            w = weight[row]
            for i in range(x.shape[0]):
                v = x[i]
                total = types.float32(0)
                for k in range(v.size):
                    total += v[k] * widen(w[k])
                out[i, first + row] = total
        fetch_add(counters, 1, 1)


@jit
def widen_rows(weight, out):
    """weight [rows, in], as for `dot_rows` -> out float32 [rows, in]."""
    for row in range(weight.shape[0]):
        narrow, wide = weight[row], out[row]
        for k in range(narrow.size):
            wide[k] = widen(narrow[k])


@jit
def count_up(counters, index):
    """Add one to a counter, seen at once by all threads."""
    fetch_add(counters, index, 1)


@jit
def wait_for(counters, index, value, spins):
    """Spin until a counter has at least `value`; gives up after `spins` looks. Whether it came to pass."""
    for _ in range(spins):
        if fetch_add(counters, index, 0) >= value:
            return True
        pause()
    return False

"""Linear maps as operations of a tape: out[:, column:] (+)= x weight^T + bias, for the rows of the weight of a piece.

Each kind of weight is an operation of its own, so that only those that a model has are compiled.
"""

from __future__ import annotations

from numba import carray, types

from .addresses import floats, row_at, share, source, step_at, vector
from .floats import matmul_floats
from .int4 import matmul_int4
from .int5 import matmul_int5
from .int8 import matmul_int8
from .jit import Code, inlined, spliced
from .memory import float32_at, int8_at, int16_at, uint8_at, uint16_at
from .nf4 import matmul_nf4
from .pieces import add
from .table import FIELDS, LOGITS, OVER, OWN_ROW, PIECES, SOURCE_OWN

f32 = types.float32


@inlined
def _span(op, piece):
    """The rows of the weight that are a piece's."""
    rows, pieces = op[FIELDS], op[PIECES]
    return share(rows, piece, pieces), share(rows, piece + 1, pieces)


@inlined
def _out(op, step, begin, end):
    """What a piece writes to, [n, width], prepared; and whether it is to be added to."""
    rows, out, width, column, bias, accumulate = op[FIELDS : FIELDS + 6]
    result = floats(out if out else step[LOGITS], step[op[OVER]], width)
    if bias:
        part = vector(bias, rows)[begin:end]
        for t in range(result.shape[0]):
            row = result[t, column + begin : column + end]
            if not accumulate:
                row[:] = f32(0)
            add(row, part)
    return result, accumulate != 0 or bias != 0


@spliced
def _times_floats(op, step, piece, weight, size):
    begin, end = _span(op, piece)
    out, accumulate = _out(op, step, begin, end)
    column = op[FIELDS + 3]
    if not accumulate:
        for t in range(out.shape[0]):
            out[t, column + begin : column + end] = f32(0)
    matmul_floats(source(op[FIELDS + 6], op, step, size), weight, out, column, begin, end)


@Code
def linear_float32(op, numbers, step, piece):
    """With a weight of float32."""
    op = row_at(op)
    size = op[FIELDS + 7]
    _times_floats(op, step_at(step), piece, floats(op[FIELDS + 8], op[FIELDS], size), size)


@Code
def linear_bfloat16(op, numbers, step, piece):
    """With a weight of bfloat16."""
    op = row_at(op)
    size = op[FIELDS + 7]
    _times_floats(op, step_at(step), piece, carray(uint16_at(op[FIELDS + 8]), (op[FIELDS], size)), size)


@Code
def linear_float16(op, numbers, step, piece):
    """With a weight of float16."""
    op = row_at(op)
    size = op[FIELDS + 7]
    _times_floats(op, step_at(step), piece, carray(int16_at(op[FIELDS + 8]), (op[FIELDS], size)), size)


# ---- with quantized weights: x in 8 bits


@inlined
def _codes(op, step):
    """x in 8 bits: codes, scales, sums."""
    codes, scales, sums, groups = op[FIELDS + 6 : FIELDS + 10]
    n, width = step[op[OVER]], 32 * groups
    first = op[SOURCE_OWN] * step[OWN_ROW]
    x_codes = carray(int8_at(codes + first * width), (n, width))
    return x_codes, source(scales, op, step, groups), source(sums, op, step, groups)


@inlined
def _blocks(op):
    return (op[FIELDS] + 7) // 8


@inlined
def nibbles(op):
    """Codes of 4 bits, uint8 [blocks, G, 4, 32]."""
    return carray(uint8_at(op[FIELDS + 10]), (_blocks(op), op[FIELDS + 9], 4, 32))


@inlined
def fives(op):
    """Codes of 5 bits, uint8 [blocks, G, 5, 32]."""
    return carray(uint8_at(op[FIELDS + 10]), (_blocks(op), op[FIELDS + 9], 5, 32))


@inlined
def code_bytes(op):
    """Codes of 8 bits, int8 [blocks, G, 8, 32]."""
    return carray(int8_at(op[FIELDS + 10]), (_blocks(op), op[FIELDS + 9], 8, 32))


@inlined
def half_scales(op):
    """Scales of float16 as bits, int16 [blocks, S, 8]."""
    return carray(int16_at(op[FIELDS + 11]), (_blocks(op), op[FIELDS + 13], 8))


@inlined
def float_scales(op):
    """Scales of float32 [blocks, S, 8]."""
    return carray(float32_at(op[FIELDS + 11]), (_blocks(op), op[FIELDS + 13], 8))


@inlined
def half_minimums(op):
    """Minimums likewise; none where there are none."""
    return carray(int16_at(op[FIELDS + 12]), (_blocks(op) if op[FIELDS + 12] else 0, op[FIELDS + 13], 8))


@spliced
def _times_steps(op, step, piece, matmul, weight_codes):
    begin, end = _span(op, piece)
    out, accumulate = _out(op, step, begin, end)
    codes, scales, sums = _codes(op, step)
    matmul(
        codes, scales, sums, weight_codes, half_scales(op), half_minimums(op),
        out, op[FIELDS + 3], op[FIELDS], begin // 8, (end + 7) // 8, accumulate,
    )  # fmt: skip


@Code
def linear_int4(op, numbers, step, piece):
    """With a weight of 4 bits."""
    op = row_at(op)
    _times_steps(op, step_at(step), piece, matmul_int4, nibbles(op))


@Code
def linear_int5(op, numbers, step, piece):
    """With a weight of 5 bits."""
    op = row_at(op)
    _times_steps(op, step_at(step), piece, matmul_int5, fives(op))


@spliced
def _times_int8(op, step, piece, weight_scales):
    begin, end = _span(op, piece)
    out, accumulate = _out(op, step, begin, end)
    codes, scales, _ = _codes(op, step)
    column, rows = op[FIELDS + 3], op[FIELDS]
    matmul_int8(codes, scales, code_bytes(op), weight_scales, out, column, rows, begin // 8, (end + 7) // 8, accumulate)


@Code
def linear_int8(op, numbers, step, piece):
    """With a weight of 8 bits that has scales of float16."""
    op = row_at(op)
    _times_int8(op, step_at(step), piece, half_scales(op))


@Code
def linear_int8_row(op, numbers, step, piece):
    """With a weight of 8 bits that has scales of float32."""
    op = row_at(op)
    _times_int8(op, step_at(step), piece, float_scales(op))


@spliced
def _times_nf4(op, step, piece, weight_scales):
    begin, end = _span(op, piece)
    out, accumulate = _out(op, step, begin, end)
    codes, scales, _ = _codes(op, step)
    column, rows = op[FIELDS + 3], op[FIELDS]
    matmul_nf4(codes, scales, nibbles(op), weight_scales, out, column, rows, begin // 8, (end + 7) // 8, accumulate)


@Code
def linear_nf4(op, numbers, step, piece):
    """With a weight of NF4 that has scales of float16."""
    op = row_at(op)
    _times_nf4(op, step_at(step), piece, half_scales(op))


@Code
def linear_nf4_double(op, numbers, step, piece):
    """With a weight of NF4 that has scales of float32."""
    op = row_at(op)
    _times_nf4(op, step_at(step), piece, float_scales(op))

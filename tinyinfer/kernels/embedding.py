"""Embedding as an operation of a tape: out[row] = the table's row of that token, times a factor.

Each kind of table is an operation of its own, with fields as those of the linear map that has it as its weight:
a tied head is the same matrix.
"""

from __future__ import annotations

from numba import carray, types

from ..quant.nf4 import VALUES
from .addresses import floats, numbers_at, row_at, step_at
from .floats import widen
from .jit import Code, inlined
from .linear import code_bytes, fives, float_scales, half_minimums, half_scales, nibbles
from .memory import int16_at, int64_at, uint16_at
from .simd import load_float
from .table import FIELDS, IDS, ROWS

f32 = types.float32


@inlined
def _where(op, step, row):
    """The token's id, and the row to write to."""
    out, width = op[FIELDS + 1 : FIELDS + 3]
    return carray(int64_at(step[IDS]), step[ROWS])[row], floats(out, step[ROWS], width)[row]


@inlined
def _widen_row(op, numbers, step, row, table):
    id, out = _where(op, step, row)
    weights, factor = table[id], numbers_at(numbers)[0]
    for k in range(out.size):
        out[k] = widen(weights[k]) * factor


@Code
def embed_float32(op, numbers, step, row):
    """With a table of float32."""
    op = row_at(op)
    _widen_row(op, numbers, step_at(step), row, floats(op[FIELDS + 8], op[FIELDS], op[FIELDS + 7]))


@Code
def embed_bfloat16(op, numbers, step, row):
    """With a table of bfloat16."""
    op = row_at(op)
    _widen_row(op, numbers, step_at(step), row, carray(uint16_at(op[FIELDS + 8]), (op[FIELDS], op[FIELDS + 7])))


@Code
def embed_float16(op, numbers, step, row):
    """With a table of float16."""
    op = row_at(op)
    _widen_row(op, numbers, step_at(step), row, carray(int16_at(op[FIELDS + 8]), (op[FIELDS], op[FIELDS + 7])))


# ---- of packed tables: `layout.py` of quant draws where the codes of a row lie


@inlined
def _unpack_row(op, numbers, step, row, codes, scales, code_at, value_of, minimums):
    id, out = _where(op, step, row)
    block, lane, factor = id // 8, id % 8, numbers_at(numbers)[0]
    groups, spans = op[FIELDS + 9], op[FIELDS + 13]
    for g in range(groups):
        place = (block * spans + g // (groups // spans)) * 8 + lane
        scale = load_float(scales, place)
        low = load_float(minimums, place) if minimums.size else f32(0)
        for k in range(min(32, out.size - 32 * g)):
            out[32 * g + k] = value_of(code_at(codes[block, g], k, lane), scale, low, minimums.size) * factor


@inlined
def _byte(codes, k, lane):
    return codes[k // 4, 4 * lane + k % 4]


@inlined
def _nibble(codes, k, lane):
    both = types.intp(codes[k // 8, 4 * lane + k % 4])
    return both >> 4 if k % 8 >= 4 else both & 15


@inlined
def _five(codes, k, lane):
    return _nibble(codes, k, lane) | (types.intp(codes[4, 4 * lane + k % 4]) >> k // 4 & 1) << 4


@inlined
def _of_byte(code, scale, low, has_low):
    return f32(code) * scale


@inlined
def _of_nibble(code, scale, low, has_low):
    return f32(code) * scale + low if has_low else (f32(code) - f32(8)) * scale


@inlined
def _of_five(code, scale, low, has_low):
    return f32(code) * scale + low if has_low else (f32(code) - f32(16)) * scale


@inlined
def _of_level(code, scale, low, has_low):
    return VALUES[code] * scale


@inlined
def _no_minimums():
    return carray(int16_at(0), (0, 0, 8))


@Code
def embed_int4(op, numbers, step, row):
    """With a table of 4 bits."""
    op, step = row_at(op), step_at(step)
    _unpack_row(op, numbers, step, row, nibbles(op), half_scales(op), _nibble, _of_nibble, half_minimums(op))


@Code
def embed_int5(op, numbers, step, row):
    """With a table of 5 bits."""
    op, step = row_at(op), step_at(step)
    _unpack_row(op, numbers, step, row, fives(op), half_scales(op), _five, _of_five, half_minimums(op))


@Code
def embed_int8(op, numbers, step, row):
    """With a table of 8 bits that has scales of float16."""
    op, step = row_at(op), step_at(step)
    _unpack_row(op, numbers, step, row, code_bytes(op), half_scales(op), _byte, _of_byte, _no_minimums())


@Code
def embed_int8_row(op, numbers, step, row):
    """With a table of 8 bits that has scales of float32."""
    op, step = row_at(op), step_at(step)
    _unpack_row(op, numbers, step, row, code_bytes(op), float_scales(op), _byte, _of_byte, _no_minimums())


@Code
def embed_nf4(op, numbers, step, row):
    """With a table of NF4 that has scales of float16."""
    op, step = row_at(op), step_at(step)
    _unpack_row(op, numbers, step, row, nibbles(op), half_scales(op), _nibble, _of_level, _no_minimums())


@Code
def embed_nf4_double(op, numbers, step, row):
    """With a table of NF4 that has scales of float32."""
    op, step = row_at(op), step_at(step)
    _unpack_row(op, numbers, step, row, nibbles(op), float_scales(op), _nibble, _of_level, _no_minimums())

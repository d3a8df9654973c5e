"""Operations of a tape that not every family has, a row or a piece at a time.

They are called as those of `operations.py` are, and compiled only for models that have them.
"""

from __future__ import annotations

from . import pieces
from .addresses import chunk_of, floats, numbers_at, row_at, share, source, step_at, target, vector
from .jit import Code, inlined
from .table import FIELDS, FIRST_ROW, OVER, PIECES, START


@Code
def layer_norm_row(op, numbers, step, row):
    """out = layer_norm(x) * weight + bias; with `total`, also total += out."""
    op, step = row_at(op), step_at(step)
    x, weight, out, width, total, bias = op[FIELDS : FIELDS + 6]
    normed, eps = target(out, op, step, width)[row], numbers_at(numbers)[0]
    pieces.layer_norm(source(x, op, step, width)[row], vector(weight, width), _bias(bias, width), eps, normed)
    if total:
        pieces.add(floats(total, step[op[OVER]], width)[row], normed)


@inlined
def _bias(address, width):
    return vector(address, width if address else 0)


@Code
def head_norm_row(op, numbers, step, row):
    """Some heads of a row, each normalised in place; heads take the rows of the weights in turn."""
    op, step = row_at(op), step_at(step)
    x, width, begin, count, dim, weight, weights, bias = op[FIELDS : FIELDS + 8]
    eps, centered, _, _ = numbers_at(numbers)
    heads = floats(x, step[op[OVER]], width)[row, begin : begin + count * dim]
    for i in range(count):
        head, of_head = heads[i * dim : (i + 1) * dim], vector(weight + 4 * dim * (i % weights), dim)
        if centered:
            pieces.layer_norm(head, of_head, _bias(bias, dim), eps, head)
        else:
            pieces.rms_norm(head, of_head, eps, head)


@Code
def clip_row(op, numbers, step, row):
    """A row of x kept within a limit, in place."""
    op, step = row_at(op), step_at(step)
    x, width = op[FIELDS : FIELDS + 2]
    pieces.clip(floats(x, step[op[OVER]], width)[row], numbers_at(numbers)[0])


@Code
def positions_row(op, numbers, step, row):
    """x += the row of a table of positions, float32."""
    op, step = row_at(op), step_at(step)
    x, width, table, offset = op[FIELDS : FIELDS + 4]
    chunk = chunk_of(step, row)
    position = chunk[START] + row - chunk[FIRST_ROW] + offset
    pieces.add(floats(x, step[op[OVER]], width)[row], vector(table + 4 * width * position, width))


@Code
def activated_part(op, numbers, step, piece):
    """out = activation(x): a piece's share of the columns of all rows."""
    op, step = row_at(op), step_at(step)
    x, width, activation, out = op[FIELDS : FIELDS + 4]
    begin, end = share(width, piece, op[PIECES]), share(width, piece + 1, op[PIECES])
    before, result = source(x, op, step, width), target(out, op, step, width)
    for row in range(step[op[OVER]]):
        part = result[row, begin:end]
        pieces.fill(part, 1)
        pieces.gated(before[row, begin:end], part, activation, part)


@Code
def clamped_part(op, numbers, step, piece):
    """out = the clamped gate of gpt-oss: a piece's share of the columns of all rows."""
    op, step = row_at(op), step_at(step)
    both, width, _, out = op[FIELDS : FIELDS + 4]
    limit, slope, _, _ = numbers_at(numbers)
    begin, end = share(width, piece, op[PIECES]), share(width, piece + 1, op[PIECES])
    gates, result = source(both, op, step, 2 * width), target(out, op, step, width)
    for row in range(step[op[OVER]]):
        gate, up = gates[row, begin:end], gates[row, width + begin : width + end]
        pieces.clamped(gate, up, limit, slope, result[row, begin:end])

"""Linear maps of some of the rows as operations of a tape: each expert's run over the rows that chose it.

`tape_grouped.py` says what the fields of a row are. Rows stand once for each expert that they use, at places sorted by
expert, so that each expert has places side by side.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types

from . import pieces
from .addresses import floats, numbers_at, row_at, source, step_at, vector
from .jit import Code, inlined
from .memory import call_at, int64_at
from .table import ANGLES, CODE, COLUMNS, FIELDS, OVER, ROWS, TAKES_CODES

f32 = types.float32
LOWEST = f32(-3.4e38)


@inlined
def _integers(address, rows, width):
    return carray(int64_at(address), (rows, width))


@Code
def route(op, numbers, step, piece):
    """Which experts each row uses, its share of each, and where it stands among all that use them."""
    op, step = row_at(op), step_at(step)
    scores, count, used, groups, used_groups, judges = op[FIELDS : FIELDS + 6]
    correction, shares, places, rows, ends, active = op[FIELDS + 6 : FIELDS + 12]
    scale, sigmoid, normalized, _ = numbers_at(numbers)
    n = step[ROWS]
    share, liking, worth = np.empty(count, np.float32), np.empty(count, np.float32), np.empty(groups, np.float32)
    all_shares, all_places = floats(shares, n, used), _integers(places, n, used)
    expert_ends, expert_rows = vector_of_integers(ends, count + 1), vector_of_integers(rows, n * used)
    pieces.fill(expert_ends, 0)
    for row in range(n):
        _shares(floats(scores, n, count)[row], sigmoid, share)
        for e in range(count):
            liking[e] = share[e] + (vector(correction, count)[e] if correction else f32(0))
        if groups > 1:
            _keep_best_groups(liking, worth, used_groups, judges)
        total = f32(0)
        for k in range(used):
            best = _best(liking)
            liking[best] = -np.inf
            all_places[row, k], all_shares[row, k] = best, share[best]
            total += share[best]
            expert_ends[best] += 1
        for k in range(used):
            all_shares[row, k] = all_shares[row, k] / (total if normalized else f32(1)) * scale
    _sort(all_places, expert_rows, expert_ends, vector_of_integers(active, count + 1))


@inlined
def vector_of_integers(address, size):
    """int64 [size]."""
    return carray(int64_at(address), size)


@inlined
def _shares(scores, sigmoid, out):
    """Scores float32 [E] as shares: each by itself, or of one."""
    if sigmoid:
        for e in range(scores.size):
            out[e] = f32(1) / (f32(1) + pieces.exp(-scores[e]))
        return
    largest, total = LOWEST, f32(0)
    for e in range(scores.size):
        largest = max(largest, scores[e])
    for e in range(scores.size):
        out[e] = pieces.exp(scores[e] - largest)
        total += out[e]
    for e in range(scores.size):
        out[e] /= total


@inlined
def _best(liking):
    """The first of the largest; the first of all where none is a number."""
    best = 0
    for e in range(liking.size):
        if liking[e] > liking[best]:
            best = e
    return best


@inlined
def _keep_best_groups(liking, worth, used_groups, judges):
    """All but the best groups of experts go to -inf; the sum of its `judges` best says how good a group is."""
    size = liking.size // worth.size
    for g in range(worth.size):
        group = liking[g * size : (g + 1) * size].copy()
        worth[g] = f32(0)
        for _ in range(judges):
            best = _best(group)
            worth[g] += group[best]
            group[best] = -np.inf
    for _ in range(used_groups):
        worth[_best(worth)] = -np.inf
    for g in range(worth.size):
        if worth[g] > -np.inf:
            for e in range(g * size, (g + 1) * size):
                liking[e] = -np.inf


@inlined
def _sort(places, rows, ends, active):
    """Chosen experts int64 [n, used] become places; at each place stands its row; and where each expert's places begin.

    ends [E + 1]: how often each expert was chosen, and then where its places begin, and at the last where they end.
    active [E + 1]: the experts that were chosen, and at the last how many those are.
    """
    count, total, chosen = ends.size - 1, 0, 0
    for e in range(count):
        if ends[e]:
            active[chosen] = e
            chosen += 1
        total += ends[e]
        ends[e] = total
    active[count], ends[count] = chosen, total
    for row in range(places.shape[0] - 1, -1, -1):
        for k in range(places.shape[1] - 1, -1, -1):
            expert = places[row, k]
            ends[expert] -= 1
            places[row, k] = ends[expert]
            rows[ends[expert]] = row


@Code
def send_to_all(op, numbers, step, piece):
    """Each row stands at a place for each of all: those of the first, then those of the second."""
    op, step = row_at(op), step_at(step)
    count, ends, active = op[FIELDS : FIELDS + 3]
    for i in range(count + 1):
        vector_of_integers(ends, count + 1)[i] = i * step[ROWS]
        vector_of_integers(active, count + 1)[i] = i


@Code
def move_row(op, numbers, step, row):
    """The heads of a row from one place to another; a stride of 0 stands for places, of all rows of a head."""
    op, step = row_at(op), step_at(step)
    x, x_row, x_head, out, out_row, out_head, heads, width = op[FIELDS : FIELDS + 8]
    n = step[op[OVER]]
    for h in range(heads):
        begin = row * x_row + h * (x_head if x_head else n * x_row)
        end = row * out_row + h * (out_head if out_head else n * out_row)
        pieces.copy(vector(x + 4 * begin, width), vector(out + 4 * end, width))


@Code
def spread_row(op, numbers, step, piece):
    """out[place] = x[the row that stands there]."""
    op, step = row_at(op), step_at(step)
    x, width, used, rows, out = op[FIELDS : FIELDS + 5]
    n = step[op[OVER]]
    row = vector_of_integers(rows, n * used)[piece]
    pieces.copy(source(x, op, step, width)[row], floats(out, n * used, width)[piece])


@Code
def grouped_part(op, numbers, step, piece):
    """A piece of one linear map of one of the experts that were chosen, over the places of that expert."""
    op, step = row_at(op), step_at(step)
    maps, count, parts, each, ends, active = op[FIELDS : FIELDS + 6]
    index, part, inner = piece // each // parts, piece // each % parts, piece % each
    chosen = vector_of_integers(active, count + 1)
    if index >= chosen[count]:
        return
    expert = chosen[index]
    first, end = vector_of_integers(ends, count + 1)[expert], vector_of_integers(ends, count + 1)[expert + 1]
    its, mine = _integers(maps, count * parts, COLUMNS)[expert * parts + part], np.empty(COLUMNS, np.int64)
    for column in range(COLUMNS):
        mine[column] = its[column]
    registers = np.empty(ANGLES, np.int64)
    for register in range(ANGLES):
        registers[register] = step[register]
    registers[ROWS] = end - first
    mine[FIELDS + 1] += 4 * first * mine[FIELDS + 2]
    if mine[TAKES_CODES]:
        groups = mine[FIELDS + 9]
        mine[FIELDS + 6] += 32 * groups * first
        mine[FIELDS + 7] += 4 * groups * first
        mine[FIELDS + 8] += 4 * groups * first
    else:
        mine[FIELDS + 6] += 4 * first * mine[FIELDS + 7]
    call_at(mine[CODE], mine.ctypes.data, numbers, registers.ctypes.data, inner)
    # they are looked at by address: so that they live until then
    registers[ROWS], mine[CODE] = 0, 0


@Code
def gated_place(op, numbers, step, piece):
    """out[place] = activation(gate) * up, or the clamped gate."""
    op, step = row_at(op), step_at(step)
    both, width, activation, out, used = op[FIELDS : FIELDS + 5]
    limit, slope, _, _ = numbers_at(numbers)
    n = step[op[OVER]] * used
    gates, result = floats(both, n, 2 * width)[piece], floats(out, n, width)[piece]
    if limit > 0:
        pieces.clamped(gates[:width], gates[width:], limit, slope, result)
    else:
        pieces.gated(gates[:width], gates[width:], activation, result)


@Code
def combine_row(op, numbers, step, row):
    """total += the row's shares of what its experts made of it."""
    op, step = row_at(op), step_at(step)
    y, width, used, shares, places, total = op[FIELDS : FIELDS + 6]
    n = step[op[OVER]]
    out = floats(total, n, width)[row]
    for k in range(used):
        share = floats(shares, n, used)[row, k]
        part = floats(y, n * used, width)[_integers(places, n, used)[row, k]]
        for i in range(width):
            out[i] += share * part[i]

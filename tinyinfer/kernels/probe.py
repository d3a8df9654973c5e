"""What the machine can do at best, to hold the other kernels against: reading memory, multiplying and adding.

Each kernel here is called by every thread of a team at once, and its pieces are claimed from a counter, as those of a
forward pass are. `counters` are int64 [COUNTERS], zeros when the first thread begins; a call returns when all pieces
are done.
"""

from __future__ import annotations

from .jit import inlined, jit
from .memory import fetch_add, give_way, wait_for
from .processor import uses
from .simd import (
    add_nibble_products,
    broadcast_bytes,
    broadcast_float,
    joined,
    load_bytes,
    load_floats,
    load_sixteen,
    look_ahead,
    multiply_add,
    no_nibble_products,
    plus,
    row_sums,
    store_floats,
    times,
    to_float,
    zeros_like,
)

CLAIMED, DONE, COUNTERS = 0, 8, 16  # places of the counters, a cache line apart
PATIENCE = 100_000  # ticks, some tens of microseconds, of waiting for the others before giving way to them

# Twelve sums side by side hide how long each instruction takes.
SUMS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
# Blocks of eight rows in a register, as `tiles.py` has it.
BLOCKS = (0, 1) if uses("avx512f") else (0,)
ROWS = 8 * len(BLOCKS)
_load = load_sixteen if ROWS == 16 else load_floats


@jit
def sum_pieces(numbers, same_bytes, sums, counters):
    """sums[p] = the sum of numbers[p] for each piece: int64 [pieces, n] -> int64 [pieces], wrapping around.

    n is a multiple of 8. same_bytes: `numbers` viewed as uint8.
    """
    pieces, n = numbers.shape
    piece = fetch_add(counters, CLAIMED, 1)
    while piece < pieces:
        row, begin, total = numbers[piece], 8 * n * piece, 0
        for i in range(0, n, 8):
            look_ahead(same_bytes, begin + 8 * i)
            line = row[i : i + 8]
            total += line[0] + line[1] + line[2] + line[3] + line[4] + line[5] + line[6] + line[7]
        sums[piece] = total
        fetch_add(counters, DONE, 1)
        piece = fetch_add(counters, CLAIMED, 1)
    _wait_for_others(counters, pieces)


@jit
def multiply_integers(codes, x, rounds, sums, counters):
    """As `matmul_int4` multiplies, with nothing around it: `rounds` times over, codes . x in integers.

    codes uint8 [n, ROWS, 4], 0..15; x int8 [12, 4]; sums float32 [pieces, 12, ROWS], to be written: for each piece p,
    row r and t the sum over i and j of codes[i, r, j] * x[t, j]. Where no instruction adds up in 32 bits, sums are
    right as long as n * rounds is at most 8, and then wrap. That makes n * ROWS * 48 * rounds multiply-adds a piece.
    """
    pieces = sums.shape[0]
    piece = fetch_add(counters, CLAIMED, 1)
    while piece < pieces:
        factors = broadcast_bytes(x, times(SUMS, 4))
        total = no_nibble_products(SUMS, joined(load_floats(sums, times(BLOCKS, 8))))
        for _ in range(rounds):
            for at in range(0, codes.size, 4 * ROWS):
                some = joined(load_bytes(codes, plus(times(BLOCKS, 32), at)))
                total = add_nibble_products(total, some, factors)
        store_floats(sums, plus(times(SUMS, ROWS), 12 * ROWS * piece), to_float(row_sums(total)))
        fetch_add(counters, DONE, 1)
        piece = fetch_add(counters, CLAIMED, 1)
    _wait_for_others(counters, pieces)


@jit
def multiply_floats(weights, x, rounds, sums, counters):
    """The same in float32: weights [n, ROWS], x [12], sums [pieces, 12, ROWS]: x[t] times the sum of weights[:, r].

    That makes n * ROWS * 12 * rounds multiply-adds a piece.
    """
    pieces = sums.shape[0]
    piece = fetch_add(counters, CLAIMED, 1)
    while piece < pieces:
        factors, total = broadcast_float(x, SUMS), zeros_like(_load(weights, 0), SUMS)
        for _ in range(rounds):
            for at in range(0, weights.size, ROWS):
                total = multiply_add(_load(weights, at), factors, total)
        store_floats(sums, plus(times(SUMS, ROWS), 12 * ROWS * piece), total)
        fetch_add(counters, DONE, 1)
        piece = fetch_add(counters, CLAIMED, 1)
    _wait_for_others(counters, pieces)


@inlined
def _wait_for_others(counters, pieces):
    while not wait_for(counters, DONE, pieces, PATIENCE):
        give_way()

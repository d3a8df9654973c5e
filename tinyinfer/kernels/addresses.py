"""How an operation finds its arrays: the addresses in its row of the table and in the step, as arrays."""

from __future__ import annotations

from numba import carray

from .jit import inlined
from .memory import float32_at, int64_at
from .table import (
    CHUNK_TABLE,
    CHUNK_WIDTH,
    CHUNKS,
    COLUMNS,
    MOST_REGISTERS,
    NUMBERS,
    OVER,
    OWN_ROW,
    ROW_CHUNKS,
    ROWS,
    SOURCE_OWN,
    TARGET_OWN,
)


@inlined
def row_at(address):
    """A row of the table, int64 [COLUMNS]."""
    return carray(int64_at(address), COLUMNS)


@inlined
def step_at(address):
    """The registers of a step, int64."""
    return carray(int64_at(address), MOST_REGISTERS)


@inlined
def numbers_at(address):
    """The float32 that go with a row of the table."""
    return carray(float32_at(address), NUMBERS)


@inlined
def floats(address, rows, width):
    """float32 [rows, width]."""
    return carray(float32_at(address), (rows, width))


@inlined
def source(address, op, step, width):
    """What an operation reads, float32 [its rows, width]: from this thread's own first row on, where it has some."""
    return floats(address + 4 * width * op[SOURCE_OWN] * step[OWN_ROW], step[op[OVER]], width)


@inlined
def target(address, op, step, width):
    """What an operation writes, float32 [its rows, width]; see `source`."""
    return floats(address + 4 * width * op[TARGET_OWN] * step[OWN_ROW], step[op[OVER]], width)


@inlined
def vector(address, width):
    """float32 [width]."""
    return carray(float32_at(address), width)


@inlined
def chunk_at(step, index):
    """A row of the chunk table, int64."""
    return carray(int64_at(step[CHUNK_TABLE]), (step[CHUNKS], step[CHUNK_WIDTH]))[index]


@inlined
def chunk_of(step, row):
    """The row of the chunk table that a row of the step belongs to."""
    return chunk_at(step, carray(int64_at(step[ROW_CHUNKS]), step[ROWS])[row])


@inlined
def share(total, index, shares):
    """Where a share begins, in multiples of 32: whole groups of codes, and never one cache line for two."""
    return total if index == shares else total * index // shares // 32 * 32

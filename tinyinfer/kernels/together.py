"""Rows of queries that go over a block of keys or values together: what is loaded and widened serves all of them."""

from __future__ import annotations

from .jit import inlined
from .processor import uses
from .simd import at_most, load_floats, load_sixteen, plus

TOGETHER = 4

# Rows of queries: each once, for one register of keys or of values; and each twice, with the places of two registers.
LANES, load_wide = (16, load_sixteen) if uses("avx512f") else (8, load_floats)
THREE = (0, 1, 2), (0, 0, 1, 1, 2, 2), (0, LANES) * 3
FOUR = (0, 1, 2, 3), (0, 0, 1, 1, 2, 2, 3, 3), (0, LANES) * 4


@inlined
def rows_of(which, first, count):
    """Some of the rows from `first` on, of which there are `count`: the last one again for those that are missing."""
    return at_most(plus(which, first), first + count - 1)

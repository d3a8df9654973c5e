"""What one step of a tape is about: whose tokens the rows are, and where their keys and values lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ..cache import Sequence as CachedTokens
from ..cache.blocks import BlockPool
from . import table as t


def address(array: np.ndarray) -> int:
    """Where an array's numbers begin; `ctypes.data` says the same, in three times the time."""
    return array.__array_interface__["data"][0]


NO_IDS = np.zeros(0, np.int64)


class Step:
    """The chunks of one step, as Python and, by `registers`, as compiled code sees them.

    sequences  one for each chunk, with room reserved for its new tokens
    counts     how many new tokens each has
    starts     the position of the first of them, by default where the sequence ends
    also       rows, each with a chunk that looks at it beside its own: see `cache.Branches`
    wanted     int64: the rows that need logits
    angles     for each kind of rotation, cosines and sines of all rows, float32 [rows, dims / 2]
    logits     float32 [wanted, vocab], to be written
    ids        int64 [rows]: the new tokens; for tapes that begin with them
    adapters   for each chunk, the numbers of its adapters and a scale for each; by default none
    """

    def __init__(
        self, sequences: Sequence[CachedTokens], counts: Sequence[int], wanted, angles, logits, ids=NO_IDS,
        adapters: Sequence[Sequence[tuple[int, float]]] | None = None, starts: Sequence[int] | None = None,
        also: Sequence[tuple[int, int]] = (),
    ):  # fmt: skip
        self.sequences, self.counts, self.wanted, self.ids = sequences, counts, wanted, ids
        self.adapters = [()] * len(counts) if adapters is None else adapters
        self.angles, self.logits = angles, logits
        self.starts = [sequence.length for sequence in sequences] if starts is None else starts
        self.also = also
        self.ends = list(accumulate(counts))
        self.rows = self.ends[-1]

    def slices(self):
        """Each sequence with the rows that are its own."""
        for sequence, count, end in zip(self.sequences, self.counts, self.ends, strict=True):
            yield sequence, slice(end - count, end)

    def stores(self):
        """What is written where: a sequence, the position in it of the first of some rows, and these."""
        for start, (sequence, rows) in zip(self.starts, self.slices(), strict=True):
            yield sequence, start, rows
        for row, chunk in self.also:
            own = next(i for i, end in enumerate(self.ends) if row < end)
            position = self.starts[own] + row - (self.ends[own] - self.counts[own])
            yield self.sequences[chunk], position, slice(row, row + 1)

    def registers(self, heads: int, dim: int, threads: int, own_from: int | None) -> np.ndarray:
        """The step as int64 [threads, ...], a row for each thread that works at it.

        Many of them are addresses: what they point to lives as long as this object. own_from: where in buffers of
        which threads have rows of their own those of the second thread begin; None: none have.
        """
        own = own_from is not None and self.rows <= t.OWN_ROWS
        width = t.ANGLES + 2 * len(self.angles)
        row_chunks = [index for index, count in enumerate(self.counts) for _ in range(count)]
        stores = [number for row, chunk in enumerate(row_chunks) for number in (row, chunk)]
        stores += [number for pair in self.also for number in pair]
        adapters, scales = self._adapter_table()
        pools = len(self.sequences[0].tables)
        blocks = sum(len(table.blocks) for sequence in self.sequences for table in sequence.tables)
        chunks = (t.POOLS + pools * t.POOL_WIDTH) * len(self.counts)
        # one array for all: a step asks NumPy for as little as possible, since each call finds the caches cold
        tables = _Tables(threads * width + blocks + chunks + len(row_chunks) + len(stores) + len(adapters))
        chunk_table, num_states = self._chunk_table(own, tables)
        single = max(self.counts) <= 1 and not self.also
        self._states = np.empty((num_states, heads, dim + 2), np.float32)
        self._scales = np.array(scales, np.float32)
        known = {
            t.ROWS: self.rows, t.WANTED: len(self.wanted), t.CHUNKS: len(self.counts),
            t.CHUNK_WIDTH: len(chunk_table) // len(self.counts), t.CHUNK_TABLE: tables.add(chunk_table),
            t.ROW_CHUNKS: tables.add(row_chunks), t.WANTED_ROWS: address(self.wanted),
            t.LOGITS: address(self.logits), t.STATES: address(self._states), t.NUM_STATES: num_states,
            t.SINGLE: single, t.OWN: own, t.STORES: 0 if single else len(stores) // 2,
            t.STORE_TABLE: tables.add(stores),
            t.IDS: address(self.ids), t.ADAPTERS: tables.add(adapters), t.ADAPTER_SCALES: address(self._scales),
        }  # fmt: skip
        angles = [address(array) for pair in self.angles for array in pair]
        registers = [int(known[place]) for place in range(t.OWN_ROW)]
        for thread in range(threads):
            own_row = own_from + t.OWN_ROWS * (thread - 1) if own and thread else 0
            tables.add([*registers, own_row, *angles])
        self._tables = tables.written()
        return self._tables[-threads * width :].reshape(threads, width)

    def _chunk_table(self, own: bool, tables: _Tables) -> tuple[list[int], int]:
        """A row for each chunk, see `table.py`; and how many states attention keeps.

        A chunk of one tile, as in decoding, has its past split into stretches, so that there is a piece for every
        thread; always at the same positions, so that its floats do not depend on threads or on the other chunks.
        """
        table, looks, states = [], 0, 0
        for (sequence, rows), start, count in zip(self.slices(), self.starts, self.counts, strict=True):
            tiles = -(-count // t.QUERY_TILE)
            stretches = -(-(start + count) // t.STRETCH) if tiles == 1 else 1
            kept = own or stretches > 1
            looks += tiles * stretches
            table += [rows.start, rows.stop, start, looks, stretches, states if kept else -1]
            for part in sequence.tables:
                table += [tables.add(part.blocks), *_addresses(part.pool), part.first, part.pool.capacity]
                table.append(part.pool.block_size)
            states += count * stretches if kept else 0
        return table, states

    def _adapter_table(self) -> tuple[list[int], list[float]]:
        """Where each chunk's adapters begin, then their numbers; and their scales."""
        starts = accumulate((len(used) for used in self.adapters), initial=0)
        flat = [pair for used in self.adapters for pair in used]
        return [*starts, *(number for number, _ in flat)], [scale for _, scale in flat]


class _Tables:
    """Tables of int64, one after another in an array of `size`; each has an address before the next is known."""

    def __init__(self, size: int):
        self._array, self._numbers = np.empty(size, np.int64), []
        self._address = address(self._array)

    def add(self, numbers: Sequence[int]) -> int:
        """The address of one more."""
        at = self._address + 8 * len(self._numbers)
        self._numbers += numbers
        return at

    def written(self) -> np.ndarray:
        """All of them."""
        self._array[:] = self._numbers
        return self._array


def _addresses(pool: BlockPool) -> list[int]:
    """Where a pool's keys, values and their scales lie."""
    arrays = pool.keys, pool.values, pool.key_scales, pool.value_scales
    return [0 if array is None else address(array) for array in arrays]

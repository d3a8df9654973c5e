"""What one step of a tape is about: whose tokens the rows are, and where their keys and values lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..cache import Sequence as CachedTokens
from . import table as t

SPLIT_POSITIONS = 128  # a look at the past is split into stretches of at least this many positions
MOST_SPLITS = 16


class Step:
    """The chunks of one step, as Python and, by `registers`, as compiled code sees them.

    sequences  one for each chunk, with room reserved for its new tokens
    counts     how many new tokens each has
    wanted     int64: the rows that need logits
    angles     for each kind of rotation, cosines and sines of all rows, float32 [rows, dims / 2]
    logits     float32 [wanted, vocab], to be written
    """

    def __init__(self, sequences: Sequence[CachedTokens], counts: Sequence[int], wanted, angles, logits):
        self.sequences, self.counts, self.wanted = sequences, counts, wanted
        self.angles, self.logits = angles, logits
        self.ends = np.cumsum(counts)
        self.rows = int(self.ends[-1])

    def slices(self):
        """Each sequence with the rows that are its own."""
        for sequence, count, end in zip(self.sequences, self.counts, self.ends, strict=True):
            yield sequence, slice(end - count, end)

    def registers(self, heads: int, kv_heads: int, dim: int, threads: int) -> np.ndarray:
        """The step as int64, of which many are addresses: what they point to lives as long as this object."""
        tiles = [-(-count // t.QUERY_TILE) for count in self.counts]
        self._block_tables: list[np.ndarray] = []
        self._chunks = np.array(
            [
                [rows.start, rows.stop, sequence.length, tile, *self._places(sequence)]
                for (sequence, rows), tile in zip(self.slices(), np.cumsum(tiles), strict=True)
            ],
            np.int64,
        )
        self._row_chunks = np.repeat(np.arange(len(self.counts)), self.counts)
        splits = self._splits(sum(tiles) * kv_heads, threads)
        self._states = np.empty((self.rows if splits > 1 else 0, heads, splits, dim + 2), np.float32)
        registers = {
            t.ROWS: self.rows, t.WANTED: len(self.wanted), t.CHUNKS: len(self.counts),
            t.CHUNK_WIDTH: self._chunks.shape[1], t.CHUNK_TABLE: self._chunks.ctypes.data,
            t.ROW_CHUNKS: self._row_chunks.ctypes.data, t.WANTED_ROWS: self.wanted.ctypes.data,
            t.LOGITS: self.logits.ctypes.data, t.SPLITS: splits, t.STATES: self._states.ctypes.data,
        }  # fmt: skip
        angles = [array.ctypes.data for pair in self.angles for array in pair]
        return np.array([registers[place] for place in range(t.ANGLES)] + angles, np.int64)

    def _places(self, sequence: CachedTokens) -> list[int]:
        places = []
        for table in sequence.tables:
            blocks = np.array(table.blocks, np.int64)
            self._block_tables.append(blocks)
            places += [
                blocks.ctypes.data, table.pool.keys.ctypes.data, table.pool.values.ctypes.data,
                table.first, table.pool.num_blocks, table.pool.block_size,
            ]  # fmt: skip
        return places

    def _splits(self, looks: int, threads: int) -> int:
        """How many stretches to split each look at the past into, so that every thread has some."""
        longest = max(sequence.length + count for sequence, count in zip(self.sequences, self.counts, strict=True))
        if threads == 1 or looks == 0 or looks >= 8 * threads:
            return 1
        return max(1, min(-(-8 * threads // looks), longest // SPLIT_POSITIONS, MOST_SPLITS))

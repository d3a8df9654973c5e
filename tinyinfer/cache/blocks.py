"""Keys and values in blocks of fixed size, and for each sequence a table of its blocks.

    positions of a sequence    0 1 2 3 | 4 5 6 7 | 8 9
    its block table               5    |    0    |  2       (block_size 4)
    a pool's keys              [layers, kv_heads, blocks, head_dim, block_size]     with room for more blocks
    a pool's values            [layers, kv_heads, blocks, block_size, head_dim]     or as wide as their form says
    scales, of int8            [layers, kv_heads, blocks, block_size]

A block may belong to several sequences, which then began alike: the pool counts them, and whoever has to write into
such a block gets a copy of its own first. One that no sequence has any more may be remembered for what it holds
(`prefixes.py`): it lies idle then, until a text that begins so comes again or its place is needed.

In a block the keys stand side by side and so do the dimensions of a value, because that is how attention reads them:
one dimension of many keys at a time, and one value at a time. Layers that see a window of the past keep their blocks in
a pool of their own, where blocks that have left the window are given back.
The idea is PagedAttention's, https://arxiv.org/abs/2309.06180.
"""

from __future__ import annotations

from typing import NamedTuple

from ..config import ModelConfig
from .forms import FORMS
from .memory import RESERVES
from .pool import BlockPool
from .tables import BlockTable, Turn

DEFAULT_BLOCK_SIZE = 32


def layer_places(config: ModelConfig) -> list[tuple[int, int]]:
    """For each layer of the model, the number of its pool and its place among that pool's layers."""
    windows = [layer.window for layer in config.layers]
    kinds = list(dict.fromkeys(windows))
    return [(kinds.index(window), windows[:i].count(window)) for i, window in enumerate(windows)]


class KVCache:
    """All keys and values a model holds, for any number of sequences; `dtype` is one of KV_DTYPES.

    `room` is a number of tokens: where the system allows, pools grow to as many without copying, in address space that
    is set aside when the first block is needed. Memory is used as blocks are.
    """

    def __init__(
        self, config: ModelConfig, block_size: int = DEFAULT_BLOCK_SIZE, dtype: str = "float32", room: int = 0
    ):
        self.block_size, self.dtype = block_size, dtype
        windows = [layer.window for layer in config.layers]
        layers: dict[int | None, list[int]] = {}
        for number, window in enumerate(windows):
            layers.setdefault(window, []).append(number)
        how = *config.cache_shape, block_size, FORMS[dtype]
        self.pools = [BlockPool(numbers, window, *how) for window, numbers in layers.items()]
        for pool in self.pools:
            pool.room = -(-room // block_size) if RESERVES else 0

    def sequence(self) -> Sequence:
        """A new, empty sequence."""
        return Sequence(self)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in each pool."""
        return sum(pool.block_bytes for pool in self.pools)

    def limit(self, nbytes: int) -> int:
        """Let all pools together hold at most so many bytes; gives how many tokens that is.

        Each pool may have the same number of blocks, so that this is what one text can have, with nothing else.
        """
        most = nbytes // self.block_bytes
        for pool in self.pools:
            pool.most_blocks = most
        return most * self.block_size

    @property
    def nbytes(self) -> int:
        """Bytes held, used or free."""
        return sum(pool.nbytes for pool in self.pools)


class Sequence:
    """One sequence's share of the cache: its length, and its blocks in each pool.

    A forward pass calls `reserve` before it writes and `advance` once it is done; until then nothing has happened. Up
    to the next `reserve` all that was written can be taken back by `rewind`, whatever the windows: so drafts are.
    """

    def __init__(self, cache: KVCache):
        self.cache = cache
        self.length = 0  # tokens whose keys and values are held
        self.tables = [BlockTable(pool) for pool in cache.pools]

    def fork(self) -> Sequence:
        """A second sequence that begins as this one; they share its blocks until either writes into one."""
        twin = Sequence(self.cache)
        for mine, table in zip(self.tables, twin.tables, strict=True):
            table.begin_as(mine)
        twin.length = self.length
        return twin

    def parts(self, count: int) -> list[Part]:
        """`count` new tokens, as attention is to see them."""
        return [Part(self, self.length, count)]

    def has_room(self, count: int) -> bool:
        """Whether `reserve` of so many tokens would find the blocks it needs."""
        for table in self.tables:
            available = table.pool.num_available
            if available is None:
                continue
            if table.blocks_wanted(self.length, count) > available + table.blocks_given_back(self.length):
                return False
        return True

    def reserve(self, count: int) -> None:
        """Make room for `count` more tokens, in blocks of this sequence alone; what they can't see is given back."""
        for table in self.tables:
            table.drop_unseen(self.length)
            table.own_from(self.length)
            table.extend_to(self.length + count)

    def advance(self, count: int) -> None:
        """`count` tokens have been written."""
        self.length += count

    def can_rewind(self, length: int) -> bool:
        """Whether the first `length` tokens could go on from there: what their windows see must still be held."""
        return 0 <= length <= self.length and all(table.holds_window_of(length) for table in self.tables)

    def rewind(self, length: int) -> None:
        """Forget all tokens from `length` on. Raises `ValueError` where `can_rewind` says no."""
        if not self.can_rewind(length):
            raise ValueError(f"a sequence of {self.length} tokens can't be rewound to {length}")
        self.length = length
        for table in self.tables:
            table.cut_to(length)

    def close_gap(self, keep: int, drop: int, turn: Turn) -> None:
        """Forget the `drop` tokens after the first `keep`; those that follow move up, and take their positions.

        `turn(layer, keys)` gives the keys of a layer, float32 [n, kv_heads, head_dim], as they are at positions `drop`
        lower, to be kept as new ones are; or None where positions are not in them. Values move as they lie.
        A sequence that was interrupted in this is good for nothing but `release`.
        """
        for table in self.tables:
            table.close_gap(keep, drop, self.length, turn)
        self.length -= drop

    def become(self, other: Sequence) -> None:
        """Hold what `other`, of the same cache, holds; which is empty then."""
        self.tables, other.tables = other.tables, self.tables
        self.length, other.length = other.length, self.length
        other.release()

    def release(self) -> None:
        """Give every block back; the sequence is empty again."""
        self.length = 0
        for table in self.tables:
            table.clear()


class Part(NamedTuple):
    """New tokens in a row: `count` of them, the first at position `start`, which look at what `sequence` holds."""

    sequence: Sequence
    start: int
    count: int

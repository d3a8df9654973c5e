"""Keys and values in blocks of fixed size, and for each sequence a table of its blocks.

    positions of a sequence    0 1 2 3 | 4 5 6 7 | 8 9
    its block table               5    |    0    |  2       (block_size 4)
    a pool's keys              [layers, kv_heads, blocks, head_dim, block_size]     with room for more blocks
    a pool's values            [layers, kv_heads, blocks, block_size, head_dim]
    scales of each, for int8   [layers, kv_heads, blocks, block_size]

A block may belong to several sequences, which then began alike: the pool counts them, and whoever has to write into
such a block gets a copy of its own first. One that no sequence has any more may be remembered for what it holds
(`prefixes.py`): it lies idle then, until a text that begins so comes again or its place is needed.

In a block the keys stand side by side and so do the dimensions of a value, because that is how attention reads them:
one dimension of many keys at a time, and one value at a time. Layers that see a window of the past keep their blocks in
a pool of their own, where blocks that have left the window are given back.
The idea is PagedAttention's, https://arxiv.org/abs/2309.06180.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from ..config import ModelConfig
from ..errors import OutOfBlocks
from .kept import Kept, as_kept, widened
from .memory import RESERVES, untouched

DEFAULT_BLOCK_SIZE = 32
KV_DTYPES = ("float16", "float32", "int8")  # of keys and values; int8 has a scale, float32, for each head and token
Turn = Callable[[int, np.ndarray], "np.ndarray | None"]  # see `Sequence.close_gap`


class BlockPool:
    """The blocks of all layers with the same window: `keys` and `values`, laid out as above, and scales or None.

    `layers` are their numbers in the model, in order.
    """

    def __init__(
        self, layers: list[int], window: int | None, kv_heads: int, head_dim: int, block_size: int, dtype: str
    ):
        self.layers, self.window, self.block_size = layers, window, block_size
        self.most_blocks: int | None = None  # that it may grow to
        count = len(layers)
        self.keys = np.empty((count, kv_heads, 0, head_dim, block_size), dtype)
        self.values = np.empty((count, kv_heads, 0, block_size, head_dim), dtype)
        self.key_scales = self.value_scales = None
        if self.keys.dtype == np.int8:
            self.key_scales, self.value_scales = (np.empty((count, kv_heads, 0, block_size), np.float32) for _ in "kv")
        self.room = 0  # blocks to have address space for from the first one on: that many can be had without copying
        self._whole: list[np.ndarray | None] = []  # what the arrays are the first blocks of
        self._free: list[int] = []  # a heap: the lowest first, so that a lone sequence gets blocks in a row
        self._shared: dict[int, int] = {}  # how many sequences beyond the first hold a block; those of one are not here
        self._forget: dict[int, Callable[[], None]] = {}  # of the remembered blocks: what to call when one is taken
        self._idle: OrderedDict[int, None] = OrderedDict()  # remembered, of no sequence; the next to be taken first

    @property
    def num_blocks(self) -> int:
        """How many blocks there are, used or free."""
        return self.keys.shape[2]

    @property
    def capacity(self) -> int:
        """How many blocks there is room for: a head's first block comes so many after that of the head before it."""
        return self._whole[0].shape[2] if self._whole else 0

    @property
    def num_free(self) -> int:
        """How many blocks belong to no sequence."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """How many blocks belong to no sequence and are remembered."""
        return len(self._idle)

    @property
    def num_used(self) -> int:
        """How many blocks belong to sequences."""
        return self.num_blocks - self.num_free - self.num_idle

    @property
    def num_available(self) -> int | None:
        """How many blocks `allocate` could give now; None where nothing limits them."""
        if self.most_blocks is None:
            return None
        return len(self._free) + len(self._idle) + max(self.most_blocks - self.num_blocks, 0)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        arrays = (array for array in self._arrays if array is not None)
        return sum(array.itemsize * math.prod((*array.shape[:2], *array.shape[3:])) for array in arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, used or free; not of address space beyond them."""
        return sum(array.nbytes for array in self._arrays if array is not None)

    @property
    def _arrays(self) -> tuple[np.ndarray | None, ...]:
        return self.keys, self.values, self.key_scales, self.value_scales

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks; where too few are free the pool grows, and beyond its limit idle ones are taken.

        Raises `OutOfBlocks`, and takes none, where there are not as many.
        """
        available = self.num_available
        if available is not None and count > available:
            raise OutOfBlocks(f"{count} blocks of the key-value cache are needed, and {available} are left")
        if count > len(self._free):
            wanted = max(self.num_blocks + count - len(self._free), 2 * self.num_blocks)
            self.grow(wanted if self.most_blocks is None else min(wanted, self.most_blocks))
        while count > len(self._free):
            block, _ = self._idle.popitem(last=False)
            self._forget.pop(block)()
            heapq.heappush(self._free, block)
        return [heapq.heappop(self._free) for _ in range(count)]

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back; one that others hold stays theirs. Of those that are remembered, the last is taken last."""
        for block in blocks:
            others = self._shared.get(block, 0)
            if others > 1:
                self._shared[block] = others - 1
            elif others == 1:
                del self._shared[block]
            elif block in self._forget:
                self._idle[block] = None
            else:
                heapq.heappush(self._free, block)

    def remember(self, block: int, forget: Callable[[], None]) -> None:
        """Keep what a block in use holds when it is given back; `forget` is called when its place is taken after all.

        It must be full: nothing more may be written into it.
        """
        self._forget[block] = forget

    def take_up(self, blocks: Iterable[int]) -> None:
        """One more sequence, or the first again, holds these remembered blocks."""
        for block in blocks:
            if block in self._idle:
                del self._idle[block]
            else:
                self.share([block])

    def share(self, blocks: Iterable[int]) -> None:
        """One more sequence holds these blocks."""
        for block in blocks:
            self._shared[block] = self._shared.get(block, 0) + 1

    def is_held_by_others(self, block: int) -> bool:
        """Whether a block belongs to more than one sequence."""
        return block in self._shared

    def is_shared(self, block: int) -> bool:
        """Whether a block is not one sequence's alone to write into: others hold it, or it is remembered."""
        return block in self._shared or block in self._forget

    def copy_of(self, block: int) -> int:
        """A new block that holds what `block` does."""
        (copy,) = self.allocate(1)
        for array in self._arrays:
            if array is not None:
                array[:, :, copy] = array[:, :, block]
        return copy

    def grow(self, num_blocks: int) -> None:
        """Make the pool at least `num_blocks` large; what is in it stays."""
        before = self.num_blocks
        if num_blocks <= before:
            return
        if num_blocks > self.capacity:
            self._whole = self._with_room(num_blocks)
        parts = [None if whole is None else whole[:, :, :num_blocks] for whole in self._whole]
        self.keys, self.values, self.key_scales, self.value_scales = parts
        self.free(range(before, num_blocks))

    def _with_room(self, num_blocks: int) -> list[np.ndarray | None]:
        # all are made before any is kept: there may be no memory for the last
        if self.room > num_blocks:
            with suppress(MemoryError):  # no address space for so much: the pool grows by copying
                return [None if array is None else self._grown(array, self.room) for array in self._arrays]
        return [None if array is None else self._grown(array, num_blocks) for array in self._arrays]

    def _grown(self, old: np.ndarray, num_blocks: int) -> np.ndarray:
        layers, kv_heads, blocks, *block = old.shape
        new = (untouched if self.room else np.empty)((layers, kv_heads, num_blocks, *block), old.dtype)
        new[:, :, :blocks] = old
        return new


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
        shape = *config.cache_shape, block_size
        self.pools = [BlockPool(numbers, window, *shape, dtype) for window, numbers in layers.items()]
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


class BlockTable:
    """A sequence's blocks in one pool: those from number `first` on; the ones before it have left the window.

    A block leaves the table before it is given back, so that an interrupt between the two loses a block, where the
    other order would lend it twice.
    """

    def __init__(self, pool: BlockPool):
        self.pool = pool
        self.first = 0
        self.blocks: list[int] = []
        self.hollow = 0  # positions before this one are not held, though a block may have room for them

    @property
    def first_position(self) -> int:
        """The first position whose key and value are held."""
        return max(self.first * self.pool.block_size, self.hollow)

    def begin_at(self, position: int) -> None:
        """Hold nothing, and nothing before `position` from now on."""
        self.clear()
        self.first, self.hollow = position // self.pool.block_size, position

    def extend_to(self, length: int) -> None:
        """Have blocks for positions up to `length`."""
        missing = self._blocks_for(length) - self.first - len(self.blocks)
        if missing > 0:
            self.blocks += self.pool.allocate(missing)

    def blocks_wanted(self, length: int, count: int) -> int:
        """How many blocks it would take to go on from `length` by `count` tokens."""
        written = self.blocks[max(length // self.pool.block_size - self.first, 0) :]
        copies = sum(self.pool.is_shared(block) for block in written)
        return max(self._blocks_for(length + count) - self.first - len(self.blocks), 0) + copies

    def blocks_given_back(self, length: int) -> int:
        """How many blocks `drop_unseen` would give back that nobody else holds."""
        unseen = max(self._first_seen(length) // self.pool.block_size - self.first, 0)
        return sum(not self.pool.is_held_by_others(block) for block in self.blocks[:unseen])

    def begin_as(self, other: BlockTable) -> None:
        """Hold what `other` holds."""
        self.pool.share(other.blocks)
        self.first, self.hollow, self.blocks = other.first, other.hollow, list(other.blocks)

    def own_from(self, length: int) -> None:
        """Have to itself, by copies, the blocks that positions from `length` on would be written to."""
        for index in range(max(length // self.pool.block_size - self.first, 0), len(self.blocks)):
            block = self.blocks[index]
            if self.pool.is_shared(block):
                self.blocks[index] = self.pool.copy_of(block)
                self.pool.free([block])

    def cut_to(self, length: int) -> None:
        """Give back the blocks that only positions from `length` on use."""
        kept = max(self._blocks_for(length) - self.first, 0)
        dropped, self.blocks = self.blocks[kept:], self.blocks[:kept]
        self.pool.free(dropped)

    def drop_unseen(self, length: int) -> None:
        """Give back the blocks that the token at position `length` and those after it can't see."""
        unseen = self._first_seen(length) // self.pool.block_size - self.first
        if unseen > 0:
            dropped = self.blocks[:unseen]
            self.first, self.blocks = self.first + unseen, self.blocks[unseen:]
            self.pool.free(dropped)

    def holds_window_of(self, length: int) -> bool:
        """Whether all that the token at position `length` sees is held."""
        return self.first_position <= self._first_seen(length)

    def clear(self) -> None:
        """Give every block back."""
        dropped = self.blocks
        self.first, self.hollow, self.blocks = 0, 0, []
        self.pool.free(reversed(dropped))  # the beginning of a text is what others may share: it is remembered longest

    def close_gap(self, keep: int, drop: int, length: int, turn: Turn) -> None:
        """See `Sequence.close_gap`."""
        begin = max(self.first_position, keep + drop)
        moved = [self.get(place, begin, length) for place in range(len(self.pool.layers))]
        if self.first_position > 0:  # what stands before the gap has left the window
            self.begin_at(begin - drop)
        self.cut_to(length - drop)
        self.own_from(begin - drop)
        self.extend_to(length - drop)
        for place, (layer, kept) in enumerate(zip(self.pool.layers, moved, strict=True)):
            turned = turn(layer, widened(kept.keys, kept.key_scales))
            if turned is not None:
                keys, scales = as_kept(turned, self.pool.keys.dtype)
                kept = kept._replace(keys=keys, key_scales=scales)
            self.put(place, begin - drop, kept)

    def store(self, layer: int, begin: int, key: np.ndarray, value: np.ndarray) -> None:
        """Write float32 [n, kv_heads, head_dim] for the positions from `begin` on."""
        (keys, key_scales), (values, value_scales) = (as_kept(part, self.pool.keys.dtype) for part in (key, value))
        self.put(layer, begin, Kept(keys, values, key_scales, value_scales))

    def load(self, layer: int, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Copies of what was stored for the positions from `begin` to `end`: [n, kv_heads, head_dim] each.

        They are as they are kept, but int8 comes back as float32.
        """
        kept = self.get(layer, begin, end)
        if kept.key_scales is None:
            return kept.keys, kept.values
        return widened(kept.keys, kept.key_scales), widened(kept.values, kept.value_scales)

    def put(self, layer: int, begin: int, kept: Kept) -> None:
        """Write for the positions from `begin` on what `get` gave, here or in another cache of the same dtype."""
        blocks, offsets = self._places(begin, begin + len(kept.keys))
        pool = self.pool
        # indices on either side of the slices put the positions first
        pool.keys[layer][:, blocks, :, offsets] = kept.keys
        pool.values[layer][:, blocks, offsets] = kept.values.swapaxes(0, 1)
        if pool.key_scales is not None:
            pool.key_scales[layer][:, blocks, offsets] = kept.key_scales.T
            pool.value_scales[layer][:, blocks, offsets] = kept.value_scales.T

    def get(self, layer: int, begin: int, end: int) -> Kept:
        """Copies of what is kept of the positions from `begin` to `end`."""
        blocks, offsets = self._places(begin, end)
        pool = self.pool
        keys, values = pool.keys[layer][:, blocks, :, offsets], pool.values[layer][:, blocks, offsets].swapaxes(0, 1)
        if pool.key_scales is None:
            return Kept(keys, values)
        return Kept(keys, values, *(s[layer][:, blocks, offsets].T for s in (pool.key_scales, pool.value_scales)))

    def _places(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        positions = np.arange(begin, end)
        size = self.pool.block_size
        return np.array(self.blocks, np.int64)[positions // size - self.first], positions % size

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.pool.block_size)

    def _first_seen(self, position: int) -> int:
        return 0 if self.pool.window is None else max(position - self.pool.window + 1, 0)

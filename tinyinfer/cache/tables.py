"""The table of a sequence's blocks in one pool, and what is written there and read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .forms import Kept
from .pool import BlockPool

Turn = Callable[[int, np.ndarray], "np.ndarray | None"]  # see `Sequence.close_gap`


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
        form = self.pool.forms.keys
        for place, (layer, kept) in enumerate(zip(self.pool.layers, moved, strict=True)):
            turned = turn(layer, form.widened(kept.keys, kept.key_scales, self.pool.head_dim))
            if turned is not None:
                keys, scales = form.kept(turned)
                kept = kept._replace(keys=keys, key_scales=scales)
            self.put(place, begin - drop, kept)

    def store(self, layer: int, begin: int, key: np.ndarray, value: np.ndarray) -> None:
        """Write float32 [n, kv_heads, head_dim] for the positions from `begin` on."""
        forms = self.pool.forms
        (keys, key_scales), (values, value_scales) = forms.keys.kept(key), forms.values.kept(value)
        self.put(layer, begin, Kept(keys, values, key_scales, value_scales))

    def load(self, layer: int, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of the positions from `begin` to `end`: float32 [n, kv_heads, head_dim] each."""
        forms, dim, kept = self.pool.forms, self.pool.head_dim, self.get(layer, begin, end)
        keys = forms.keys.widened(kept.keys, kept.key_scales, dim)
        return keys, forms.values.widened(kept.values, kept.value_scales, dim)

    def put(self, layer: int, begin: int, kept: Kept) -> None:
        """Write for the positions from `begin` on what `get` gave, here or in another cache of the same dtype."""
        blocks, offsets = self._places(begin, begin + len(kept.keys))
        pool = self.pool
        # indices on either side of the slices put the positions first
        pool.keys[layer][:, blocks, :, offsets] = kept.keys
        pool.values[layer][:, blocks, offsets] = kept.values.swapaxes(0, 1)
        for scales, of_these in ((pool.key_scales, kept.key_scales), (pool.value_scales, kept.value_scales)):
            if scales is not None:
                scales[layer][:, blocks, offsets] = of_these.T

    def get(self, layer: int, begin: int, end: int) -> Kept:
        """Copies of what is kept of the positions from `begin` to `end`."""
        blocks, offsets = self._places(begin, end)
        pool = self.pool
        keys, values = pool.keys[layer][:, blocks, :, offsets], pool.values[layer][:, blocks, offsets].swapaxes(0, 1)
        scales = (
            None if kept is None else kept[layer][:, blocks, offsets].T for kept in (pool.key_scales, pool.value_scales)
        )
        return Kept(keys, values, *scales)

    def _places(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        positions = np.arange(begin, end)
        size = self.pool.block_size
        return np.array(self.blocks, np.int64)[positions // size - self.first], positions % size

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.pool.block_size)

    def _first_seen(self, position: int) -> int:
        return 0 if self.pool.window is None else max(position - self.pool.window + 1, 0)

"""The blocks themselves: who holds them, and the arrays that they lie in. `blocks.py` draws these."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np

from ..errors import OutOfBlocks
from .forms import SCALE, KVForms
from .memory import untouched


class BlockPool:
    """The blocks of all layers with the same window: `keys` and `values`, and scales or None for forms without.

    `layers` are their numbers in the model, in order.
    """

    def __init__(
        self, layers: list[int], window: int | None, kv_heads: int, head_dim: int, block_size: int, forms: KVForms
    ):
        self.layers, self.window, self.block_size = layers, window, block_size
        self.kv_heads, self.head_dim, self.forms = kv_heads, head_dim, forms
        self.most_blocks: int | None = None  # that it may grow to
        none, (keys, values) = (len(layers), kv_heads, 0), forms
        self.keys = np.empty((*none, keys.width(head_dim), block_size), keys.dtype)
        self.values = np.empty((*none, block_size, values.width(head_dim)), values.dtype)
        self.key_scales, self.value_scales = (
            np.empty((*none, block_size), SCALE) if form.has_scales else None for form in forms
        )
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

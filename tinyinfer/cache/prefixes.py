"""Beginnings of texts whose keys and values are still there: a tree of full blocks, found by the exact ids.

    root (adapters, rotary lengths)
     └─ ids of block 0 ── ids of block 1 ─┬─ ids of block 2
                                          └─ ids of another block 2

What changes keys and values beside the ids is in the root; model, tokenizer, template and kind of cache are those of
the cache that it stands beside. The ids themselves are the key, and no digest of them, so nothing is ever mistaken.
The idea is vLLM's automatic prefix caching, https://docs.vllm.ai/en/latest/design/prefix_caching.html, and
RadixAttention's, https://arxiv.org/abs/2312.07104.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Numbers
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from .blocks import KVCache, Sequence
from .pool import BlockPool

Key = tuple[Hashable, tuple[int, ...]]  # the number of the node before, or the root, and the ids


@dataclass(eq=False)
class Node:
    """A full block of a text: where its keys and values are, in each pool; None where they are not any more."""

    number: int  # never used twice, so that what followed a node that is gone is never found again
    key: Key
    blocks: list[int | None]


@dataclass
class Trail:
    """How far the beginning of a sequence is known to the tree."""

    parent: Hashable  # the number of the last node, or the root
    blocks: int = 0  # how many nodes there are before it, with it


@dataclass
class Counts:
    """How the tree served: tokens asked for and found; blocks that were taken from it."""

    asked_tokens: int = 0
    found_tokens: int = 0
    evicted_blocks: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Of the tokens asked for, the share that was found; None where none was asked for."""
        return self.found_tokens / self.asked_tokens if self.asked_tokens else None


@dataclass
class PrefixTree:
    """The remembered blocks of one cache."""

    cache: KVCache
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        """Nothing is remembered yet."""
        self._numbers = count()
        self._nodes: dict[Key, Node] = {}

    def begin(self, sequence: Sequence, root: Hashable, ids: Numbers[int]) -> tuple[int, Trail]:
        """Let an empty sequence hold what is there of the beginning of `ids`, at most all but the last.

        Gives how many tokens that is, and where it stands in the tree.
        """
        found = self._found(("root", root), ids[:-1])
        while found and not self._goes_on(found):
            found.pop()
        for number, table in enumerate(sequence.tables):
            table.first = self._first_needed(table.pool, len(found))
            table.blocks = [node.blocks[number] for node in found[table.first :]]
            table.pool.take_up(table.blocks)
        sequence.length = len(found) * self.cache.block_size
        self.counts.asked_tokens += len(ids)
        self.counts.found_tokens += sequence.length
        return sequence.length, Trail(found[-1].number if found else ("root", root), len(found))

    def extend(self, trail: Trail, sequence: Sequence, ids: Numbers[int]) -> None:
        """Remember the blocks of a sequence that `ids`, all that it holds, have filled since the trail's end."""
        size = self.cache.block_size
        while (trail.blocks + 1) * size <= len(ids):
            begin = trail.blocks * size
            node = self._node((trail.parent, tuple(ids[begin : begin + size])))
            for number, table in enumerate(sequence.tables):
                place = trail.blocks - table.first
                if node.blocks[number] is None and 0 <= place < len(table.blocks):
                    node.blocks[number] = table.blocks[place]
                    table.pool.remember(table.blocks[place], partial(self._forget, node, number))
            trail.parent, trail.blocks = node.number, trail.blocks + 1

    def _node(self, key: Key) -> Node:
        if key not in self._nodes:
            self._nodes[key] = Node(next(self._numbers), key, [None] * len(self.cache.pools))
        return self._nodes[key]

    def _found(self, parent: Hashable, ids: Numbers[int]) -> list[Node]:
        size, found = self.cache.block_size, []
        for begin in range(0, len(ids) - size + 1, size):
            node = self._nodes.get((parent, tuple(ids[begin : begin + size])))
            if node is None:
                break
            found.append(node)
            parent = node.number
        return found

    def _goes_on(self, found: list[Node]) -> bool:
        """Whether all that the token after these blocks sees is there."""
        return all(
            node.blocks[number] is not None
            for number, pool in enumerate(self.cache.pools)
            for node in found[self._first_needed(pool, len(found)) :]
        )

    def _first_needed(self, pool: BlockPool, blocks: int) -> int:
        if pool.window is None:
            return 0
        return max(blocks * pool.block_size - pool.window + 1, 0) // pool.block_size

    def _forget(self, node: Node, number: int) -> None:
        """A block is taken; a node without any goes, and what stands after it is found no more."""
        node.blocks[number] = None
        self.counts.evicted_blocks += 1
        if all(block is None for block in node.blocks):
            del self._nodes[node.key]

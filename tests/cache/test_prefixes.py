"""Remembered beginnings: only what a cold run would have written is found, no block is lost or lent twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.cache.test_blocks import config_of, held
from tinyinfer.cache import KVCache, PrefixTree, Sequence
from tinyinfer.cache.prefixes import Trail
from tinyinfer.errors import OutOfBlocks

TEXT = list(range(10, 20))


def tree_of(windows: list[int | None], most_blocks: int = 100, block_size: int = 4) -> PrefixTree:
    cache = KVCache(config_of(windows), block_size)
    cache.limit(most_blocks * cache.block_bytes)
    return PrefixTree(cache)


def fed(tree: PrefixTree, ids: list[int], root: Any = None) -> Sequence:
    """A sequence that was run over `ids`, and told the tree."""
    sequence = tree.cache.sequence()
    kept, trail = tree.begin(sequence, root, ids)
    sequence.reserve(len(ids) - kept)
    sequence.advance(len(ids) - kept)
    tree.extend(trail, sequence, ids)
    return sequence


def found(tree: PrefixTree, ids: list[int], root: Any = None) -> int:
    sequence = tree.cache.sequence()
    kept, _ = tree.begin(sequence, root, ids)
    assert sequence.length == kept
    sequence.release()
    return kept


@pytest.mark.parametrize("released", [False, True])
def test_full_blocks_of_the_same_beginning_are_found(released: bool):
    tree = tree_of([None])
    sequence = fed(tree, TEXT)
    if released:
        sequence.release()
    assert found(tree, TEXT) == 8
    assert found(tree, [*TEXT[:8], 99]) == 8
    assert found(tree, TEXT[:8]) == 4  # the last token is run again: its logits are wanted
    assert found(tree, [*TEXT[:7], 99, *TEXT[8:]]) == 4
    assert found(tree, [99, *TEXT[1:]]) == 0
    assert found(tree, TEXT, root="another adapter") == 0


def test_one_block_serves_several_texts_at_once():
    tree = tree_of([None])
    first, second = fed(tree, TEXT), fed(tree, [*TEXT[:8], 5, 6, 7])
    assert held(first) == [[0, 1, 2]]
    assert held(second) == [[0, 1, 3]]
    first.release()
    second.release()
    pool = tree.cache.pools[0]
    assert (pool.num_idle, pool.num_free) == (2, pool.num_blocks - 2)


def test_no_one_writes_into_a_block_that_is_remembered():
    tree = tree_of([None])
    sequence = fed(tree, TEXT)
    sequence.rewind(6)
    sequence.reserve(1)
    assert held(sequence) == [[0, 2]]
    assert found(tree, TEXT) == 8


def test_a_window_needs_only_what_it_sees():
    tree = tree_of([None, 5])  # the token at 8 sees from 4 on
    sequence = fed(tree, TEXT)
    sequence.reserve(1)  # the windows' first block is given back, and idle
    assert held(sequence) == [[0, 1, 2], [1, 2]]
    twin = tree.cache.sequence()
    assert tree.begin(twin, None, TEXT)[0] == 8
    assert held(twin) == [[0, 1], [1]]


def test_the_end_of_a_text_is_forgotten_first_and_the_longest_unused_text_too():
    tree = tree_of([None], most_blocks=6)
    old, new = [1] * 12, [2] * 12
    for text in (old, new):
        fed(tree, text).release()
    assert tree.cache.pools[0].num_idle == 6
    other = tree.cache.sequence()
    other.reserve(8)
    assert tree.counts.evicted_blocks == 2
    assert (found(tree, [*old, 0]), found(tree, [*new, 0])) == (4, 12)


def test_beyond_its_limit_a_pool_gives_nothing_and_takes_nothing():
    tree = tree_of([None], most_blocks=3)
    sequence, other = tree.cache.sequence(), tree.cache.sequence()
    sequence.reserve(8)
    assert other.has_room(4)
    assert not other.has_room(5)
    with pytest.raises(OutOfBlocks, match="2 blocks of the key-value cache are needed, and 1 are left"):
        other.reserve(8)
    assert held(other) == [[]]
    assert tree.cache.pools[0].num_available == 1


def test_a_limit_is_in_bytes_and_says_how_many_tokens_that_is():
    cache = KVCache(
        config_of([None, 4]), block_size=4
    )  # float32, two heads of 10: 640 bytes a block of keys and values
    assert cache.block_bytes == 2 * 640
    assert cache.limit(5 * 1280 + 1279) == 20
    sequence = cache.sequence()
    sequence.reserve(20)
    assert cache.nbytes <= 5 * 1280 + 1279


def test_counts_say_what_was_asked_and_found():
    tree = tree_of([None])
    fed(tree, TEXT)
    fed(tree, TEXT)
    assert (tree.counts.asked_tokens, tree.counts.found_tokens, tree.counts.hit_rate) == (20, 8, 0.4)
    assert tree_of([None]).counts.hit_rate is None


# ---- any history


def number(root: Any, ids: list[int]) -> float:
    """What a token's key is made of here: all that stands before it, and itself."""
    return float(hash((root, *ids)) % 2**24)  # which float32 holds


class Histories(RuleBasedStateMachine):
    """Texts over two ids, so that they often begin alike; each token writes what its text up to there says."""

    @initialize(
        windows=st.sampled_from([[None], [3], [None, 2], [4, None, 4]]),
        block_size=st.sampled_from([1, 2, 3]),
        most=st.integers(12, 30),
    )
    def start(self, windows: list[int | None], block_size: int, most: int) -> None:
        self.cache = KVCache(config_of(windows), block_size)
        self.cache.limit(most * self.cache.block_bytes)
        self.tree = PrefixTree(self.cache)
        self.texts: list[tuple[Sequence, Trail, Any, list[int]]] = []

    @precondition(lambda self: len(self.texts) < 4)
    @rule(ids=st.lists(st.integers(0, 1), min_size=1, max_size=12), root=st.integers(0, 1))
    def begin(self, ids: list[int], root: int) -> None:
        sequence = self.cache.sequence()
        kept, trail = self.tree.begin(sequence, root, ids)
        assert kept < len(ids)
        self.texts.append((sequence, trail, root, ids[:kept]))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), ids=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def feed(self, data: Any, ids: list[int]) -> None:
        sequence, trail, root, text = data.draw(st.sampled_from(self.texts))
        if not sequence.has_room(len(ids)):
            with pytest.raises(OutOfBlocks):
                sequence.reserve(len(ids))
            return
        sequence.reserve(len(ids))
        numbers = np.array([number(root, text + ids[: i + 1]) for i in range(len(ids))])
        for table in sequence.tables:
            for layer in range(len(table.pool.keys)):
                written = np.broadcast_to(numbers[:, None, None], (len(ids), 2, 10))
                table.store(layer, sequence.length, written, -written)
        sequence.advance(len(ids))
        text += ids
        self.tree.extend(trail, sequence, text)

    @precondition(lambda self: 0 < len(self.texts) < 4)
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        sequence, trail, root, text = data.draw(st.sampled_from(self.texts))
        self.texts.append((sequence.fork(), Trail(trail.parent, trail.blocks), root, list(text)))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        sequence, *_ = self.texts.pop(data.draw(st.integers(0, len(self.texts) - 1)))
        sequence.release()

    @invariant()
    def each_block_is_held_idle_or_free(self) -> None:
        for index, pool in enumerate(self.cache.pools):
            held = Counter(block for sequence, *_ in self.texts for block in sequence.tables[index].blocks)
            assert sorted([*held, *pool._free, *pool._idle]) == list(range(pool.num_blocks))
            assert {block: count - 1 for block, count in held.items() if count > 1} == pool._shared
            assert set(pool._idle) <= set(pool._forget)
            assert pool.num_blocks <= pool.most_blocks

    @invariant()
    def all_that_a_next_token_sees_is_what_a_cold_run_would_have_written(self) -> None:
        for sequence, _, root, text in self.texts:
            assert sequence.length == len(text)
            for table in sequence.tables:
                window = table.pool.window
                begin = 0 if window is None else max(len(text) - window + 1, 0)
                if begin == len(text):
                    continue
                expected = np.array([number(root, text[: i + 1]) for i in range(begin, len(text))])
                for layer in range(len(table.pool.keys)):
                    keys, values = table.load(layer, begin, len(text))
                    assert (keys == expected[:, None, None]).all()
                    assert (values == -expected[:, None, None]).all()


Histories.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestHistories = Histories.TestCase

"""The block cache: no block twice, none lost, what was written is what is read, and windows that stay small."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.tiny_models import CONFIG, WINDOWED
from tinyinfer.cache import DEFAULT_BLOCK_SIZE, KVCache, Sequence, layer_places
from tinyinfer.config import ModelConfig, read_config


def config_of(windows: list[int | None]) -> ModelConfig:
    """A model with these windows, layer by layer. All that are set are alike."""
    window = next((w for w in windows if w), 1)
    kinds = ["sliding_attention" if w else "full_attention" for w in windows]
    changes = {"layer_types": kinds, "sliding_window": window, "num_hidden_layers": len(windows)}
    return read_config(CONFIG | WINDOWED | changes)


def held(sequence: Sequence) -> list[list[int]]:
    return [list(table.blocks) for table in sequence.tables]


# ---- by hand


def test_layers_of_one_window_share_a_pool():
    config = config_of([4, 4, None, 4, None])
    cache = KVCache(config, block_size=3)
    assert [pool.window for pool in cache.pools] == [4, None]
    assert layer_places(config) == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]
    cache.sequence().reserve(4)
    assert (cache.pools[0].keys.shape, cache.pools[0].values.shape) == ((3, 2, 2, 10, 3), (3, 2, 2, 3, 10))
    assert (cache.pools[1].keys.shape, cache.pools[1].values.shape) == ((2, 2, 2, 10, 3), (2, 2, 2, 3, 10))
    assert cache.nbytes == 2 * 5 * 6 * 2 * 10 * 4
    assert KVCache(config_of([None])).block_size == DEFAULT_BLOCK_SIZE


def test_a_lone_sequence_lies_in_a_row():
    cache = KVCache(config_of([None]), block_size=4)
    sequence = cache.sequence()
    for count in (3, 1, 9, 1, 40):
        sequence.reserve(count)
        sequence.advance(count)
    assert sequence.tables[0].blocks == list(range(14))


def test_keys_stand_side_by_side_in_a_block_and_so_do_the_dimensions_of_a_value():
    cache = KVCache(config_of([None, None]), block_size=4)
    other, sequence = cache.sequence(), cache.sequence()
    sequence.reserve(4)
    other.reserve(4)
    sequence.reserve(7)  # blocks 0 and 2
    key, value = np.random.default_rng(0).standard_normal((2, 5, 2, 10)).astype(np.float32)
    pool, table = cache.pools[0], sequence.tables[0]
    pool.keys[:], pool.values[:] = -1, -1
    table.store(1, 2, key, value)
    for n in range(5):
        block, offset = table.blocks[(n + 2) // 4], (n + 2) % 4
        for head in range(2):
            assert np.array_equal(pool.keys[1, head, block, :, offset], key[n, head])
            assert np.array_equal(pool.values[1, head, block, offset], value[n, head])
    assert (pool.keys != -1).sum() == (pool.values != -1).sum() == key.size
    for begin, end in ((2, 7), (3, 5), (6, 7), (4, 4)):
        found = table.load(1, begin, end)
        assert np.array_equal(found, (key[begin - 2 : end - 2], value[begin - 2 : end - 2]))
        assert not np.shares_memory(found[0], pool.keys)
        assert not np.shares_memory(found[1], pool.values)


def test_reserving_is_nothing_until_it_is_advanced():
    cache = KVCache(config_of([None, 2]), block_size=2)
    sequence = cache.sequence()
    sequence.reserve(5)
    sequence.reserve(5)
    sequence.reserve(1)
    assert sequence.length == 0
    assert held(sequence) == [[0, 1, 2], [0, 1, 2]]
    sequence.advance(1)
    assert sequence.length == 1
    sequence.reserve(4)
    assert held(sequence) == [[0, 1, 2], [0, 1, 2]]


def test_growing_keeps_what_is_there():
    pool = KVCache(config_of([None]), block_size=2).pools[0]
    blocks = pool.allocate(3)
    pool.keys[:] = np.arange(3)[:, None, None]
    pool.values[:] = -np.arange(3)[:, None, None]
    more = pool.allocate(5)
    assert sorted(blocks + more) == list(range(8))
    assert pool.num_blocks == 8
    assert (pool.keys[:, :, :3] == np.arange(3)[:, None, None]).all()
    assert (pool.values[:, :, :3] == -np.arange(3)[:, None, None]).all()
    pool.grow(4)  # no smaller
    assert (pool.num_blocks, pool.num_free) == (8, 0)


def test_no_memory_for_more_leaves_the_pool_as_it_was(monkeypatch: pytest.MonkeyPatch):
    pool = KVCache(config_of([None]), block_size=2).pools[0]
    blocks = pool.allocate(2)
    grown, calls = pool._grown, []

    def second_fails(old: np.ndarray, num_blocks: int) -> np.ndarray:
        calls.append(num_blocks)
        if len(calls) == 2:
            raise MemoryError
        return grown(old, num_blocks)

    monkeypatch.setattr(pool, "_grown", second_fails)
    with pytest.raises(MemoryError):
        pool.allocate(3)
    assert pool.keys.shape == (1, 2, 2, 10, 2)
    assert pool.values.shape == (1, 2, 2, 2, 10)
    assert (pool.num_blocks, pool.num_free) == (2, 0)
    assert sorted(blocks + pool.allocate(3)) == list(range(5))


def test_growing_costs_little_a_token():
    """Doubling: a token at a time up to n blocks copies fewer than 2 n blocks in all."""
    cache = KVCache(config_of([None]), block_size=1)
    sequence, copied, before = cache.sequence(), 0, 0
    for _ in range(1000):
        sequence.reserve(1)
        sequence.advance(1)
        now = cache.pools[0].num_blocks
        copied += before if now != before else 0
        before = now
    assert copied < 2 * 1000
    assert before < 2 * 1000


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 32])
@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_a_window_holds_no_more_than_it_needs(chunk: int, block_size: int):
    """However long the text: the window before a chunk, the chunk, and the parts of blocks at either end."""
    window = 4
    cache = KVCache(config_of([window, window, None]), block_size)
    sequence = cache.sequence()
    most = -(-(window - 1 + chunk) // block_size) + 1
    for _ in range(300 // chunk):
        sequence.reserve(chunk)
        assert len(sequence.tables[0].blocks) <= most
        sequence.advance(chunk)
    sequence.reserve(0)
    assert len(sequence.tables[0].blocks) <= -(-(window - 1) // block_size) + 1
    assert cache.pools[0].num_blocks <= 2 * most  # a pool grows by doubling
    assert len(sequence.tables[1].blocks) == -(-sequence.length // block_size)


def test_rewinding_gives_blocks_back():
    cache = KVCache(config_of([None]), block_size=4)
    sequence = cache.sequence()
    sequence.reserve(11)
    sequence.advance(11)
    for length, blocks in ((11, 3), (9, 3), (8, 2), (1, 1), (0, 0)):
        sequence.rewind(length)
        assert (sequence.length, len(sequence.tables[0].blocks)) == (length, blocks)
        assert cache.pools[0].num_free == cache.pools[0].num_blocks - blocks


@pytest.mark.parametrize("length", [-1, 6, 100])
def test_rewinding_to_where_it_never_was(length: int):
    sequence = KVCache(config_of([None])).sequence()
    sequence.reserve(5)
    sequence.advance(5)
    assert not sequence.can_rewind(length)
    with pytest.raises(ValueError, match=f"5 tokens can't be rewound to {length}"):
        sequence.rewind(length)
    assert sequence.length == 5


def test_rewinding_further_than_a_window_remembers():
    """With blocks of one token and a window of 4, after 10 tokens those from 7 on are held: only 10 can go on.

    But only once what follows has made room for itself: what came last may have been a draft.
    """
    cache = KVCache(config_of([4, None]), block_size=1)
    sequence = cache.sequence()
    sequence.reserve(10)
    sequence.advance(10)
    assert all(sequence.can_rewind(n) for n in range(11))
    sequence.reserve(0)
    assert [n for n in range(11) if sequence.can_rewind(n)] == [10]
    with pytest.raises(ValueError, match="can't be rewound"):
        sequence.rewind(9)
    assert held(sequence) == [[7, 8, 9], list(range(10))]
    wide = KVCache(config_of([4, None]), block_size=4).sequence()
    wide.reserve(10)
    wide.advance(10)
    wide.reserve(0)  # positions from 4 on are held; 7 sees them from 4 on
    assert [n for n in range(11) if wide.can_rewind(n)] == [7, 8, 9, 10]


def test_releasing_twice_gives_back_once():
    cache = KVCache(config_of([3, None]), block_size=2)
    sequence = cache.sequence()
    sequence.reserve(9)
    sequence.advance(9)
    sequence.release()
    sequence.release()
    assert sequence.length == 0
    for pool in cache.pools:
        assert sorted(pool.allocate(pool.num_blocks)) == list(range(pool.num_blocks))


def test_a_fork_shares_blocks_until_one_of_the_two_writes():
    cache = KVCache(config_of([None]), block_size=4)
    sequence = cache.sequence()
    sequence.reserve(10)
    numbers = np.arange(20, dtype=np.float32).repeat(10).reshape(10, 2, 10)
    sequence.tables[0].store(0, 0, numbers, -numbers)
    sequence.advance(10)
    twin = sequence.fork()
    assert held(sequence) == held(twin) == [[0, 1, 2]]
    assert cache.pools[0].num_blocks == 3
    twin.reserve(1)  # position 10 stands in the third block, which becomes two; full ones stay one
    assert (held(sequence), held(twin)) == ([[0, 1, 2]], [[0, 1, 3]])
    twin.tables[0].store(0, 10, numbers[:1] + 99, numbers[:1])
    twin.advance(1)
    sequence.reserve(1)
    assert held(sequence) == [[0, 1, 2]]  # it is the only one left who holds it
    for one in (sequence, twin):
        assert np.array_equal(one.tables[0].load(0, 0, 10)[0], numbers)
    sequence.release()
    assert np.array_equal(twin.tables[0].load(0, 0, 10)[1], -numbers)
    twin.release()
    assert sorted(cache.pools[0].allocate(4)) == [0, 1, 2, 3]


def test_three_holders_give_back_three_times():
    cache = KVCache(config_of([None]), block_size=4)
    first = cache.sequence()
    first.reserve(4)
    first.advance(4)
    others = [first.fork(), first.fork()]
    for sequence in (first, *others):
        assert cache.pools[0].num_free == 0
        sequence.release()
    assert cache.pools[0].num_free == 1


# ---- any history


class Histories(RuleBasedStateMachine):
    """Several sequences over one cache. Each token writes a number of its own, and lists say what should be held."""

    @initialize(
        windows=st.sampled_from([[None], [3], [1, None], [4, 4, None], [5, None, 5]]),
        block_size=st.sampled_from([1, 2, 3, 4, 7]),
    )
    def start(self, windows: list[int | None], block_size: int) -> None:
        self.config = config_of(windows)
        self.cache = KVCache(self.config, block_size)
        self.texts: list[tuple[Sequence, list[float]]] = []
        self.written = 0

    @precondition(lambda self: len(self.texts) < 4)
    @rule()
    def begin(self) -> None:
        self.texts.append((self.cache.sequence(), []))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), count=st.integers(1, 9), more=st.integers(0, 3))
    def feed(self, data: Any, count: int, more: int) -> None:
        """As a forward pass does; it may have reserved more before, and failed."""
        sequence, text = data.draw(st.sampled_from(self.texts))
        sequence.reserve(count + more)
        numbers = [float(self.written + i) for i in range(count)]
        self.written += count
        begin = sequence.length
        for table in sequence.tables:
            for layer in range(len(table.pool.keys)):
                written = np.broadcast_to((np.array(numbers) + layer / 8)[:, None, None], (count, 2, 10))
                table.store(layer, begin, written, -written)
        sequence.advance(count)
        text += numbers

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def rewind(self, data: Any) -> None:
        sequence, text = data.draw(st.sampled_from(self.texts))
        length = data.draw(st.integers(0, len(text)))
        if sequence.can_rewind(length):
            sequence.rewind(length)
            del text[length:]
        else:
            assert any(table.pool.window for table in sequence.tables)
            assert length < len(text)

    @precondition(lambda self: 0 < len(self.texts) < 4)
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        sequence, text = data.draw(st.sampled_from(self.texts))
        free = [pool.num_free for pool in self.cache.pools]
        self.texts.append((sequence.fork(), list(text)))
        assert [pool.num_free for pool in self.cache.pools] == free

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), gone=st.booleans())
    def release(self, data: Any, gone: bool) -> None:
        place = data.draw(st.integers(0, len(self.texts) - 1))
        sequence, text = self.texts[place]
        sequence.release()
        text.clear()
        if gone:
            del self.texts[place]

    @invariant()
    def every_holder_of_a_block_is_counted_and_none_is_lost(self) -> None:
        for index, pool in enumerate(self.cache.pools):
            held = Counter(block for sequence, _ in self.texts for block in set(sequence.tables[index].blocks))
            assert held.total() == sum(len(sequence.tables[index].blocks) for sequence, _ in self.texts)
            assert pool.num_free == len(pool._free)
            assert sorted([*held, *pool._free]) == list(range(pool.num_blocks))
            assert [pool.is_shared(block) for block in held] == [count > 1 for count in held.values()]

    @invariant()
    def lengths_are_those_of_the_texts(self) -> None:
        assert all(sequence.length == len(text) for sequence, text in self.texts)
        assert all(sequence.can_rewind(sequence.length) for sequence, _ in self.texts)

    @invariant()
    def all_that_a_next_token_sees_is_what_was_written(self) -> None:
        for sequence, text in self.texts:
            for table in sequence.tables:
                window = table.pool.window
                begin = 0 if window is None else max(len(text) - window + 1, 0)
                assert table.first_position <= begin
                if begin == len(text):
                    continue
                for layer in range(len(table.pool.keys)):
                    keys, values = table.load(layer, begin, len(text))
                    expected = np.array(text[begin:]) + layer / 8
                    assert keys.shape == values.shape == (len(expected), 2, 10)
                    assert (keys == expected[:, None, None]).all()
                    assert (values == -expected[:, None, None]).all()


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestHistories = Histories.TestCase

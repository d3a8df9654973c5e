"""Trees of new tokens: every way to a leaf holds its own text, and one of them is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache.test_blocks import config_of
from tinyinfer.cache import Branches, KVCache


def numbers(count: int, first: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.float64).repeat(20).reshape(count, 2, 10)


def write(sequence, new: np.ndarray) -> None:
    """As a forward pass does."""
    sequence.reserve(len(new))
    parts = sequence.parts(len(new))
    rows = np.split(new, np.cumsum([part.count for part in parts])[:-1])
    for (way, start, _), of_part in zip(parts, rows, strict=True):
        for table in way.tables:
            table.store(0, start, of_part, -of_part)
    if isinstance(sequence, Branches):
        positions = [part.start + i for part in parts for i in range(part.count)]
        for row, part in sequence.also_written():
            for table in parts[part].sequence.tables:
                table.store(0, positions[row], new[row : row + 1], -new[row : row + 1])
    sequence.advance(len(new))


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    return [-1, *(draw(st.integers(0, row - 1)) for row in range(1, draw(st.integers(1, 9))))]


@settings(max_examples=150, deadline=None)
@given(
    parents=trees(), before=st.integers(0, 13), block_size=st.sampled_from([1, 2, 3, 4, 32]), data=st.data(),
    windows=st.sampled_from([[None], [3], [4, None], [1]]), forked=st.booleans(),
)  # fmt: skip
def test_any_way_of_any_tree_can_be_kept(parents, before: int, block_size: int, data, windows, forked: bool):
    cache = KVCache(config_of(windows), block_size)
    sequence = cache.sequence()
    for i in range(before):
        write(sequence, numbers(1, i))
    other = sequence.fork() if forked else None
    branches = Branches(sequence, parents)
    write(branches, numbers(len(parents), 100))
    assert (sequence.length, branches.length) == (before, before)
    row = data.draw(st.integers(0, len(parents) - 1))
    branches.keep(row)
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    text = [*range(before), *(100 + i for i in path)]
    assert sequence.length == len(text)
    for table in sequence.tables:
        window = table.pool.window
        begin = 0 if window is None else max(len(text) - window + 1, 0)
        for way in (sequence, sequence.fork()):
            found = way.tables[sequence.tables.index(table)].load(0, begin, len(text))[0][:, 0, 0]
            assert found.tolist() == text[begin:]
            if way is not sequence:
                way.release()
    for length in range(before, len(text) + 1):  # nothing is given back before what follows is known
        assert sequence.can_rewind(length)
    sequence.release()
    if other:
        other.release()
    for pool in cache.pools:
        assert pool.num_free == pool.num_blocks
        assert not pool._shared


def test_giving_up_leaves_what_was_there():
    sequence = KVCache(config_of([None]), 4).sequence()
    write(sequence, numbers(6, 0))
    branches = Branches(sequence, [-1, 0, 0, 0])
    branches.reserve(4)
    branches.give_up()
    assert sequence.length == 6
    assert sequence.tables[0].load(0, 0, 6)[0][:, 0, 0].tolist() == list(range(6))
    pool = sequence.cache.pools[0]
    assert pool.num_free == pool.num_blocks - len(sequence.tables[0].blocks)


@pytest.mark.parametrize("parents", [[], [0], [-1, -1], [-1, 1], [-1, 0, 5], [-2, 0]])
def test_what_is_no_tree(parents: list[int]):
    with pytest.raises(ValueError, match="expected -1, and then"):
        Branches(KVCache(config_of([None])).sequence(), parents)

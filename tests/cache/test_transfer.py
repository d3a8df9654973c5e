"""What a sequence holds, out of one cache and into another: the same numbers, and no more claimed than is there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache.test_blocks import config_of
from tinyinfer.cache import KV_DTYPES, KVCache, Sequence, arrays_of, layout_of, sequence_from
from tinyinfer.errors import BadCheckpoint

CONFIG = config_of([5, None, 5, None])


def filled(length: int, block_size: int, dtype: str, step: int = 3) -> Sequence:
    """A sequence of random numbers, written a few tokens at a time."""
    sequence, rng = KVCache(CONFIG, block_size, dtype).sequence(), np.random.default_rng(length)
    for begin in range(0, length, step):
        count = min(step, length - begin)
        sequence.reserve(count)
        for table in sequence.tables:
            for place in range(len(table.pool.layers)):
                table.store(place, begin, *rng.standard_normal((2, count, 2, 10)).astype(np.float32))
        sequence.advance(count)
    return sequence


def exported(sequence: Sequence) -> dict[str, np.ndarray]:
    arrays = dict(arrays_of(sequence))
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == layout_of(sequence)
    return arrays


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(0, 40),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    dtype=st.sampled_from(KV_DTYPES),
    rewound=st.integers(0, 40),
)
def test_the_other_cache_holds_the_same_and_knows_what_it_lacks(
    length: int, sizes: tuple[int, int], dtype: str, rewound: int
):
    before = filled(length, sizes[0], dtype)
    arrays = exported(before)
    after = sequence_from(KVCache(CONFIG, sizes[1], dtype), arrays, length)
    assert after.length == length
    again = exported(after)
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        assert array.tobytes() == again[name].tobytes(), name
    # it can go back exactly as far as what came allows, whatever its blocks have room for
    for table, other in zip(before.tables, after.tables, strict=True):
        assert other.first_position == table.first_position
        assert other.holds_window_of(min(rewound, length)) == table.holds_window_of(min(rewound, length))
    after.reserve(3)
    after.advance(3)
    assert after.length == length + 3


def test_a_fork_knows_what_is_not_held():
    after = sequence_from(KVCache(CONFIG, 8, "float32"), exported(filled(20, 3, "float32")), 20)
    twin = after.fork()
    assert [table.first_position for table in twin.tables] == [12, 0]
    after.release()
    assert [table.first_position for table in after.tables] == [0, 0]
    assert [table.first_position for table in twin.tables] == [12, 0]


def refused(arrays: dict[str, np.ndarray], length: int, dtype: str = "int8") -> str:
    cache = KVCache(CONFIG, 4, dtype)
    with pytest.raises(BadCheckpoint) as error:
        sequence_from(cache, arrays, length)
    return str(error.value)


def test_arrays_that_do_not_fit_are_named():
    good = exported(filled(12, 4, "int8"))
    assert "layers.0.keys: expected at most 7 tokens" in refused(good, 7)
    assert refused(good, 13) == "layers.1.keys: 12 of 13 tokens, fewer than the layer looks at"
    assert refused(good, 12, "float32") == "layers.0.keys: expected float32 [8, 2, 10], found int8 [8, 2, 10]"
    for name in good:
        without = {other: array for other, array in good.items() if other != name}
        assert refused(without, 12) == f"{name} is missing"
        for wrong in (good[name][:-1], good[name][..., :1], good[name].astype(np.float64), good[name][None]):
            assert refused(good | {name: wrong}, 12)
    assert "'layers.4.keys' belongs to no layer" in refused(good | {"layers.4.keys": good["layers.0.keys"]}, 12)
    few = {name: array[-3:] if name[7] in "02" else array for name, array in good.items()}
    assert refused(few, 12) == "layers.0.keys: 3 of 12 tokens, fewer than the layer looks at"
    scalar = {"layers.0.keys": np.int8(3)[()].reshape(())}
    assert "found the shape []" in refused(good | scalar, 12)


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("size", [1, 4, 5, 32])
@pytest.mark.parametrize(("keep", "drop"), [(4, 7), (0, 3), (4, 16), (1, 1), (3, 9)])
@pytest.mark.parametrize("shared", [True, False])
def test_closing_a_gap_moves_values_as_they_lie_and_keys_through_the_turn(
    dtype: str, size: int, keep: int, drop: int, shared: bool
):
    before = filled(24, size, dtype)
    first = [max(table.first_position, 0) for table in before.tables]
    arrays = exported(before)
    twin = before.fork() if shared else None
    seen = []

    def turn(layer: int, keys: np.ndarray) -> np.ndarray | None:
        seen.append(layer)
        return None if layer == 1 else -keys

    before.close_gap(keep, drop, turn)
    assert sorted(seen) == [0, 1, 2, 3]
    assert before.length == 24 - drop
    for table in before.tables:
        began = first[before.tables.index(table)]
        held = [p for p in range(24) if p >= began and (p < keep or p >= keep + drop)]
        if began:
            held = [p for p in held if p >= keep + drop]
        assert table.first_position == (max(began, keep + drop) - drop if began else 0)
        for place, layer in enumerate(table.pool.layers):
            kept = table.get(place, table.first_position, before.length)
            rows = [p - began for p in held]
            assert np.array_equal(kept.values, arrays[f"layers.{layer}.values"][rows])
            signs = np.array([-1 if layer != 1 and p >= keep + drop else 1 for p in held])[:, None, None]
            assert np.array_equal(kept.keys, arrays[f"layers.{layer}.keys"][rows] * signs.astype(kept.keys.dtype))
            if kept.key_scales is not None:
                scales = arrays[f"layers.{layer}.key_scales"][rows]
                np.testing.assert_allclose(kept.key_scales, scales, rtol=3e-7)  # 127 times a scale, over 127
    if twin:
        again = exported(twin)
        assert all(array.tobytes() == again[name].tobytes() for name, array in arrays.items())

"""Attention, compiled and in NumPy, against one query, one head and one key at a time in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.tapes import cache_of, play
from tinyinfer.kernels import plain
from tinyinfer.kernels.plain import TILE_QUERIES
from tinyinfer.kernels.step import Step
from tinyinfer.kernels.table import QUERY_TILE, STRETCH

NO_ROWS = np.zeros(0, np.int64)


def compiled(
    query, key, value, scale, window=None, cap=None, slopes=None, sinks=None, team=2, block_size=5
) -> np.ndarray:
    """What `plain.attend` takes, through a cache whose blocks are not in a row; what is not stored is NaN."""
    (n, heads, dim), (total, kv_heads, _) = query.shape, key.shape
    cache = cache_of([window], kv_heads, dim, block_size)
    sequence, other = cache.sequence(), cache.sequence()
    while sequence.length < total - n:
        count = min(2 * block_size + 1, total - n - sequence.length)
        sequence.reserve(count)
        sequence.advance(count)
        other.reserve(sequence.length)
        other.advance(max(sequence.length - other.length - 1, 0))
    sequence.reserve(n)
    table = sequence.tables[0]
    table.store(0, table.first_position, key[table.first_position :], value[table.first_position :])
    width = (heads + 2 * kv_heads) * dim
    both = np.full((n + 1, width), np.nan, np.float32)
    new = key[total - n :], value[total - n :]
    both[:n] = np.concatenate([part.reshape(n, -1) for part in (query, *new)], axis=1)
    out = np.full((n + 1, heads * dim), 7, np.float32)
    shape = heads, kv_heads, dim
    step = Step([sequence], [n], NO_ROWS, [], np.zeros((0, 0), np.float32))
    rest = 0, 0, window, scale, cap, slopes, sinks
    play(lambda tape: tape.attention(both, shape, out, 0, 0, [None, None], 1e-6, *rest), step, team, shape)
    assert (out[n] == 7).all()
    return out[:n].reshape(n, heads, dim)


WAYS = {"numpy": plain.attend, "compiled": compiled}


@pytest.fixture(params=WAYS)
def attend(request: pytest.FixtureRequest):
    return WAYS[request.param]


def oracle(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float, window: int | None, cap: float | None,
    slopes: np.ndarray | None = None, sinks: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    n, heads, _ = query.shape
    total, kv_heads, _ = key.shape
    out = np.zeros((n, heads, value.shape[2]))
    for i in range(n):
        position = total - n + i
        first = 0 if window is None else max(position - window + 1, 0)
        for head in range(heads):
            shared = head * kv_heads // heads
            scores = key[first : position + 1, shared].astype(np.float64) @ query[i, head].astype(np.float64) * scale
            if cap is not None:
                scores = cap * np.tanh(scores / cap)
            if slopes is not None:
                scores -= float(slopes[head]) * (position - np.arange(first, position + 1))
            nothing = -math.inf if sinks is None else float(sinks[head])
            largest = max(scores.max(), nothing)
            shares = np.exp(scores - largest)
            out[i, head] = shares @ value[first : position + 1, shared] / (shares.sum() + math.exp(nothing - largest))
    return out


def check(
    attend, n: int, total: int, heads: int = 6, kv_heads: int = 2, dim: int = 10, window: int | None = None,
    cap: float | None = None, size: float = 1.0, seed: int = 0, slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Values are of order 1 and so is what comes out.

    An error e in a score moves the shares by about e. Scores are sums of `dim` products, off by up to
    dim * 2^-24 of the sum of their sizes, which for `size` s is about s^2 sqrt(dim); sums over keys add a few 2^-24.
    A cap bends scores by way of e^(2 score / cap), near 1, and so is off by about its last place times the cap.
    """
    rng = np.random.default_rng(seed)
    query = (size * rng.standard_normal((n, heads, dim))).astype(np.float32)
    key = (size * rng.standard_normal((total, kv_heads, dim))).astype(np.float32)
    value = rng.standard_normal((total, kv_heads, dim)).astype(np.float32)
    scale = dim**-0.5
    found = attend(query, key, value, scale, window, cap, slopes, sinks)
    assert found.dtype == np.float32
    assert found.shape == (n, heads, dim)
    tolerance = 2e-6 * (1 + size**2) * math.sqrt(dim) + 3e-7 * (cap or 0)
    expected = oracle(query, key, value, scale, window, cap, slopes, sinks)
    assert np.abs(found - expected).max() < tolerance


@pytest.mark.parametrize("window", [None, 1, 2, 5, 1000])
@pytest.mark.parametrize(("n", "total"), [(1, 1), (1, 2), (1, 33), (2, 2), (5, 5), (5, 33), (33, 33)])
def test_new_tokens_over_old(attend, n: int, total: int, window: int | None):
    check(attend, n, total, window=window)


@pytest.mark.parametrize("window", [None, 1, 7, TILE_QUERIES - 1, TILE_QUERIES, TILE_QUERIES + 1])
@pytest.mark.parametrize(
    "n", [QUERY_TILE, QUERY_TILE + 1, TILE_QUERIES - 1, TILE_QUERIES, TILE_QUERIES + 1, 2 * TILE_QUERIES + 1]
)
def test_at_the_borders_of_tiles(attend, n: int, window: int | None):
    """The last tile may hold a single query, which takes a path of its own."""
    for before in (0, 3):
        check(attend, n, n + before, heads=2, kv_heads=1, dim=4, window=window)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (6, 1), (6, 3), (14, 2)])
@pytest.mark.parametrize("dim", [2, 7, 8, 33, 40, 64, 72])
def test_shapes(attend, heads: int, kv_heads: int, dim: int):
    for n in (1, 9):
        check(attend, n, 20, heads, kv_heads, dim)


@pytest.mark.parametrize("cap", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("size", [1.0, 8.0])
def test_soft_caps(attend, cap: float, size: float):
    for n in (1, 9):
        check(attend, n, 20, cap=cap, size=size)
        check(attend, n, 20, cap=cap, size=size, window=3)


SLOPES = np.float32([2**-1, 2**-2, 2**-4, 2**-8, 3, 0])
SINKS = np.float32([0, 1, -2, 30, -30, 1e-3])


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize(("n", "total"), [(1, 1), (1, 33), (5, 5), (9, 33), (TILE_QUERIES + 3, TILE_QUERIES + 9)])
def test_slopes_and_sinks(attend, n: int, total: int, window: int | None):
    """The farther back, the lower; and looking at nothing. A slope times a distance adds a rounding of its size."""
    check(attend, n, total, window=window, slopes=SLOPES)
    check(attend, n, total, window=window, sinks=SINKS)
    check(attend, n, total, window=window, slopes=SLOPES, sinks=SINKS, cap=5.0)
    check(attend, n, total, 6, 6, window=window, slopes=SLOPES, sinks=SINKS)
    check(attend, n, total, 6, 1, window=window, slopes=SLOPES, sinks=SINKS)


def test_a_sink_that_takes_all_leaves_nothing(attend):
    value = np.ones((6, 1, 2), np.float32)
    found = attend(np.zeros((2, 2, 2), np.float32), value, value, 1.0, sinks=np.float32([200, -200]))
    assert np.abs(found - np.float32([[[0, 0], [1, 1]]] * 2)).max() < 1e-37  # as small as shares become


@pytest.mark.parametrize("size", [1e-20, 1e-3, 8.0])
def test_small_and_large_scores(attend, size: float):
    for n in (1, 9):
        check(attend, n, 20, size=size)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e15])
@pytest.mark.parametrize("n", [1, 9])
def test_scores_so_large_that_one_key_takes_all(attend, n: int, size: float):
    """No overflow: with scores this far apart, what comes out is the value of the best key, exactly."""
    rng = np.random.default_rng(0)
    directions = np.eye(20, dtype=np.float32)[:, None, :]  # a key for each position, alike for all queries
    best = rng.integers(0, 20 - n + 1, n)
    query = size * directions[best]
    value = rng.standard_normal((20, 1, 20)).astype(np.float32)
    found = attend(query, size * directions, value, 1.0)
    assert np.array_equal(found, value[best])


@pytest.mark.parametrize("size", [1e3, 1e18])
def test_scores_far_below_zero(attend, size: float):
    """What counts is how far they are apart: the largest of them takes all, though no smaller than -1e36 itself."""
    key = np.array([3, 1, 2, 2, 3], np.float32)[:, None, None] * np.float32(size) * np.eye(4, dtype=np.float32)[:1]
    query = np.full((1, 1, 4), -size, np.float32)
    value = np.arange(20, dtype=np.float32).reshape(5, 1, 4)
    assert np.array_equal(attend(query, key, value, 1.0)[0], value[1])


def test_equal_scores_give_the_mean(attend):
    value = np.arange(12, dtype=np.float32).reshape(6, 1, 2)
    found = attend(np.zeros((6, 3, 2), np.float32), np.ones((6, 1, 2), np.float32), value, 1.0)
    expected = np.cumsum(value, axis=0) / np.arange(1, 7)[:, None, None]
    assert np.abs(found - expected).max() < 1e-6  # values up to 11: a few units in the last place


@pytest.mark.parametrize("n", [2, TILE_QUERIES + 3])
def test_the_future_and_what_left_the_window_leave_no_trace(attend, n: int):
    """Not even where their scores would take all, or their values overflow a sum."""
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, n + 10, 1, 4)).astype(np.float32)
    alone = attend(query[10:11], key[7:11], value[7:11], 0.5, window=4)
    key[:7], value[:7] = 3e38, 3e38
    key[11:], value[11:] = 1e30, 1e30
    found = attend(query[10:], key, value, 0.5, window=4)
    assert np.abs(found[0] - alone[0]).max() < 1e-6


def test_inputs_are_not_changed_and_may_be_views():
    rng = np.random.default_rng(0)
    big = rng.standard_normal((2, 2, 40, 2, 8)).astype(np.float32)
    query = rng.standard_normal((3, 8, 4)).astype(np.float32).transpose(0, 2, 1)  # [3, 4, 8]
    key, value = big[0, 1, 3:30], big[1, 1, 3:30]
    before = query.copy(), big.copy()
    found = plain.attend(query, key, value, 0.3, 9)
    assert np.array_equal(query, before[0])
    assert np.array_equal(big, before[1])
    copies = plain.attend(query.copy(), key.copy(), value.copy(), 0.3, 9)
    assert np.abs(found - copies).max() < 1e-6


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 20), before=st.integers(0, 20), kv_heads=st.integers(1, 3), share=st.integers(1, 3),
    dim=st.integers(1, 9), window=st.none() | st.integers(1, 45), cap=st.none() | st.floats(0.5, 60),
    way=st.sampled_from(list(WAYS)), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_any_shape(way: str, n: int, before: int, kv_heads: int, share: int, dim: int, window, cap, seed: int):
    check(WAYS[way], n, n + before, kv_heads * share, kv_heads, dim, window, cap, seed=seed)


# ---- the compiled one: blocks, stretches, threads


@pytest.mark.parametrize("window", [None, 3, 50])
@pytest.mark.parametrize("block_size", [1, 4, 8, 13, 16, 32, 40])
def test_blocks_of_any_size(block_size: int, window: int | None):
    rng = np.random.default_rng(block_size)
    for n, total in ((1, 97), (9, 97), (20, 20)):
        query = rng.standard_normal((n, 4, 12)).astype(np.float32)
        key, value = rng.standard_normal((2, total, 2, 12)).astype(np.float32)
        found = compiled(query, key, value, 0.3, window, block_size=block_size)
        assert np.abs(found - oracle(query, key, value, 0.3, window, None)).max() < 1e-5


@pytest.mark.parametrize("cap", [None, 20.0])
@pytest.mark.parametrize("window", [None, 5, 150, 1000])
@pytest.mark.parametrize("total", [1, STRETCH - 1, STRETCH, STRETCH + 1, 777])
def test_stretches_of_the_past_by_any_number_of_threads(total: int, window: int | None, cap: float | None):
    """To the same bit, whoever does them. With a window of 5 all stretches but one or two are empty."""
    rng = np.random.default_rng(total)
    for n in (1, 2):
        n = min(n, total)
        query = rng.standard_normal((n, 2, 8)).astype(np.float32)
        key, value = rng.standard_normal((2, total, 1, 8)).astype(np.float32)
        expected = oracle(query, key, value, 1.0, window, cap)
        first = compiled(query, key, value, 1.0, window, cap, team=1)
        assert np.abs(first - expected).max() < 1e-5
        for team in (1, 2, 3):
            assert np.array_equal(first, compiled(query, key, value, 1.0, window, cap, team=team))


@pytest.mark.parametrize("window", [None, 5, 150])
def test_a_sink_counts_once_however_many_stretches_there_are(window: int | None):
    rng = np.random.default_rng(0)
    for n, total in ((1, 3 * STRETCH), (2, 700), (1, 7)):
        query = rng.standard_normal((n, 2, 8)).astype(np.float32)
        key, value = rng.standard_normal((2, total, 1, 8)).astype(np.float32)
        bent = SLOPES[3:5], np.float32([4, -1])
        expected = oracle(query, key, value, 0.3, window, None, *bent)
        for team in (1, 3):
            assert np.abs(compiled(query, key, value, 0.3, window, None, *bent, team=team) - expected).max() < 1e-5


def test_a_key_that_is_no_number_is_not_passed_over():
    """A NaN score must not come out as some share of the values."""
    rng = np.random.default_rng(0)
    query = rng.standard_normal((2, 2, 8)).astype(np.float32)
    key, value = rng.standard_normal((2, 40, 1, 8)).astype(np.float32)
    key[38, 0, 3] = np.nan
    for way in WAYS.values():
        assert np.isnan(way(query, key, value, 1.0)).all()

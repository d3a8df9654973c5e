"""The probes compute what they say, whoever claims the pieces: an idle loop would be a fast one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.kernels.tapes import TEAMS
from tinyinfer.kernels.probe import COUNTERS, ROWS, multiply_floats, multiply_integers, sum_pieces

RANDOM = np.random.default_rng(0)


def run(team: int, kernel: Callable, *arguments: object) -> None:
    counters = np.zeros(COUNTERS, np.int64)
    TEAMS[team].run(lambda thread: kernel(*arguments, counters))
    kernel(*arguments, counters)  # one that comes late: nothing is left to do


@pytest.mark.parametrize("team", [1, 2, 5])
@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (7, 1000), (64, 24)])
def test_sums_are_numpys(team, shape):
    numbers = RANDOM.integers(-(2**62), 2**62, shape)  # which wrap around
    sums = np.full(shape[0], 99)
    run(team, sum_pieces, numbers, numbers.view(np.uint8), sums)
    np.testing.assert_array_equal(sums, numbers.sum(axis=1))


@pytest.mark.parametrize("team", [1, 2, 5])
@pytest.mark.parametrize(("n", "rounds", "pieces"), [(1, 1, 1), (3, 2, 5), (8, 1, 4), (1, 8, 4)])
def test_integers_are_multiplied_and_added(team, n, rounds, pieces):
    codes = RANDOM.integers(0, 16, (n, ROWS, 4)).astype(np.uint8)
    x = RANDOM.integers(-127, 128, (12, 4)).astype(np.int8)
    codes[:, 0], x[0] = 15, -127  # as much as there can be
    sums = np.full((pieces, 12, ROWS), 99, np.float32)
    run(team, multiply_integers, codes, x, rounds, sums)
    expected = rounds * np.einsum("irj,tj->tr", codes.astype(int), x.astype(int))
    np.testing.assert_array_equal(sums, np.broadcast_to(expected, sums.shape))


@pytest.mark.parametrize("team", [1, 2, 5])
@pytest.mark.parametrize(("n", "rounds", "pieces"), [(1, 1, 1), (3, 2, 5), (64, 7, 4)])
def test_floats_are_multiplied_and_added(team, n, rounds, pieces):
    # whole numbers of which float32 holds every sum
    weights = RANDOM.integers(-9, 10, (n, ROWS)).astype(np.float32)
    x = RANDOM.integers(-9, 10, 12).astype(np.float32)
    sums = np.full((pieces, 12, ROWS), 99, np.float32)
    run(team, multiply_floats, weights, x, rounds, sums)
    np.testing.assert_array_equal(sums, np.broadcast_to(rounds * np.outer(x, weights.sum(axis=0)), sums.shape))

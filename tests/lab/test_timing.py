"""Samples and their order; no test says how long anything takes."""

from __future__ import annotations

import pytest

from tinyinfer.lab.timing import Samples, in_turn, seconds


@pytest.mark.parametrize(
    ("values", "median", "low", "high"),
    [((3.0,), 3, 3, 3), ((5.0, 1.0, 2.0), 2, 1, 5), ((4.0, 1.0, 2.0, 9.0), 3, 1, 9)],
)
def test_median_and_spread(values, median, low, high):
    samples = Samples(values)
    assert (samples.median, samples.low, samples.high) == (median, low, high)


def test_seconds_are_those_of_one_call():
    calls = []
    assert seconds(lambda: calls.append(1)) >= 0
    assert calls == [1]


@pytest.mark.parametrize("warmups", [0, 1, 2])
def test_measures_take_turns_and_warm_up_first(warmups):
    order, ticks = [], []

    def measure(name):
        order.append(name)
        return 10.0 * len(order)

    found = in_turn([lambda: measure("a"), lambda: measure("b")], 3, warmups, lambda: ticks.append(1))
    assert order == ["a", "b"] * (warmups + 3)
    assert len(ticks) == len(order)
    before = 20.0 * warmups
    assert found == [
        Samples((before + 10, before + 30, before + 50)),
        Samples((before + 20, before + 40, before + 60)),
    ]


def test_nothing_to_measure_has_no_samples():
    assert in_turn([], 3) == []

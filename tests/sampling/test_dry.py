"""DRY against a slow and clear version of its definition; breakers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyinfer.sampling.candidates import Candidates
from tinyinfer.sampling.dry import Breakers, Dry, repeat_lengths


def slow_lengths(history: list[int], stop: int) -> dict[int, int]:
    """For each place, count how far back the text before it equals the text's end; `stop` is where comparing ends."""
    found: dict[int, int] = {}
    for place in range(1, len(history)):
        length = 0
        while length < min(place, stop) and history[place - 1 - length] == history[len(history) - 1 - length]:
            length += 1
        if length:
            found[history[place]] = max(found.get(history[place], 0), length)
    return found


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 12))
def test_repeats_are_as_long_as_they_look(history, longest):
    assert repeat_lengths(np.array(history, np.int64), longest) == slow_lengths(history, longest)


@given(st.lists(st.integers(0, 3), max_size=40), st.sampled_from([[(3,)], [(2, 3)], [(3, 3), (1,)], [(0, 1, 0)]]))
def test_no_repeat_reaches_across_a_breaker(history, breakers):
    ends = [i + len(b) for b in breakers for i in range(len(history)) if tuple(history[i : i + len(b)]) == b]
    behind = Breakers(breakers).behind_last(np.array(history, np.int64))
    assert behind == len(history) - max(ends, default=0)
    assert repeat_lengths(np.array(history, np.int64), behind) == slow_lengths(history, behind)


def penalties(dry: Dry, history: list[int]) -> list[float]:
    return (-dry(Candidates(np.arange(6), np.zeros(6)), history).logits).tolist()


def test_the_penalty_grows_with_the_repeat():
    dry = Dry(multiplier=0.5, base=2.0, allowed_length=2, window=-1)
    assert penalties(dry, [1, 2, 3, 0, 2]) == [0] * 6  # one token is allowed
    assert penalties(dry, [1, 2, 3, 0, 1, 2]) == [0, 0, 0, 0.5, 0, 0]
    assert penalties(dry, [0, 1, 2, 3, 5, 0, 1, 2]) == [0, 0, 0, 1, 0, 0]
    assert penalties(dry, [1, 2, 4, 0, 1, 2, 3, 0, 1, 2]) == [0, 0, 0, 1, 0.5, 0]  # of two repeats each has its own
    assert penalties(dry, []) == penalties(dry, [1]) == [0] * 6


def test_a_window_forgets():
    assert penalties(Dry(0.5, 2.0, 2, 6), [1, 2, 3, 0, 1, 2])[3] == 0.5
    for window in (5, 1, 0):
        assert penalties(Dry(0.5, 2.0, 2, window), [1, 2, 3, 0, 1, 2]) == [0] * 6


def test_a_breaker_is_not_penalized_itself():
    history = [1, 2, 5, 0, 1, 2]
    assert penalties(Dry(0.5, 2.0, 2, -1), history)[5] == 0.5
    assert penalties(Dry(0.5, 2.0, 2, -1, Breakers([(5,)])), history) == [0] * 6


@pytest.mark.parametrize("base", [1.0, 1.75, 1e6])
@pytest.mark.filterwarnings("error")
def test_a_text_that_only_repeats_itself_stays_finite(base):
    found = penalties(Dry(5.0, base, 2, -1), [1] * 5000)
    assert np.isfinite(found).all()
    assert found[1] > 4.9
    assert found[2:] == [0] * 4

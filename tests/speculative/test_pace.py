"""How long drafts should be: in a world where everything has a price that the test sets, and chance is seeded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.speculative.scripted import Scripted
from tinyinfer.speculative.acceptance import Acceptance
from tinyinfer.speculative.costs import LONG, Costs
from tinyinfer.speculative.pace import AHEAD, Pace


def run(tokens: int, alpha: float, slope: float, drafting: float = 0.0, longest: int = 8, seed: int = 0, noise=0.0):
    """Seconds that so many tokens take, where plain ones take one each, and the lengths of the drafts.

    A pass takes 1 and `slope` more for each row more; a drafted id is right with chance `alpha` and takes `drafting`.
    """
    rng = np.random.default_rng(seed)
    pace = Pace(Scripted(lambda ids, count: None, longest, adaptive=True))
    seconds, said, lengths = 0.0, 0, []
    while said < tokens:
        count = pace.length(0, tokens - said - 1, lambda n: n)
        lengths.append(count)
        measured = (1 + slope * count) * (1 + noise * rng.exponential())
        seconds += 1 + (slope + drafting) * count
        if count == 0:
            pace.note_plain(measured, 0.0)
            said += 1
            continue
        wrong = np.flatnonzero(rng.random(count) >= alpha)
        accepted = int(wrong[0]) if wrong.size else count
        pace.note_draft(0, count, accepted, accepted < count, accepted + 1, drafting * count, measured, 0.0)
        said += accepted + 1
    return seconds, lengths


def best(alpha: float, slope: float, drafting: float, longest: int) -> float:
    """Tokens a second of the best fixed length."""
    n = np.arange(longest + 1)
    return max((1 - alpha ** (n + 1)) / (1 - alpha) / (1 + (slope + drafting) * n))


@settings(max_examples=40, deadline=None)
@given(
    alpha=st.floats(0, 0.99), slope=st.floats(0, 1.5), drafting=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    tokens=st.sampled_from([100, 300, 1000]), seed=st.integers(0, 1000), noise=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_never_below_097_of_plain(alpha: float, slope: float, drafting: float, tokens: int, seed: int, noise: float):
    """With noise, measurements that are a third too long on average, costs are known less well, and so is what pays."""
    seconds, _ = run(tokens, alpha, slope, drafting, seed=seed, noise=noise)
    assert tokens / seconds > (0.9 if noise else 0.97)


@pytest.mark.parametrize("slope", [0.02, 0.15, 0.4])
@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9, 0.97])
def test_near_the_best_length_in_the_long_run(alpha: float, slope: float):
    """Within a tenth of it: what is learnt fades, so that a text that changes is noticed."""
    seconds, _ = run(2000, alpha, slope)
    assert 2000 / seconds > 0.9 * best(alpha, slope, 0.0, 8)


def test_switched_off_where_nothing_pays_and_tried_again_now_and_then():
    _, lengths = run(5000, 0.1, 0.3)
    assert np.count_nonzero(lengths[100:]) > 5  # it goes on trying
    assert sum(lengths) * 0.3 < 5000 * 0.03


def test_a_text_that_turns_predictable_is_noticed():
    rng, alphas = np.random.default_rng(0), [0.0] * 2000 + [0.95] * 2000
    pace = Pace(Scripted(lambda ids, count: None, 8, adaptive=True))
    said, lengths = 0, []
    while said < len(alphas):
        count = pace.length(0, 100, lambda n: n)
        lengths.append((said, count))
        accepted = 0
        while accepted < count and rng.random() < alphas[said]:
            accepted += 1
        if count:
            pace.note_draft(0, count, accepted, accepted < count, accepted + 1, 0.0, 1 + 0.2 * count, 0.0)
        else:
            pace.note_plain(1.0, 0.0)
        said += accepted + 1
    late = [count for said, count in lengths if said > 3500]
    assert np.mean(late) > 4


def test_a_plain_step_comes_first_and_now_and_then():
    _, lengths = run(3000, 0.99, 0.05)
    assert lengths[0] == 0
    gaps = np.diff(np.flatnonzero(np.array(lengths) == 0))
    assert gaps.max() <= 65


def test_without_adaptation_always_as_long_as_there_is_room():
    pace = Pace(Scripted(lambda ids, count: None, 6))
    assert [pace.length(0, room, lambda n: n) for room in (-1, 0, 3, 6, 50)] == [0, 0, 3, 6, 6]


def test_what_would_have_to_be_read_first_counts():
    pace = Pace(Scripted(lambda ids, count: None, 6, adaptive=True))
    for _ in range(50):
        pace.note_plain(1.0, 0.0)
    assert pace.length(0, 50, lambda n: n) > 0
    assert pace.length(0, 50, lambda n: n, owed=30.0) == 0


def test_what_is_read_once_must_come_in_again_by_as_many_tokens_as_there_were_or_may_be():
    """Drafts of one id, half of them right, at passes of 1 and 1.2: each token saves 1 - 1.2 / 1.5 of a second."""
    drafter = Scripted(lambda ids, count: None, 1, adaptive=True)
    drafter.passes.note(2, 1.2)
    pace = Pace(drafter)
    pays = {}
    for said in range(1, 201):
        pace.note_plain(1.0, 0.0)
        pays[said] = [pace.length(0, room, lambda n: n, owed=20.0) for room in (90, 110, 1000)]
        drafter.passes.note(2, 1.2)
    assert pays[AHEAD] == [0, 0, 0]  # it saves 12.8
    assert pays[99] == [0, 0, 0]
    assert pays[101] == [0, 1, 1]
    assert pays[200] == [0, 1, 1]


def test_how_often_a_drafter_was_right_is_known_to_the_next_text_where_it_is_the_drafters_own():
    for own in (True, False):
        drafter = Scripted(lambda ids, count: None, 4, adaptive=True)
        drafter.acceptances = {} if own else None
        first = Pace(drafter)
        for _ in range(3):
            first.note_plain(1.0, 0.0)
        for _ in range(20):
            first.note_draft(0, 4, 0, True, 1, 0.0, 1.4, 0.0)
        second = Pace(drafter)
        assert (second.length(0, 50, lambda n: n, owed=1.0) == 0) == own


def test_chances_go_by_place_and_fade():
    found = Acceptance()
    assert found.tokens(2) == pytest.approx([1, 1.5, 1.75])
    for _ in range(200):
        found.note(1, True)  # the first is always right, the second never
    assert found.chances(2)[0] > 0.95
    assert found.chances(2)[1] < 0.1
    assert found.tokens(2)[2] == pytest.approx(2, abs=0.1)
    for _ in range(200):
        found.note(0, True)
    assert found.chances(1)[0] < 0.1


# ---- costs


def test_costs_between_and_beyond_what_was_measured():
    costs = Costs()
    assert costs.of(3) == 0
    costs.note(1, 2.0)
    assert costs.of(5) == 4.0  # a first guess: a quarter more for each
    for _ in range(3):
        costs.note(5, 3.0)
    assert [costs.of(size) for size in (1, 3, 5, 9)] == [2.0, 2.5, 3.0, 4.0]
    assert (costs.count(5), costs.count(3)) == (3, 0)


def test_one_disturbed_measurement_rules_nothing_out():
    costs = Costs()
    for _ in range(5):
        costs.note(1, 1.0)
        costs.note(8, 2.0)
    costs.note(4, 30.0)
    assert costs.of(4) == 2.0  # no dearer than what is larger
    costs.note(9, 50.0)
    assert costs.of(9) == 50.0
    for _ in range(LONG + 1):
        costs.note(1, 1.0)
    assert costs.of(9) == 3.0  # forgotten, as size 8 is: a first guess again
    costs.note(8, 2.0)
    assert costs.of(9) == pytest.approx(1 + 8 / 7)


def test_costs_are_the_lower_quartile_of_the_last_measurements():
    costs = Costs()
    found = []
    for seconds in (5.0, 3.0, 9.0, 9.0, 4.0, 4.0, 4.0, 9.0):
        costs.note(2, seconds)
        found.append(costs.of(2))
    assert found == [5.0, 3.0, 3.0, 5.0, 4.0, 4.0, 4.0, 4.0]
    for _ in range(20):
        costs.note(2, 1.0)
    assert costs.of(2) == 1.0

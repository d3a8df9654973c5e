"""How much of a prompt goes beside answers."""

from __future__ import annotations

from tinyinfer.engine.pace import FIRST, LONGEST_RUN, Pace


def test_alone_a_prompt_takes_all():
    assert Pace(1.5).prompt_tokens(0, 500) == 500


def test_unknown_costs_give_little():
    assert Pace(1.5).prompt_tokens(3, 500) == FIRST
    assert Pace(1.5).prompt_tokens(3, 0) == 0


def test_what_a_prompt_costs_by_itself_says_nothing_of_what_it_costs_beside_answers():
    pace = Pace(1.5)
    pace.note(2, 0, 0.010)
    pace.note(0, 500, 0.001)
    assert pace.prompt_tokens(2, 500) == FIRST
    pace.note(2, 1, 0.012)
    assert pace.prompt_tokens(2, 500) == 2


def test_a_step_takes_as_much_longer_as_is_allowed():
    pace = Pace(1.5)
    pace.note(4, 0, 0.010)
    pace.note(4, 20, 0.020)  # half a millisecond for each token of the prompt
    assert pace.prompt_tokens(4, 500) == 10
    assert pace.prompt_tokens(5, 500) == 10  # of a number not seen, what the nearest takes
    assert pace.prompt_tokens(4, 9) == 9


def test_means_follow_what_steps_take():
    pace = Pace(2)
    for _ in range(60):
        pace.note(1, 0, 0.010)
        pace.note(1, 100, 0.020)
    assert pace.prompt_tokens(1, 500) in (99, 100)
    for _ in range(300):
        pace.note(1, 0, 0.030)
        pace.note(1, 100, 0.040)
    assert pace.prompt_tokens(1, 500) in range(290, 301)


def test_a_busy_moment_does_not_count_for_long():
    pace = Pace(2)
    for _ in range(60):
        pace.note(4, 0, 0.010)
    pace.note(4, 10, 0.020)  # a millisecond for each token of the prompt
    assert pace.prompt_tokens(4, 500) in (9, 10)
    pace.note(4, 0, 0.050)
    assert pace.prompt_tokens(4, 500) in (12, 13)  # counted as one that is faster it would be 18


def test_answers_that_grow_slower_while_a_long_prompt_runs_do_not_starve_it():
    pace, alone = Pace(1.8), 0.010
    given = []
    for _ in range(600):
        alone = min(alone + 0.00002, 0.020)
        count = pace.prompt_tokens(4, 500)
        given.append(count)
        pace.note(4, count, alone + 0.001 * count)
    assert given[-100:].count(0) in range(100 // (LONGEST_RUN + 1), 100 // LONGEST_RUN + 1)
    # 16 milliseconds more than 20 are allowed; what is known of the 20 lags behind
    assert 10 <= max(given[-100:]) <= 16


def test_a_prompt_is_left_out_of_no_two_steps_in_a_row():
    pace = Pace(1.8)
    pace.note(1, 0, 0.010)
    for _ in range(LONGEST_RUN):
        assert pace.prompt_tokens(1, 500) > 0
        pace.note(1, 8, 0.011)
    assert pace.prompt_tokens(1, 500) == 0
    assert pace.prompt_tokens(1, 500) > 0  # though nobody said what that step took

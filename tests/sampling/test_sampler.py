"""The steps and the draw: extremes by example, what is kept by rule, frequencies by chi-square."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyinfer.errors import SamplingError
from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.candidates import Candidates, candidates, largest, weights
from tinyinfer.sampling.sampler import Sampler, draw
from tinyinfer.sampling.steps import min_p, temperature, top_k, top_p

FOUR = [1.0, 3.0, 2.0, -math.inf]


def kept(logits, **values):
    """The ids that the whole chain of steps leaves."""
    params = SamplingParams(**{"temperature": 1.0, **values})
    return Sampler(params, len(logits)).distribution(np.float32(logits)).ids.tolist()


def sampled(logits, count=200, **values):
    """The set of ids that `count` draws give."""
    logits = np.float32(logits)
    sampler = Sampler(SamplingParams(**{"seed": 1, **values}), len(logits))
    return {sampler.sample(logits) for _ in range(count)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"top_k": 0}, [0, 1, 2]),
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 2]),
        ({"top_k": 4}, [0, 1, 2]),
        ({"top_k": 10000}, [0, 1, 2]),
        ({"top_p": 0.0}, [1]),
        ({"top_p": 1e-9}, [1]),
        ({"top_p": 1.0}, [0, 1, 2]),
        ({"min_p": 0.0}, [0, 1, 2]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 1, "top_p": 0.0, "min_p": 1.0}, [1]),
        ({"temperature": 100.0}, [0, 1, 2]),
    ],
)
def test_extreme_settings_keep_the_right_tokens(values, expected):
    assert kept(FOUR, **values) == expected
    assert sampled(FOUR, **{"temperature": 1.0, **values}) == set(expected)


@pytest.mark.parametrize("value", [0, 1e-5, 1e-40, 1e-320])
@pytest.mark.filterwarnings("error")
def test_tiny_temperature_is_argmax_without_overflow(value):
    assert sampled(FOUR, temperature=value) == {1}
    assert sampled([-3e38, 3e38, 0.0], temperature=value) == {1}


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("index", [0, 2, 4])
def test_a_non_finite_logit_is_refused_with_its_place(value, bad, index):
    logits = np.zeros(5, np.float32)
    logits[index] = bad
    with pytest.raises(SamplingError, match=rf"found {bad} at id {index}"):
        Sampler(SamplingParams(temperature=value), 5).sample(logits)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_nan_and_all_masked_are_refused(value):
    sampler = Sampler(SamplingParams(temperature=value, top_k=2), 3)
    with pytest.raises(SamplingError, match="nan at id 0"):
        sampler.sample(np.full(3, np.nan, np.float32))
    with pytest.raises(SamplingError, match="all 3 tokens are masked"):
        sampler.sample(np.full(3, -np.inf, np.float32))


def test_nan_is_found_behind_an_infinity():
    with pytest.raises(SamplingError, match="nan at id 1"):
        Sampler(SamplingParams(), 2).sample(np.float32([math.inf, math.nan]))


def test_logits_of_another_shape_are_refused():
    with pytest.raises(SamplingError, match=r"shape \[4\], found \[1, 4\]"):
        Sampler(SamplingParams(), 4).sample(np.zeros((1, 4), np.float32))


def test_equal_logits_lowest_id_when_greedy_all_when_sampled():
    assert sampled(np.zeros(5)) == {0}
    assert sampled(np.zeros(5), temperature=1.0) == {0, 1, 2, 3, 4}
    assert kept(np.zeros(5), top_k=2) == [0, 1]
    assert kept(np.zeros(5), top_p=0.5) == [0, 1, 2]
    assert kept(np.zeros(5), min_p=1.0) == [0, 1, 2, 3, 4]


def test_greedy_and_sampled_rows_of_one_batch_do_not_touch():
    batch = np.float32([FOUR, [-math.inf, 0, 0, -math.inf], FOUR])
    greedy, warm, cold = (
        Sampler(SamplingParams(), 4),
        Sampler(SamplingParams(1, 1.0), 4),
        Sampler(SamplingParams(1, 1e-40), 4),
    )
    rows = [[sampler.sample(row) for sampler, row in zip((greedy, warm, cold), batch, strict=True)] for _ in range(100)]
    assert {row[0] for row in rows} == {1}
    assert {row[1] for row in rows} == {1, 2}
    assert {row[2] for row in rows} == {1}


def test_temperature_comes_before_top_p():
    # Halving the temperature squares the probabilities: 250:90:22:2.5, and two tokens hold 0.93; three are needed
    # for 0.95 of the original.
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert kept(logits, temperature=0.5, top_p=0.8) == [0, 1]
    assert kept(logits, temperature=1.0, top_p=0.81) == [0, 1, 2]
    assert kept(logits, temperature=2.0, top_p=0.8) == [0, 1, 2]


def test_top_p_counts_among_what_top_k_left():
    # Of 0.4, 0.3, 0.2, 0.1 top-k leaves 4/7 and 3/7; 0.5 needs one of these, though two of the original.
    assert kept(np.log([0.4, 0.3, 0.2, 0.1]), top_k=2, top_p=0.5) == [0]


def test_the_same_seed_repeats_and_an_unseeded_run_can_be_replayed():
    logits = np.float32(np.random.default_rng(0).standard_normal(1000))
    runs = []
    first = Sampler(SamplingParams(temperature=1.0), 1000)
    for sampler in (
        first,
        Sampler(first.params, 1000),
        Sampler(SamplingParams(temperature=1.0, seed=first.params.seed), 1000),
    ):
        runs.append([sampler.sample(logits) for _ in range(20)])
    assert runs[0] == runs[1] == runs[2]
    other = Sampler(SamplingParams(temperature=1.0, seed=first.params.seed + 1), 1000)
    assert [other.sample(logits) for _ in range(20)] != runs[0]


def test_a_known_seed_gives_known_ids():
    # Pins the generator and the way a draw uses it: changing either would break everyone's saved seeds.
    sampler = Sampler(SamplingParams(temperature=1.0, seed=42), 8)
    assert [sampler.sample(np.zeros(8, np.float32)) for _ in range(6)] == [6, 3, 6, 5, 0, 7]


def test_a_draw_never_lands_on_a_token_without_weight():
    tokens = Candidates(np.arange(4), np.array([-1e9, 0.0, 0.0, -1e9]))
    assert [draw(tokens, u) for u in (0.0, 0.499, 0.5, 1 - 2**-53)] == [1, 1, 2, 2]


# Few different values, so that ties are common; a wide spread, so that weights underflow.
LOGITS = st.lists(st.one_of(st.integers(-3, 3), st.floats(-800, 800, width=32)), min_size=1, max_size=600)


def tokens_of(logits):
    return candidates(np.float32(logits))


def by_likelihood(tokens):
    """Slow and clear: positions from the likeliest down, the lowest id first among equals."""
    return sorted(range(len(tokens.ids)), key=lambda i: (-tokens.logits[i], tokens.ids[i]))


@given(LOGITS, st.integers(1, 700))
def test_top_k_keeps_the_first_k(logits, k):
    tokens = tokens_of(logits)
    expected = sorted(by_likelihood(tokens)[:k])
    assert largest(tokens.logits, k).tolist() == expected
    result = top_k(tokens, k)
    assert result.ids.tolist() == tokens.ids[expected].tolist()
    assert result.logits.tolist() == tokens.logits[expected].tolist()


@pytest.mark.parametrize("k", [1, 2, 30, 31, 32, 400, 999])
def test_the_largest_of_many_whatever_their_order(k):
    rng = np.random.default_rng(0)
    for values in (
        np.zeros(1000), np.arange(1000.0), -np.arange(1000.0), rng.standard_normal(1007),
        rng.integers(0, 5, 1024) * 1.0, np.where(np.arange(1000) % 62 < 31, 1.0, -math.inf), np.full(1000, -math.inf),
    ):  # fmt: skip
        expected = np.sort(np.argsort(-values, kind="stable")[:k])
        assert largest(values, k).tolist() == expected.tolist()


@given(LOGITS, st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 0.25, 0.5, 1e-9, 1 - 2**-53])))
def test_top_p_keeps_the_shortest_start_that_reaches_p(logits, p):
    tokens = tokens_of(logits)
    order = by_likelihood(tokens)
    result = top_p(tokens, p)
    count = len(result.ids)
    assert result.ids.tolist() == sorted(tokens.ids[order[:count]].tolist())
    mass = weights(tokens)
    wanted = p * math.fsum(mass)
    # sums of at most 600 weights of at most 1, in two orders: they differ by less than 600 * 2**-53 * 600 < 1e-10
    assert math.fsum(mass[order[:count]]) >= wanted - 1e-10
    assert count == 1 or math.fsum(mass[order[: count - 1]]) <= wanted + 1e-10


@given(LOGITS, st.floats(1e-300, 1))
def test_min_p_keeps_what_is_likely_enough(logits, fraction):
    tokens = tokens_of(logits)
    result = min_p(tokens, fraction)
    top = max(tokens.logits)
    expected = [i for i, logit in zip(tokens.ids, tokens.logits, strict=True) if logit >= top + math.log(fraction)]
    assert result.ids.tolist() == expected
    assert len(expected) >= 1


@given(LOGITS, st.floats(1e-300, 1e300))
@pytest.mark.filterwarnings("error")
def test_temperature_keeps_the_order_and_the_best(logits, value):
    tokens = tokens_of(logits)
    result = temperature(tokens, value)
    assert np.isfinite(result.logits).all()
    order = by_likelihood(tokens)
    assert result.ids.tolist() == sorted(tokens.ids[order[: len(result.ids)]].tolist())  # only the least may go
    assert (np.diff(result.logits[by_likelihood(result)]) <= 0).all()
    assert result.logits[np.searchsorted(result.ids, tokens.ids[order[0]])] == result.logits.max()


@given(
    LOGITS,
    st.floats(0.01, 10),
    st.integers(0, 50),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_every_setting_draws_a_kept_token(logits, value, k, p, fraction, uniform):
    params = SamplingParams(temperature=value, top_k=k, top_p=p, min_p=fraction)
    tokens = Sampler(params, len(logits)).distribution(np.float32(logits))
    left = tokens.ids.tolist()
    assert left == sorted(set(left))
    assert draw(tokens, uniform) in left


@pytest.mark.parametrize("size", [300, 5000])
def test_top_p_widens_its_search_on_a_flat_distribution(size):
    logits = np.float32(np.random.default_rng(3).standard_normal(size) * 0.01)
    tokens = candidates(logits)
    result = top_p(tokens, 0.99)
    mass = np.sort(weights(tokens))[::-1]
    assert len(result.ids) == 1 + np.searchsorted(np.cumsum(mass), 0.99 * mass.sum())


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 0.5, "top_k": 4, "top_p": 0.9},
    ],
)
def test_frequencies_follow_the_probabilities(values):
    probabilities = np.array([0.05, 0.4, 0.1, 0.3, 0.15])
    params = SamplingParams(**{"temperature": 1.0, "seed": 5, **values})
    draws = 20_000
    sampler = Sampler(params, 5)
    logits = np.float32(np.log(probabilities))
    counts = np.bincount([sampler.sample(logits) for _ in range(draws)], minlength=5)

    scaled = probabilities ** (1 / params.temperature)
    left = kept(logits, **values)
    expected = np.zeros(5)
    expected[left] = scaled[left] / scaled[left].sum() * draws
    assert counts[expected == 0].sum() == 0
    chi_square = ((counts - expected)[left] ** 2 / expected[left]).sum()
    assert chi_square < 18.5  # the 99.9 % quantile at 4 degrees of freedom; the seed is fixed, so this can't flicker

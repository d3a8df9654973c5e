"""XTC and mirostat: what is left to chance or goes by the past; and asking for a distribution without drawing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.candidates import Candidates, probabilities
from tinyinfer.sampling.mirostat import next_limit, within_surprise
from tinyinfer.sampling.sampler import Sampler
from tinyinfer.sampling.xtc import exclude_top

SHARES = np.array([0.05, 0.4, 0.1, 0.3, 0.15])
LOGITS = np.float32(np.log(SHARES))


def tokens(*shares: float) -> Candidates:
    return Candidates(np.arange(len(shares)), np.log(shares))


@pytest.mark.parametrize(
    ("shares", "threshold", "left"),
    [
        ((0.4, 0.3, 0.2, 0.1), 0.15, [2, 3]),
        ((0.4, 0.3, 0.2, 0.1), 0.35, [0, 1, 2, 3]),  # only one reaches it
        ((0.4, 0.3, 0.2, 0.1), 0.0, [3]),
        ((0.1, 0.2, 0.3, 0.4), 0.15, [0, 1]),
        ((0.25, 0.25, 0.25, 0.25), 0.2, [3]),
        ((0.6, 0.4), 0.51, [0, 1]),
        ((0.9, 0.1), 1.0, [0, 1]),
        ((1.0,), 0.0, [0]),
    ],
)
def test_xtc_spares_the_least_likely_of_the_likely(shares, threshold, left):
    assert exclude_top(tokens(*shares), threshold).ids.tolist() == left


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_xtc_happens_as_often_as_it_should_and_asking_again_changes_nothing(probability):
    sampler = Sampler(SamplingParams(temperature=1, seed=3, xtc_probability=probability), 5)
    happened = 0
    for _ in range(2000):
        found = sampler.distribution(LOGITS)
        assert sampler.distribution(LOGITS).ids.tolist() == found.ids.tolist()
        happened += len(found.ids) < 5
        sampler.take(found)
    # five standard deviations of 2000 coins; the seed is fixed
    assert abs(happened - 2000 * probability) <= 5 * math.sqrt(2000 * probability * (1 - probability))


def test_xtc_takes_no_numbers_from_the_draw():
    ask = {"temperature": 1, "seed": 7, "xtc_threshold": 0.51}  # which never removes anything
    with_coin = Sampler(SamplingParams(**ask, xtc_probability=0.5), 5)
    without = Sampler(SamplingParams(**ask), 5)
    assert [with_coin.sample(LOGITS) for _ in range(50)] == [without.sample(LOGITS) for _ in range(50)]


def test_mirostat_drops_what_surprises_too_much():
    shares = tokens(0.5, 0.25, 0.125, 0.125)  # 1, 2, 3 and 3 bits
    for limit, left in ((3.01, 4), (2.5, 2), (1.5, 1), (0.5, 1), (-4.0, 1)):
        assert within_surprise(shares, limit).ids.tolist() == list(range(left))
    assert next_limit(shares, 2, limit=6.0, target=2.0, rate=0.5) == pytest.approx(5.5)
    assert next_limit(shares, 0, limit=6.0, target=2.0, rate=0.5) == pytest.approx(6.5)


@pytest.mark.filterwarnings("error")
def test_mirostat_with_tokens_that_have_no_chance():
    hopeless = Candidates(np.arange(3), np.array([-2000.0, 0.0, -0.1]))
    assert within_surprise(hopeless, 10.0).ids.tolist() == [1, 2]


@pytest.mark.parametrize("target", [1.0, 2.0, 3.0])  # the bare distributions come to 3.5
def test_mirostat_holds_the_surprise_of_a_long_text(target):
    rng = np.random.default_rng(2)
    sampler = Sampler(SamplingParams(temperature=1, seed=5, mirostat=2, mirostat_tau=target), 200)
    surprises = []
    for _ in range(3000):
        found = sampler.distribution(np.float32(3 * rng.standard_normal(200)))
        id = sampler.take(found)
        surprises.append(-math.log2(probabilities(found)[found.ids.tolist().index(id)]))
    assert np.mean(surprises[200:]) == pytest.approx(target, abs=0.05)


def test_a_distribution_can_be_asked_for_and_another_id_accepted():
    """As verifying a draft does: what comes next goes by what was accepted, and the draws by how many were drawn."""
    ask = {"temperature": 0.8, "seed": 2, "top_p": 0.95, "presence_penalty": 1.0, "mirostat": 0}
    sampler, other = Sampler(SamplingParams(**ask), 5), Sampler(SamplingParams(**ask), 5)
    for id in (1, 3, 3):
        sampler.distribution(LOGITS)
        sampler.accept(id, sampler.distribution(LOGITS))
        other.accept(id, other.distribution(LOGITS))
    first, second = sampler.distribution(LOGITS), other.distribution(LOGITS)
    assert np.array_equal(first.logits, second.logits)
    assert sampler.take(first) == other.take(second)


def test_greedy_is_a_distribution_of_one():
    found = Sampler(SamplingParams(), 5).distribution(LOGITS)
    assert (found.ids.tolist(), probabilities(found).tolist()) == ([1], [1.0])


@pytest.mark.parametrize(
    "values",
    [
        {"repetition_penalty": 1.5}, {"frequency_penalty": 0.4}, {"logit_bias": {0: 2.0}}, {"banned_ids": [3]},
        {"typical_p": 0.6}, {"top_n_sigma": 1.0}, {"xtc_probability": 1.0}, {"mirostat": 2, "mirostat_tau": 1.0},
        {"temperature": 0.6, "top_k": 4, "typical_p": 0.9, "min_p": 0.1, "presence_penalty": 0.3},
    ],
    ids=str,
)  # fmt: skip
def test_frequencies_follow_the_distribution_that_was_said(values):
    draws = 20_000
    params = SamplingParams(**{"temperature": 1.0, "seed": 5, **values})
    sampler = Sampler(params, 5, [1, 4])
    found = sampler.distribution(LOGITS)
    counts = np.zeros(5)
    for _ in range(draws):
        # the past is held still, so that all draws are of one distribution
        counts[sampler.take(found)] += 1
    expected = np.zeros(5)
    expected[found.ids] = probabilities(found) * draws
    assert counts[expected == 0].sum() == 0
    left = expected > 0
    chi_square = ((counts - expected)[left] ** 2 / expected[left]).sum()
    assert chi_square < 18.5  # the 99.9 % quantile at 4 degrees of freedom; the seed is fixed, so this can't flicker

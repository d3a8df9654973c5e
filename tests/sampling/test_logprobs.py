"""Log-probabilities: of the model's raw distribution, whatever the sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tinyinfer.errors import SamplingError
from tinyinfer.sampling.candidates import Candidates
from tinyinfer.sampling.logprobs import Score, TokenLogprob, model_logprob, sampled_logprob


def test_all_of_them_sum_to_one_and_the_likeliest_come_first():
    logits = np.float32(5 * np.random.default_rng(0).standard_normal(1000))
    found = model_logprob(logits, 17, 2000)
    assert len(found.top) == 1000
    assert math.fsum(math.exp(logprob) for _, logprob in found.top) == pytest.approx(1, abs=1e-6)
    order = np.argsort(-logits, kind="stable")
    assert [id for id, _ in found.top] == order.tolist()
    exact = logits.astype(np.float64) - math.log(np.exp(logits.astype(np.float64)).sum())
    np.testing.assert_allclose([logprob for _, logprob in found.top], exact[order], rtol=0, atol=1e-6)
    assert found.logprob == pytest.approx(exact[17], abs=1e-6)
    assert found.rank == 1 + order.tolist().index(17)


def test_masked_tokens_are_left_out_and_equals_stand_by_id():
    logits = np.float32([1, -math.inf, 2, 1, -math.inf])
    found = model_logprob(logits, 3, 5)
    assert [id for id, _ in found.top] == [2, 0, 3]
    assert found.rank == 3
    assert all(math.isfinite(logprob) for _, logprob in found.top)
    assert model_logprob(logits, 2, 0).top == ()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1.0, 1e30, 3e38])
def test_large_logits_neither_overflow_nor_warn(scale):
    found = model_logprob(np.float32([scale, 0, -scale]), 0, 1)
    assert math.isfinite(found.logprob)
    assert found.logprob <= 0


def test_sampled_ones_are_of_what_was_left():
    tokens = Candidates(np.array([4, 7, 9]), np.log([0.2, 0.6, 0.2]) + 3)
    found = sampled_logprob(tokens, 9, 2)
    assert math.exp(found.logprob) == pytest.approx(0.2)
    assert (found.rank, [id for id, _ in found.top]) == (3, [7, 4])


@pytest.mark.parametrize(("bad", "found"), [(math.nan, "found nan at id 2"), (math.inf, "found inf at id 2")])
def test_logits_that_are_no_numbers_have_none(bad, found):
    with pytest.raises(SamplingError, match=found):
        model_logprob(np.float32([0, 1, bad]), 0, 1)


def test_a_score_adds_up():
    parts = tuple(TokenLogprob(0, math.log(p), rank, ()) for p, rank in ((0.5, 1), (0.125, 2)))
    score = Score(parts)
    assert math.exp(score.logprob) == pytest.approx(0.0625)
    assert score.perplexity == pytest.approx(4)
    assert not score.greedy
    assert Score(parts[:1]).greedy
    assert Score((TokenLogprob(0, -1e4, 9, ()),)).perplexity == math.inf

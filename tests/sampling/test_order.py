"""The order of the steps decides what is kept, and can be given."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.candidates import probabilities
from tinyinfer.sampling.params import ORDER
from tinyinfer.sampling.sampler import Sampler

LOGITS = np.log([0.52, 0.29, 0.14, 0.05])
LLAMA_CPP = ("penalties", "dry", "top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc", "temperature")


def distribution(logits, prompt=(), **values):
    params = SamplingParams(**{"temperature": 1.0, "seed": 0} | values)
    return Sampler(params, len(logits), prompt).distribution(np.float32(logits))


@pytest.mark.parametrize(
    ("temperature", "order", "kept"),
    [
        (0.5, ORDER, [0, 1]), (1.0, ORDER, [0, 1]), (2.0, ORDER, [0, 1, 2]),
        (0.5, LLAMA_CPP, [0, 1]), (2.0, LLAMA_CPP, [0, 1]),
    ],
)  # fmt: skip
def test_top_p_after_the_temperature_or_before_it(temperature, order, kept):
    # squared they are 0.27, 0.084, ...: two reach 0.8; their roots are 0.72, 0.54, 0.37, 0.22, of which three do
    found = distribution(LOGITS, temperature=temperature, top_p=0.8, order=order)
    assert found.ids.tolist() == kept
    shares = np.exp(LOGITS[kept]) ** (1 / temperature)
    np.testing.assert_allclose(probabilities(found), shares / shares.sum(), rtol=1e-6)  # float32 logits


@pytest.mark.parametrize("temperature", [0.1, 1.0, 5.0])
def test_top_k_keeps_the_same_on_either_side_of_the_temperature(temperature):
    logits = np.random.default_rng(1).standard_normal(300)
    late = (*(step for step in ORDER if step != "top_k"), "top_k")
    early = ("top_k", *late[:-1])
    found = [distribution(logits, temperature=temperature, top_k=7, order=order) for order in (ORDER, early, late)]
    for other in found[1:]:
        assert other.ids.tolist() == found[0].ids.tolist()
        assert np.array_equal(other.logits, found[0].logits)


def test_penalties_after_top_k_change_what_is_left_but_not_which():
    logits = [3.0, 2.0, 1.0, 0.5]
    assert distribution(logits, [0], repetition_penalty=10, top_k=2).ids.tolist() == [1, 2]
    late = ("top_k", "penalties", "temperature")
    found = distribution(logits, [0], repetition_penalty=10, top_k=2, order=late)
    assert found.ids.tolist() == [0, 1]
    np.testing.assert_allclose(found.logits, [0.3, 2.0])


def test_the_masks_come_first_whatever_the_order():
    found = distribution([3.0, 2.0, 1.0, 0.5], banned_ids=[0], top_k=1, order=("top_k", "temperature"))
    assert found.ids.tolist() == [1]
    found = distribution([3.0, 2.0, 1.0, 0.5], logit_bias={3: 9.0}, top_k=1, order=("top_k", "temperature"))
    assert found.ids.tolist() == [3]


def test_repetition_sees_the_sign_that_the_model_gave_also_behind_the_temperature():
    found = distribution(
        [2.0, -2.0, 0.0], [0, 1], temperature=2.0, repetition_penalty=2.0, order=("temperature", "penalties")
    )
    np.testing.assert_allclose(found.logits, [0.5, -2.0, 0.0])


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"top_n_sigma": 1.0}, [0, 1]), ({"top_n_sigma": 1e-9}, [0]), ({"top_n_sigma": 100.0}, [0, 1, 2, 3]),
        ({"typical_p": 0.0}, [1]), ({"typical_p": 0.28}, [1]), ({"typical_p": 0.5}, [0, 1]),
        ({"typical_p": 1.0}, [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_edges_of_top_n_sigma_and_typical(values, kept):
    # surprises 0.65, 1.24, 1.97, 3.0 about an entropy of 1.12; deviation of the logits 0.87
    assert distribution(LOGITS, **values).ids.tolist() == kept


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e300])
@pytest.mark.filterwarnings("error")
def test_every_step_takes_what_an_extreme_temperature_leaves(temperature):
    values = {"top_n_sigma": 3.0, "typical_p": 0.9, "top_p": 0.9, "min_p": 0.01, "xtc_probability": 1.0}
    for logits in ([1.0, 3.0, 2.0, -math.inf], [-3e38, 3e38, 0.0, 1.0], [0.0] * 4):
        found = distribution(logits, temperature=temperature, **values)
        assert len(found.ids) >= 1
        assert np.isfinite(found.logits).all()

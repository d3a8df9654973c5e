"""What SamplingParams accepts, refuses and fills in."""

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from tinyinfer.errors import BadCheckpoint, BadRequest
from tinyinfer.sampling import SamplingParams

REFUSED = {
    "max_tokens": [-1, 1.5, "8", True, math.nan],
    "temperature": [-1, -1e-9, math.nan, math.inf, 10**400, "0.5", True, [1.0]],
    "top_k": [-1, 1.5, 40.0, "40", True],
    "top_p": [-0.1, 1.0001, math.nan, "0.9", True],
    "min_p": [-0.1, 2, math.nan, True],
    "seed": [-1, 1.5, "1", False],
    "stop": ["", ["a", ""], [1], 5, b"x", {"a"}],
    "ignore_eos": [1, None, "yes"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_refuses_and_names_the_parameter(name, value):
    with pytest.raises(BadRequest) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


def test_the_edges_of_every_range_are_allowed():
    SamplingParams(max_tokens=0, temperature=0, top_k=0, top_p=0, min_p=0, seed=0)
    SamplingParams(temperature=1e-320, top_k=10**9, top_p=1, min_p=1, seed=2**64)


def test_numpy_numbers_become_plain_ones():
    params = SamplingParams(top_k=np.int64(4), temperature=np.float32(0.5), seed=np.uint8(3))
    assert (type(params.top_k), type(params.temperature), type(params.seed)) == (int, float, int)


@pytest.mark.parametrize(("given", "kept"), [("END", ("END",)), (["a", "b"], ("a", "b")), (None, ()), ([], ())])
def test_stop_becomes_a_tuple(given, kept):
    assert SamplingParams(stop=given).stop == kept


def test_params_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        SamplingParams().top_k = 3


def test_overrides_are_checked_as_fields_are():
    assert SamplingParams(top_k=3).with_overrides(seed=1) == SamplingParams(top_k=3, seed=1)
    with pytest.raises(BadRequest, match=r"unknown sampling parameter 'temprature'.*temperature") as caught:
        SamplingParams().with_overrides(temprature=1)
    assert caught.value.parameter == "temprature"
    with pytest.raises(BadRequest, match="top_p"):
        SamplingParams().with_overrides(top_p=2)


QWEN = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}


@pytest.mark.parametrize(
    ("said", "config", "expected"),
    [
        ({}, {}, (0.0, 0, 1.0, 0.0)),
        ({}, QWEN, (0.7, 20, 0.8, 0.0)),
        ({"temperature": 0}, QWEN, (0.0, 20, 0.8, 0.0)),
        ({"temperature": 1.5, "top_k": 0}, QWEN, (1.5, 0, 0.8, 0.0)),
        ({}, {"do_sample": True, "top_k": 64}, (1.0, 64, 1.0, 0.0)),  # as Gemma 3's: no temperature means 1
        ({}, {"temperature": 0.6, "top_p": 0.9}, (0.0, 0, 0.9, 0.0)),  # sampling was not asked for
        ({"temperature": 1}, {"temperature": 0.6, "top_p": 0.9}, (1.0, 0, 0.9, 0.0)),
        ({}, {"do_sample": True, "temperature": None, "top_k": None}, (1.0, 0, 1.0, 0.0)),
    ],
)
def test_the_caller_wins_over_generation_config_over_neutral(said, config, expected):
    params = SamplingParams(**said).resolved(config)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == expected


def test_resolving_draws_a_seed_once():
    params = SamplingParams().resolved()
    assert params.seed is not None
    assert params.resolved() == params
    assert SamplingParams(seed=7).resolved().seed == 7
    # 32 random bits: ten equal ones happen once in 2**288
    assert len({SamplingParams().resolved().seed for _ in range(10)}) > 1


def test_a_bad_generation_config_is_named():
    with pytest.raises(BadCheckpoint, match=r"generation_config.json: top_p.*'wide'"):
        SamplingParams().resolved({"top_p": "wide"})
    assert SamplingParams(max_tokens=5, stop="x", ignore_eos=True).resolved({}).max_tokens == 5

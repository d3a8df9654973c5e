"""What SamplingParams accepts, refuses and fills in."""

import dataclasses
import json
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import tinyinfer
from tinyinfer.errors import BadCheckpoint, BadRequest
from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.params import ORDER

REFUSED = {
    "max_tokens": [-1, 1.5, "8", True, math.nan],
    "temperature": [-1, -1e-9, math.nan, math.inf, 10**400, "0.5", True, [1.0]],
    "top_k": [-1, 1.5, 40.0, "40", True],
    "top_p": [-0.1, 1.0001, math.nan, "0.9", True],
    "min_p": [-0.1, 2, math.nan, True],
    "seed": [-1, 1.5, "1", False],
    "stop": ["", ["a", ""], [1], 5, b"x", {"a"}, "\ud800", ["a", "\udcff"]],
    "ignore_eos": [1, None, "yes"],
    "min_tokens": [-1, 0.5, None],
    "typical_p": [-0.1, 1.1, math.nan],
    "top_n_sigma": [-1, math.inf, None],
    "xtc_probability": [1.5, -1, math.nan, None],
    "xtc_threshold": [1.5, -1, None],
    "repetition_penalty": [0, -1.0, math.nan, math.inf, "1"],
    "repetition_window": [-2, 1.5, None],
    "frequency_penalty": [math.nan, math.inf, -math.inf, "1", None],
    "presence_window": [-2, None],
    "dry_multiplier": [-1, math.nan],
    "dry_base": [0.9, math.inf],
    "dry_allowed_length": [0, 2.5],
    "dry_breakers": [[""], 3],
    "mirostat": [1, 3, True, 2.0, None],
    "mirostat_tau": [-1, math.nan, None],
    "logit_bias": [{-1: 1}, {1: math.nan}, {1: math.inf}, {1: None}, {"a": 1}, {1.5: 1}, {True: 1}, [1], 5],
    "banned_ids": [5, [-1], ["1"], [True], "12", [[1]], None],
    "allowed_ids": [5, [-1], [1.5], b"12"],
    "processors": [5, [5], "f"],
    "order": [["nothing"], ["top_k", "top_k"], 5, None],
    "logprobs": [-1, 1.5, True],
    "prompt_logprobs": [-1, "2"],
    "logprobs_of": ["raw", None, 1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_refuses_and_names_the_parameter(name, value):
    with pytest.raises(BadRequest) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name
    assert name in str(caught.value)
    assert any(repr(part) in str(caught.value) for part in parts_of(value))


def parts_of(value):
    """A value, and what it holds."""
    inside = list(value) if isinstance(value, list | dict) else []
    return [value, *inside, *(value.values() if isinstance(value, dict) else [])]


def test_the_edges_of_every_range_are_allowed():
    SamplingParams(max_tokens=0, temperature=0, top_k=0, top_p=0, min_p=0, seed=0)
    SamplingParams(temperature=1e-320, top_k=10**9, top_p=1, min_p=1, seed=2**64)


def test_numpy_numbers_become_plain_ones():
    params = SamplingParams(top_k=np.int64(4), temperature=np.float32(0.5), seed=np.uint8(3))
    assert (type(params.top_k), type(params.temperature), type(params.seed)) == (int, float, int)
    params = SamplingParams(banned_ids=np.array([3, 1, 3]).tolist(), logit_bias={np.int64(2): np.float32(0.5)})
    assert (params.banned_ids, params.logit_bias) == ((1, 3), {2: 0.5})
    assert SamplingParams(allowed_ids={2, 1}, logit_bias={"7": -1}).logit_bias == {7: -1.0}


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


def test_a_models_repetition_penalty_and_typical_p_are_advice_too():
    config = {"repetition_penalty": 1.1, "typical_p": 0.9}
    params = SamplingParams().resolved(config)
    assert (params.greedy, params.repetition_penalty, params.typical_p) == (True, 1.1, 0.9)
    params = SamplingParams(repetition_penalty=1, typical_p=1).resolved(config)
    assert (params.repetition_penalty, params.typical_p) == (1.0, 1.0)
    with pytest.raises(BadCheckpoint, match="repetition_penalty"):
        SamplingParams().resolved({"repetition_penalty": 0})


def test_no_advice_on_what_the_caller_left_out_or_replaced():
    params = SamplingParams(order=("top_k",), top_k=5).resolved(QWEN)
    assert (params.temperature, params.top_k, params.top_p) == (1.0, 5, 1.0)
    assert SamplingParams(order=()).resolved({"top_p": 0.5}).greedy
    params = SamplingParams(mirostat=2).resolved(QWEN)
    assert (params.temperature, params.top_k, params.top_p) == (0.7, 0, 1.0)


@pytest.mark.parametrize(
    ("step", "values"),
    [("top_p", {"top_p": 0.5}), ("penalties", {"presence_penalty": 1}), ("temperature", {"temperature": 0.5})],
)
def test_an_order_without_a_step_that_is_asked_for_is_refused(step, values):
    order = [name for name in ORDER if name != step]
    with pytest.raises(BadRequest, match=f"order leaves out '{step}', which {next(iter(values))}="):
        SamplingParams(order=order, **values)
    SamplingParams(order=order, temperature=0)
    SamplingParams(order=order)


@pytest.mark.parametrize("values", [{"top_k": 5}, {"min_p": 0.1}, {"xtc_probability": 0.5}, {"top_n_sigma": 1}])
def test_mirostat_and_another_truncation_are_refused_together(values):
    with pytest.raises(BadRequest, match=f"mirostat takes the place of {next(iter(values))}"):
        SamplingParams(mirostat=2, **values)
    SamplingParams(mirostat=2, top_k=0, min_p=0, top_p=1)


def double(ids, logits):
    return 2 * logits


FULL = {
    "max_tokens": 9, "temperature": 0.7, "top_k": 50, "top_p": 0.9, "seed": 4, "stop": ["a"], "min_tokens": 2,
    "repetition_penalty": 1.2, "repetition_window": 8, "logit_bias": {5: 1.5}, "banned_ids": [3], "allowed_ids": [1, 5],
    "dry_multiplier": 0.8, "dry_breakers": ["x"], "order": tuple(reversed(ORDER)), "logprobs": 2,
}  # fmt: skip


def test_a_record_gives_the_params_again_also_through_json():
    params = SamplingParams(**FULL)
    record = json.loads(json.dumps(params.to_dict()))
    assert record["engine"] == f"tinyinfer {tinyinfer.__version__}"
    assert set(record) == {field.name for field in dataclasses.fields(SamplingParams)} | {"engine"}
    assert SamplingParams.from_dict(record) == params
    assert SamplingParams.from_dict({"top_k": 3}) == SamplingParams(top_k=3)
    with pytest.raises(BadRequest, match="unknown sampling parameter 'topk'"):
        SamplingParams.from_dict({"topk": 3})


def test_a_record_of_another_version_warns():
    with pytest.warns(UserWarning, match=r"sampled by tinyinfer 0.0.1; .* may choose other tokens"):
        SamplingParams.from_dict(SamplingParams().to_dict() | {"engine": "tinyinfer 0.0.1"})


def test_functions_are_given_again():
    record = SamplingParams(processors=double).to_dict()
    assert record["processors"] == ["double"]
    with pytest.raises(BadRequest, match="made with these processors, to be given again: double"):
        SamplingParams.from_dict(record)
    assert SamplingParams.from_dict(record, processors=[double]).processors == (double,)


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

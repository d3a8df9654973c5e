"""What was said makes tokens less likely; masks, biases, and functions of one's own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tinyinfer.errors import BadRequest, SamplingError
from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.candidates import Candidates
from tinyinfer.sampling.penalties import frequency, presence, repetition
from tinyinfer.sampling.sampler import Sampler
from tinyinfer.sampling.state import Window

ALL = -1


def tokens(*logits: float, ids: list[int] | None = None) -> Candidates:
    return Candidates(np.array(ids or range(len(logits))), np.array(logits))


def sampler_after(prompt: list[int], output: list[int], vocab: int = 6, stop_ids=(), **values) -> Sampler:
    sampler = Sampler(SamplingParams(**{"temperature": 1.0, "seed": 1} | values), vocab, prompt, stop_ids)
    for id in output:
        sampler.state.accept(id)
    return sampler


@pytest.mark.parametrize(
    ("history", "penalty", "expected"),
    [
        ([0, 1, 1], 1.5, [2 / 1.5, -3, 0]),
        ([0, 1, 1], 0.5, [4, -1, 0]),
        ([0, 1, 1], 1.0, [2, -2, 0]),
        ([1], 1.5, [2, -3, 0]),
        ([2], 1.5, [2, -2, 0]),
        ([], 1.5, [2, -2, 0]),
        ([0, 7, 100], 1.5, [2 / 1.5, -2, 0]),  # ids that are not in play
    ],
)
def test_repetition_makes_what_was_said_less_likely_whatever_the_sign(history, penalty, expected):
    before = tokens(2.0, -2.0, 0.0)
    after = repetition(before, Window(ALL, history), penalty)
    np.testing.assert_allclose(after.logits, expected, rtol=1e-15)
    assert before.logits.tolist() == [2, -2, 0]


def test_an_id_that_top_k_dropped_is_passed_over():
    left = tokens(3.0, 1.0, ids=[2, 5])
    assert repetition(left, Window(ALL, [0, 5, 6, 1]), 2.0).logits.tolist() == [3, 0.5]
    assert frequency(left, Window(ALL, [5, 0, 5, 9]), 1.0).logits.tolist() == [3, -1]


def test_frequency_counts_and_presence_does_not():
    said = Window(ALL, [1, 1, 1, 2])
    assert frequency(tokens(1.0, 1.0, 1.0), said, 0.5).logits.tolist() == [1, -0.5, 0.5]
    assert presence(tokens(1.0, 1.0, 1.0), said, 0.5).logits.tolist() == [1, 0.5, 0.5]
    assert frequency(tokens(1.0, 1.0, 1.0), said, -0.5).logits.tolist() == [1, 2.5, 1.5]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, ALL])
def test_a_window_counts_the_last_ids_and_no_others(size):
    said = np.random.default_rng(0).integers(0, 4, 30).tolist()
    window = Window(size, said[:5])
    for count in range(5, 31):
        last = said[:count] if size == ALL else said[max(count - size, 0) : count]
        ids, counts = window.counts()
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {id: last.count(id) for id in set(last)}
        if count < 30:
            window.push(said[count])


def test_repetition_goes_by_prompt_and_output_the_others_by_the_output():
    logits = np.ones(6, np.float32)
    ask = {"prompt": [0, 1], "output": [1, 2, 2]}
    assert sampler_after(**ask, repetition_penalty=2).distribution(logits).logits.tolist() == [0.5, 0.5, 0.5, 1, 1, 1]
    assert sampler_after(**ask, frequency_penalty=1).distribution(logits).logits.tolist() == [1, 0, -1, 1, 1, 1]
    assert sampler_after(**ask, presence_penalty=1).distribution(logits).logits.tolist() == [1, 0, 0, 1, 1, 1]
    one = {"repetition_window": 1, "frequency_window": 1, "presence_window": 1}
    all_three = {"repetition_penalty": 2, "frequency_penalty": 1, "presence_penalty": 1}
    found = sampler_after(**ask, **all_three, **one).distribution(logits).logits
    assert found.tolist() == [1, 1, 0.5 - 1 - 1, 1, 1, 1]  # divided first
    none = dict.fromkeys(one, 0)
    assert sampler_after(**ask, **all_three, **none).distribution(logits).logits.tolist() == [1] * 6


def test_greedy_goes_by_penalties_and_leaves_the_models_logits_alone():
    logits = np.float32([1.0, 3.0, 2.0])
    logits.flags.writeable = False
    sampler = sampler_after([], [], 3, temperature=0, frequency_penalty=0.75)
    assert [sampler.sample(logits) for _ in range(6)] == [1, 1, 2, 1, 2, 0]


def test_greedy_makes_no_float64_of_the_vocabulary():
    seen = []
    watch = {"processors": [lambda ids, logits: seen.append(logits.dtype) or logits]}
    logits = np.zeros(6, np.float32)
    sampler_after([0], [1], temperature=0, repetition_penalty=1.3, **watch).sample(logits)
    sampler_after([0], [1], repetition_penalty=1.3, **watch).sample(logits)
    assert seen == [np.float32, np.float64]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("values", [{"frequency_penalty": -1e308}, {"repetition_penalty": 1e-308}], ids=str)
@pytest.mark.filterwarnings("error")
def test_what_overflows_upwards_is_an_error_and_not_a_token(values, temperature):
    sampler = sampler_after([2], [2, 2], temperature=temperature, **values)
    with pytest.raises(SamplingError, match="found inf at id 2"):
        sampler.sample(np.full(6, 3e38, np.float32))


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    "values",
    [
        {"frequency_penalty": 1e308},
        {"repetition_penalty": 1e308},
        {"logit_bias": {2: -1.7e308}},
        {"dry_multiplier": 1e300},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_what_overflows_downwards_is_a_token_without_a_chance(values, temperature):
    logits = np.float32([-1, -2, -0.5, -3, -4, -5])
    draws = [sampler_after([0, 2, 0], [2, 0, 2, 0], seed=i, temperature=temperature, **values) for i in range(50)]
    assert 2 not in {sampler.sample(logits) for sampler in draws}


@pytest.mark.parametrize("temperature", [0, 1])
def test_banned_and_allowed_ids(temperature):
    logits = np.float32([5, 4, 3, 2, 1, 0])
    drawn = {
        name: {sampler_after([], [], temperature=temperature, seed=seed, **values).sample(logits) for seed in range(99)}
        for name, values in {
            "banned": {"banned_ids": [0, 2]}, "allowed": {"allowed_ids": [3, 1]},
            "both": {"allowed_ids": [1, 3], "banned_ids": [1]}, "bias": {"logit_bias": {4: 100}},
            "not lifted": {"banned_ids": [4], "logit_bias": {4: 1e30}, "allowed_ids": [4, 5]},
        }.items()
    }  # fmt: skip
    assert drawn["banned"] == ({1} if temperature == 0 else {1, 3, 4, 5})
    assert drawn["allowed"] == ({1} if temperature == 0 else {1, 3})
    assert (drawn["both"], drawn["bias"], drawn["not lifted"]) == ({3}, {4}, {5})


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    "values", [{"allowed_ids": []}, {"banned_ids": range(6)}, {"allowed_ids": [1], "banned_ids": [1]}]
)
def test_masks_that_leave_nothing_are_an_error(values, temperature):
    sampler = sampler_after([], [], temperature=temperature, **values)
    with pytest.raises(SamplingError, match="all 6 tokens are masked"):
        sampler.sample(np.zeros(6, np.float32))


@pytest.mark.parametrize("name", ["banned_ids", "allowed_ids", "logit_bias"])
def test_ids_outside_the_vocabulary_are_refused_by_name(name):
    value = {6: 1.0} if name == "logit_bias" else [2, 6]
    with pytest.raises(BadRequest, match=f"{name}: id 6 is outside the vocabulary of 6") as caught:
        sampler_after([], [], **{name: value})
    assert caught.value.parameter == name


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_end_waits_for_min_tokens(temperature):
    logits = np.float32([0, 90, 80, 0, 0, 0])
    sampler = sampler_after([1, 1], [], stop_ids=(1, 2), min_tokens=3, temperature=temperature)
    assert not {sampler.sample(logits) for _ in range(3)} & {1, 2}
    assert sampler.sample(logits) == 1


def test_functions_see_the_whole_text_and_their_own_logits():
    seen = []

    def first(ids, logits):
        seen.append((ids.tolist(), logits.tolist()))
        logits[0] = -math.inf  # its own to change
        return logits

    def second(ids, logits):
        assert logits[0] == -math.inf
        return logits + np.float32(ids[-1])

    logits = np.float32([1, 2, -math.inf, 4])
    sampler = sampler_after([3], [1, 1], 4, processors=[first, second])
    found = sampler.distribution(logits)
    assert seen == [([3, 1, 1], [1, 2, -math.inf, 4])]
    assert (found.ids.tolist(), found.logits.tolist()) == ([1, 3], [3, 5])
    assert logits[0] == 1


def test_a_function_after_a_truncation_sees_what_was_left():
    seen = []
    order = ("top_k", "processors", "temperature")
    watch = [lambda ids, logits: seen.append(np.isfinite(logits).tolist()) or logits]
    sampler_after([], [], 4, top_k=2, order=order, processors=watch).sample(np.float32([1, 4, 2, 3]))
    assert seen == [[False, True, False, True]]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros(5), r"processor broken should give logits, floats \[6\], found float64 \[5\]"),
        (np.zeros(6, int), r"floats \[6\], found int64 \[6\]"),
        (None, r"floats \[6\], found object \[\]"),
        (np.full(6, np.nan), "found nan at id 0"),
        (np.array([0, 1, 2, np.inf, 0, 0]), "found inf at id 3"),
        (np.full(6, -np.inf), "all 6 tokens are masked"),
    ],
)
def test_what_a_function_gives_is_checked(result, message, temperature):
    def broken(ids, logits):
        return result

    with pytest.raises(SamplingError, match=message):
        sampler_after([], [], temperature=temperature, processors=broken).sample(np.zeros(6, np.float32))

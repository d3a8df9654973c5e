"""What a mask from outside does to the distribution: it comes first, and nothing brings back what it leaves out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tinyinfer.errors import BadRequest, SamplingError
from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.candidates import probabilities
from tinyinfer.sampling.logprobs import model_logprob, sampled_logprob
from tinyinfer.sampling.params import ORDER
from tinyinfer.sampling.sampler import Sampler

LOGITS = np.log(np.float32([0.5, 0.3, 0.15, 0.05]))


class Only:
    """Allows the same ids everywhere."""

    def __init__(self, *ids: int):
        self.allowed, self.accepted, self.done = ids, [], False

    def ids(self) -> np.ndarray:
        return np.array(self.allowed, np.int64)

    def permits(self, id: int) -> bool:
        return id in self.allowed

    def accept(self, id: int) -> None:
        self.accepted.append(id)


def sampler(*allowed: int, prompt: tuple[int, ...] = (), stop_ids: tuple[int, ...] = (), **params: Any) -> Sampler:
    given = SamplingParams(**{"temperature": 1.0, "seed": 0, **params})
    return Sampler(given, 4, prompt, stop_ids, constraint=Only(*allowed))


@pytest.mark.parametrize(
    ("params", "kept", "shares"),
    [
        ({}, [1, 2, 3], [0.6, 0.3, 0.1]),
        ({"top_k": 2}, [1, 2], [2 / 3, 1 / 3]),
        ({"top_k": 1}, [1], [1]),
        ({"top_p": 0.75}, [1, 2], [2 / 3, 1 / 3]),
        ({"top_p": 0.75, "temperature": 0.5}, [1], [1]),
        ({"top_p": 0.85, "temperature": 2.0}, [1, 2, 3], [6**0.5, 3**0.5, 1]),
        ({"min_p": 0.4}, [1, 2], [2 / 3, 1 / 3]),
        ({"banned_ids": [1]}, [2, 3], [0.75, 0.25]),
        ({"allowed_ids": [0, 3]}, [3], [1]),
        ({"logit_bias": {0: 100.0, 3: math.log(6)}}, [1, 2, 3], [0.4, 0.2, 0.4]),
        ({"frequency_penalty": 100.0}, [1, 2, 3], [0.6, 0.3, 0.1]),
        ({"temperature": 0}, [1], [1]),
        ({"temperature": 0, "logit_bias": {0: 100.0, 3: 10.0}}, [3], [1]),
        ({"temperature": 0, "banned_ids": [1]}, [2], [1]),
    ],
)
def test_it_comes_before_every_other_step(params: dict[str, Any], kept: list[int], shares: list[float]):
    found = sampler(1, 2, 3, **params).distribution(LOGITS)
    assert found.ids.tolist() == kept
    np.testing.assert_allclose(probabilities(found), np.array(shares) / sum(shares), rtol=2e-3)


def test_penalties_fall_on_what_is_left():
    one = sampler(1, 2, prompt=(0, 1), repetition_penalty=2.0)
    np.testing.assert_allclose(one.distribution(LOGITS).logits, [2 * LOGITS[1], LOGITS[2]], rtol=1e-6)


def test_greedy_takes_the_models_own_choice_where_it_may_come():
    one = sampler(0, 3, temperature=0)
    one.constraint.ids = None  # which is not asked for then
    assert one.sample(LOGITS) == 0


@pytest.mark.parametrize("temperature", [0, 1])
def test_functions_of_the_callers_own_bring_nothing_back(temperature: int):
    one = sampler(2, 3, temperature=temperature, top_k=1, processors=[lambda ids, logits: np.zeros(4, np.float32)])
    assert one.sample(LOGITS) == 2
    seen = []
    one = sampler(2, 3, temperature=temperature, processors=[lambda ids, logits: seen.append(logits.copy()) or logits])
    one.sample(LOGITS)
    assert np.isneginf(seen[0]).tolist() == [True, True, False, False]
    banned = SamplingParams(temperature=temperature, banned_ids=[0], processors=[lambda ids, logits: np.zeros(4)])
    assert 0 not in Sampler(banned, 4).distribution(LOGITS).ids


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_contradiction_says_so(temperature: int):
    for params in ({"banned_ids": [1, 2]}, {"allowed_ids": [0]}):
        with pytest.raises(SamplingError, match=r"all 2 tokens are masked.* among those that the constraint allows$"):
            sampler(1, 2, temperature=temperature, **params).sample(LOGITS)
    with pytest.raises(SamplingError, match="constraint allows; min_tokens=5 keeps off the end"):
        sampler(3, stop_ids=(3,), temperature=temperature, min_tokens=5).sample(LOGITS)
    with pytest.raises(SamplingError, match="all 2 tokens are masked"):
        sampler(1, 2, temperature=temperature).sample(np.float32([0, -np.inf, -np.inf, 0]))
    with pytest.raises(SamplingError, match="all 0 tokens are masked"):
        sampler(temperature=temperature).sample(LOGITS)


@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_no_numbers_are_no_contradiction(temperature: int):
    with pytest.raises(SamplingError, match=r"found nan at id 0$"):
        sampler(1, 2, temperature=temperature).sample(np.float32([np.nan, 1, 2, 3]))


def test_what_is_drawn_is_accepted_and_a_look_is_not():
    one = sampler(1, 2)
    assert one.distribution(LOGITS) is not None
    assert one.constraint.accepted == []
    drawn = [one.sample(LOGITS) for _ in range(20)]
    assert one.constraint.accepted == drawn
    assert set(drawn) == {1, 2}


def test_done_waits_for_min_tokens():
    one = sampler(1, min_tokens=2)
    one.constraint.done = True
    assert [one.done, one.sample(LOGITS) and one.done, one.sample(LOGITS) and one.done] == [False, False, True]
    assert not Sampler(SamplingParams(), 4).done


def test_one_random_number_a_token_as_without():
    """With everything allowed the draws are those of a free answer."""
    params = SamplingParams(temperature=1.3, seed=5, top_k=3)
    free, bound = Sampler(params, 4), Sampler(params, 4, constraint=Only(0, 1, 2, 3))
    assert [free.sample(LOGITS) for _ in range(50)] == [bound.sample(LOGITS) for _ in range(50)]


def test_logprobs_are_of_the_model_or_of_what_the_mask_left():
    tokens = sampler(1, 2, 3).distribution(LOGITS)
    model, sampled = model_logprob(LOGITS, 1, 4), sampled_logprob(tokens, 1, 4)
    assert math.exp(model.logprob) == pytest.approx(0.3, rel=1e-6)
    assert math.exp(sampled.logprob) == pytest.approx(0.6, rel=1e-6)
    assert [id for id, _ in model.top] == [0, 1, 2, 3]
    assert [id for id, _ in sampled.top] == [1, 2, 3]
    assert all(math.isfinite(logprob) for _, logprob in sampled.top)
    assert sum(math.exp(logprob) for _, logprob in sampled.top) == pytest.approx(1)
    greedy = sampled_logprob(sampler(1, 2, temperature=0).distribution(LOGITS), 1, 4)
    assert (greedy.logprob, greedy.top) == (0.0, ((1, 0.0),))


# what may be asked for


@pytest.mark.parametrize(
    ("params", "parameter", "expected"),
    [
        ({"json": True, "regex": "a"}, "regex", "an answer has one form, found both json and regex"),
        ({"json_schema": {}, "choice": ["a"]}, "choice", "found both json_schema and choice"),
        ({"json_schema": False, "grammar": "a"}, "grammar", "found both json_schema and grammar"),
        ({"choice": ["a"], "ignore_eos": True}, "ignore_eos", "beyond which choice allows nothing"),
        ({"json": 1}, "json", "json should be true or false, found 1"),
        ({"regex": ""}, "regex", "regex should be text of at least one character, found ''"),
        ({"regex": 3}, "regex", "regex should be text of at least one character, found 3"),
        ({"regex": "\ud800"}, "regex", "regex holds half a surrogate pair"),
        ({"choice": ["a", ""]}, "choice", "choice should be a string or a list of strings, none of them empty"),
        ({"choice": [1]}, "choice", "choice should be a string or a list of strings"),
        ({"grammar": 'root ::= "a"'}, "grammar", "found rules with ::= as in GBNF"),
        ({"grammar": 'start: a\na[temperature=0.5]: "a"'}, "grammar", "can't have a temperature of its own"),
    ],
)
def test_impossible_forms(params: dict[str, Any], parameter: str, expected: str):
    with pytest.raises(BadRequest) as error:
        SamplingParams(**params)
    assert error.value.parameter == parameter
    assert expected in str(error.value)


def test_which_form_is_asked_for():
    forms = {"json": True, "json_schema": {}, "regex": "a", "grammar": "start: A", "choice": ["a"]}
    for name, value in forms.items():
        assert SamplingParams(**{name: value}).constrained_by == name
    assert SamplingParams().constrained_by is None
    assert SamplingParams(choice=["b", "a", "b"]).choice == ("b", "a")
    assert SamplingParams(choice=None).choice == ()


def test_a_record_holds_the_form():
    for form in ({"json": True}, {"json_schema": {"type": "null"}}, {"regex": "a"}, {"choice": ["b", "a"]}):
        params = SamplingParams(order=ORDER, **form)
        assert SamplingParams.from_dict(params.to_dict()) == params

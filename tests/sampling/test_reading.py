"""What of a vocabulary is read at all: the same tokens are kept as when the steps see every one of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyinfer.errors import SamplingError
from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.candidates import Candidates, candidates, probabilities
from tinyinfer.sampling.plan import Vocabulary, steps_for
from tinyinfer.sampling.reading import Reading
from tinyinfer.sampling.sampler import Sampler
from tinyinfer.sampling.state import State
from tinyinfer.sampling.steps import fewest

SIZE = 400
PROMPT = [7, 7, 8, 300, 0]


def some_logits(seed: int, spread: float, levels: int) -> np.ndarray:
    """Normal; of so many levels that there are ties; or where `levels` is 0 as they come. Some are masked."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal(SIZE) * spread
    if levels:
        logits = np.rint(logits / spread * levels) / levels * spread
    logits[rng.random(SIZE) < 0.02] = -math.inf
    return np.float32(logits)


SETTINGS = {
    "top_k": st.integers(0, 60),
    "top_p": st.sampled_from([1.0, 0.0, 0.3, 0.9, 0.999]),
    "min_p": st.sampled_from([0.0, 0.05, 0.5]),
    "typical_p": st.sampled_from([1.0, 0.8]),
    "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7]),
    "presence_penalty": st.sampled_from([0.0, 0.5, -2.0]),
    "logit_bias": st.sampled_from([None, {5: 4.0, 399: -3.0}]),
    "banned_ids": st.sampled_from([None, (7, 9, 11)]),
    "min_tokens": st.sampled_from([0, 9]),
    "order": st.sampled_from([None, ("penalties", "top_k", "top_p", "min_p", "typical", "temperature")]),
}


@given(
    st.fixed_dictionaries(SETTINGS),
    st.sampled_from([1e-9, 0.3, 1.0, 2.5, 1e9]),
    st.integers(0, 50),
    st.sampled_from([0.01, 1.0, 30.0]),
    st.sampled_from([0, 2]),
    st.sampled_from([None, range(0, SIZE, 3), [7, 8, 9]]),
)
def test_the_same_tokens_are_kept(settings, temperature, seed, spread, levels, ids):
    logits, some = some_logits(seed, spread, levels), None if ids is None else np.array(ids)
    values = {name: value for name, value in settings.items() if value is not None}
    params = SamplingParams(temperature=temperature, **values).resolved()
    state = State(params, PROMPT)
    for said in (9, 20, 9):
        state.accept(said)
    reading, steps = steps_for(params, Vocabulary(SIZE, (2, 3)))
    with np.errstate(over="ignore"):
        found = through(steps, reading(logits, state, some), state)
        everything = SamplingParams(**{**vars_of(params), "processors": (lambda ids, logits: logits,)}).resolved()
        unread, all_steps = steps_for(everything, Vocabulary(SIZE, (2, 3)))
        whole = through(all_steps, unread(logits, state, some), state)
    if found.ids.tolist() != whole.ids.tolist():
        # all that may differ: where top-p has p together to within float32's rounding, one of equals less or more
        shorter, longer = sorted((found, whole), key=lambda tokens: len(tokens.ids))
        assert params.top_p < 1
        assert set(shorter.ids) < set(longer.ids)
        assert len(longer.ids) - len(shorter.ids) == 1
    else:
        assert found.logits.tolist() == whole.logits.tolist()


def through(steps, tokens: Candidates, state: State) -> Candidates:
    for step in steps:
        tokens = step(tokens, state)
    return tokens


def vars_of(params: SamplingParams) -> dict:
    order = tuple(dict.fromkeys(("processors", *params.order)))  # a function that may do anything: all is read
    return {**{name: getattr(params, name) for name in SETTINGS}, "temperature": params.temperature, "order": order}


@pytest.mark.parametrize(
    ("settings", "truncation"),
    [
        ({"top_k": 5}, "top_k"),
        ({"top_k": 5, "repetition_penalty": 1.1, "logit_bias": {3: 1.0}}, "top_k"),
        ({"top_p": 0.9}, "top_p"),
        ({"min_p": 0.1, "temperature": 0.5}, "min_p"),
        ({"top_p": 0.9, "repetition_penalty": 1.1}, ""),
        ({"top_p": 0.9, "banned_ids": (3,)}, ""),
        ({"top_k": 5, "allowed_ids": (3, 4)}, ""),
        ({"top_k": 5, "top_n_sigma": 1.0}, ""),
        ({"typical_p": 0.5, "top_p": 0.9}, "" ),
        ({}, ""),
    ],
)  # fmt: skip
def test_what_is_left_out_where(settings, truncation):
    params = SamplingParams(**{"temperature": 1.0, **settings}).resolved()
    reading, _ = steps_for(params, Vocabulary(SIZE))
    assert reading.truncation == truncation
    read = reading(some_logits(0, 3.0, 0), State(params, PROMPT))
    assert (len(read.ids) < SIZE // 2) == bool(truncation)


def test_errors_of_what_a_constraint_leaves():
    logits = np.float32([1.0, -math.inf, -math.inf])
    state = State(SamplingParams().resolved())
    for truncation in ("", "top_k", "top_p", "min_p"):
        for ids in ([1, 2], []):
            with pytest.raises(SamplingError, match=f"all {len(ids)} tokens are masked"):
                Reading(truncation, 0.5 if truncation != "top_k" else 2)(logits, state, np.array(ids, np.int64))
        with pytest.raises(SamplingError, match="found nan"):
            Reading(truncation, 0.5)(np.float32([math.nan, 0]), state)


@given(st.integers(0, 20), st.sampled_from([0.0, 0.1, 0.5, 0.999, 1.0]), st.sampled_from([0.0, 1e-3, 1.0, 8.0]))
def test_the_fewest_of_many_are_the_same_without_sorting_all(seed, share, spread):
    scores = np.random.default_rng(seed).standard_normal(6000) * spread
    tokens = candidates(scores)
    mass = probabilities(tokens)
    found = fewest(scores, mass, share)
    descending = np.argsort(-scores, kind="stable")
    assert found.tolist() == np.sort(descending[: len(found)]).tolist()
    reached = np.cumsum(mass[descending])
    # the sums are of 6,000 numbers of at most 1 in two orders
    assert reached[len(found) - 1] >= min(share, reached[-1]) - 1e-12
    assert len(found) == 1 or reached[len(found) - 2] <= share + 1e-12


def test_a_draw_by_default_settings_of_a_model_goes_by_few():
    """Penalties, temperature, top-k and top-p, as many models ask for: none of it over the whole vocabulary."""
    params = SamplingParams(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1, seed=1)
    seen = []

    def watch(ids, logits):
        seen.append(np.isfinite(logits).sum())
        return logits

    order = ("penalties", "processors", "temperature", "top_k", "top_p")
    Sampler(SamplingParams(**{**vars_of(params.resolved()), "order": order, "processors": (watch,)}), SIZE).sample(
        some_logits(0, 1.0, 0)
    )
    assert seen[0] > SIZE * 0.9  # a function of the caller's own sees all
    reading, _ = steps_for(params.resolved(), Vocabulary(SIZE))
    read = reading(some_logits(0, 1.0, 0), State(params.resolved(), PROMPT))
    assert len(read.ids) <= 20 + 2 * len(set(PROMPT))
    assert {7, 8, 300, 0} <= set(read.ids.tolist()) | set(np.flatnonzero(np.isinf(some_logits(0, 1.0, 0))).tolist())

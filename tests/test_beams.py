"""Beam search: transformers' own texts and scores, the rules over given tables, and what a model adds to them."""

from __future__ import annotations

import itertools
import json
import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chain_models import END, VOCAB, chain_checkpoint, say
from tests.checkpoint.test_adapters import ADAPTERS
from tests.test_scores import PROMPT, random_llm
from tests.tiny_models import GOLDEN, WINDOWED
from tinyinfer import LLM, Beam, SamplingParams, load
from tinyinfer.beams import BeamSearch, Progress
from tinyinfer.cache import KVCache
from tinyinfer.errors import BadRequest, ContextOverflow, SamplingError
from tinyinfer.sampling.candidates import Candidates
from tinyinfer.sampling.state import State

CASES = json.loads((GOLDEN.parent / "beams" / "transformers.json").read_text())["cases"]
TOLERANCE = 2e-5  # of a score, relative: sums of up to 16 log-probabilities, each right to about 1e-5


@lru_cache
def golden(folder: str) -> LLM:
    return load(GOLDEN.parent / folder, kv_dtype="float32")


@pytest.fixture(scope="module", params=[{}, WINDOWED], ids=["full", "windows"])
def llm(request: pytest.FixtureRequest) -> LLM:
    return random_llm(**request.param)


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[KVCache]:
    """Every cache that is made."""
    made: list[KVCache] = []
    init = KVCache.__init__

    def recording(self: KVCache, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        made.append(self)

    monkeypatch.setattr(KVCache, "__init__", recording)
    return made


def used_blocks(cache: KVCache) -> int:
    return sum(pool.num_blocks - pool.num_free for pool in cache.pools)


# against transformers


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n]['folder'].split('/')[1]}-{n}")
def test_the_texts_and_scores_of_transformers(number: int, monkeypatch: pytest.MonkeyPatch):
    case = CASES[number]
    llm = golden(case["folder"])
    monkeypatch.setattr(llm, "stop_ids", frozenset(case["eos"]))
    monkeypatch.setattr(llm, "context", 1000)  # dynamic scaling is meant to go past the original length
    found = llm.beams(case["prompt"], max_tokens=case["max_tokens"], **case["processors"], **case["search"])
    assert [beam.ids for beam in found] == case["texts"]
    assert [beam.score for beam in found] == pytest.approx(case["scores"], rel=TOLERANCE)


def test_the_golden_cases_reach_every_rule():
    """Texts of one case end at different steps, after one to three end-of-sequence ids, and by the limit."""
    assert {search["early_stopping"] for case in CASES for search in [case["search"]]} == {False, True, "never"}
    assert {np.sign(case["search"]["length_penalty"]) for case in CASES} == {-1, 0, 1}
    assert {len(case["eos"]) for case in CASES} == {0, 1, 2, 3}
    several = [case for case in CASES if len(case["texts"]) > 1]
    assert sum(len({len(text) for text in case["texts"]}) > 1 for case in several) > 20
    assert {name for case in CASES for name in case["processors"]} == {
        "repetition_penalty", "min_tokens", "logit_bias", "banned_ids",
    }  # fmt: skip


# the rules, over tables of log-probabilities that go by the last token alone


def searched(table: np.ndarray, stop_ids: set[int], max_tokens: int, search: BeamSearch) -> Progress:
    progress = Progress(search, State(SamplingParams().resolved(), [0]), stop_ids, max_tokens)
    while not progress.over:
        ids = np.arange(len(table))
        progress.extend([Candidates(ids, table[text.state.ids[-1]]) for text in progress.running])
    return progress


def every_text(table: np.ndarray, stop_ids: set[int], max_tokens: int) -> dict[tuple[int, ...], float]:
    """Every text that ends, and the sum of its log-probabilities."""
    found = {}
    for length in range(1, max_tokens + 1):
        for ids in itertools.product(range(len(table)), repeat=length):
            ends = [id in stop_ids for id in ids]
            if not any(ends[:-1]) and (ends[-1] or length == max_tokens):
                found[ids] = math.fsum(table[a][b] for a, b in zip((0, *ids), ids, strict=False))
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([-1.0, 0.0, 1.0, 2.5]), st.sets(st.integers(1, 2), max_size=2))
def test_a_search_as_wide_as_all_texts_finds_the_best(seed: int, penalty: float, stop_ids: set[int]):
    table = np.log(np.random.default_rng(seed).dirichlet(np.ones(3), 3))
    texts = every_text(table, stop_ids, 4)
    found = searched(table, stop_ids, 4, BeamSearch(len(texts), penalty, "never")).finished
    assert {tuple(text.ids) for text in found} == texts.keys()
    for text in found:
        assert text.total == pytest.approx(texts[tuple(text.ids)])
    best = max(total / len(ids) ** penalty for ids, total in texts.items())
    assert found[0].score == pytest.approx(best)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([-1.0, 0.0, 1.0, 3.0]),
    st.sampled_from([False, True, "never"]), st.sets(st.integers(0, 5), max_size=3), st.integers(1, 8),
)  # fmt: skip
def test_what_any_search_finds_is_sound(
    seed: int, beams: int, penalty: float, early: Any, stop_ids: set[int], limit: int
):
    table = np.log(np.random.default_rng(seed).dirichlet(np.ones(6), 6))
    found = searched(table, stop_ids, limit, BeamSearch(beams, penalty, early)).finished
    assert 1 <= len(found) <= beams
    assert len({tuple(text.ids) for text in found}) == len(found)
    assert [text.score for text in found] == sorted((text.score for text in found), reverse=True)
    for text in found:
        total = math.fsum(table[a][b] for a, b in zip([0, *text.ids], text.ids, strict=False))
        assert text.score == pytest.approx(total / len(text.ids) ** penalty)
        assert not stop_ids & set(text.ids[:-1])
        assert text.ended == (text.ids[-1] in stop_ids)
        assert text.ended or len(text.ids) == limit


def test_early_stopping_takes_the_first_and_never_the_best():
    """Ending at once is likelier than any one token; the certain text after token 1 is better by its length."""
    end, rest = math.log(0.5), math.log(0.5)
    table = np.array([[-np.inf, rest, end], [-np.inf, math.log(0.999), math.log(0.001)], [0, 0, 0]])
    lengths = {early: [len(text.ids) for text in searched(table, {2}, 9, BeamSearch(2, 1.0, early)).finished]
               for early in (True, False, "never")}  # fmt: skip
    assert lengths[True] == [2, 1] or lengths[True] == [1, 2]
    assert lengths["never"][0] == 9


# through a model


def test_one_beam_is_greedy(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    for params in ({}, {"presence_penalty": 0.5, "logit_bias": {7: 2.0}, "banned_ids": [1]}, {"min_tokens": 6}):
        ids = llm.generate(PROMPT, max_tokens=12, temperature=0, ignore_eos=True, **params).ids
        for end in (None, ids[4]):
            monkeypatch.setattr(llm, "stop_ids", frozenset([end] if end is not None else []))
            greedy = llm.generate(PROMPT, max_tokens=12, temperature=0, **params)
            for early in (False, "never"):
                (beam,) = llm.beams(PROMPT, 1, max_tokens=12, early_stopping=early, **params)
                assert (beam.ids, beam.text, beam.finish_reason, beam.stop_reason) == (
                    greedy.ids, greedy.text, greedy.finish_reason, greedy.stop_reason,
                )  # fmt: skip


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.5])
def test_the_score_is_that_of_the_text(llm: LLM, penalty: float):
    found = llm.beams(
        PROMPT, 5, max_tokens=20, length_penalty=penalty, num_return_sequences=5, logprobs=2, prompt_logprobs=1
    )
    assert len({tuple(beam.ids) for beam in found}) == 5
    prompt = llm.generate(PROMPT, max_tokens=0, prompt_logprobs=1).prompt_logprobs
    for beam in found:
        scored = llm.score(PROMPT, beam.ids)
        assert beam.score == pytest.approx(scored.logprob / len(beam.ids) ** penalty, rel=TOLERANCE)
        assert [token.id for token in beam.logprobs] == beam.ids
        for mine, theirs in zip(beam.logprobs, scored.tokens, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=5e-5)
            assert (mine.rank, len(mine.top)) == (theirs.rank, 2)
        assert [token and token.id for token in beam.prompt_logprobs] == [token and token.id for token in prompt]
    assert llm.beams(PROMPT, 5, max_tokens=20, length_penalty=penalty)[0].ids == found[0].ids


def test_every_block_is_given_back(llm: LLM, caches: list[KVCache], monkeypatch: pytest.MonkeyPatch):
    said = llm.generate(PROMPT, max_tokens=30, ignore_eos=True).ids
    monkeypatch.setattr(llm, "stop_ids", frozenset(said[10:14]))
    for early, params in itertools.product((False, True, "never"), ({}, {"max_tokens": 0}, {"max_tokens": 1})):
        caches.clear()
        llm.beams(PROMPT, 4, early_stopping=early, **params)
        (cache,) = caches
        assert used_blocks(cache) == 0
        assert all(not pool._shared for pool in cache.pools)


def test_a_step_is_one_pass_and_the_prompt_is_held_once(caches: list[KVCache], monkeypatch: pytest.MonkeyPatch):
    llm = random_llm(max_position_embeddings=256)
    caches.clear()
    passes, most = [], []
    forward = llm.model.forward

    def counting(chunks: Any) -> np.ndarray:
        logits = forward(chunks)
        passes.append([len(chunk.ids) for chunk in chunks])
        most.append(used_blocks(caches[0]))
        return logits

    monkeypatch.setattr(llm.model, "forward", counting)
    llm.beams(PROMPT * 4, 6, max_tokens=20, ignore_eos=True)
    assert passes == [[160]] + [[1] * 6] * 19
    assert max(most) <= 5 + 6 * 1  # 160 tokens in blocks of 32, and the last 20 of each


def test_what_stands_in_the_way_of_nothing(llm: LLM):
    (beam,) = llm.beams(PROMPT, 3, max_tokens=0, num_return_sequences=2)
    assert (beam.ids, beam.text, beam.score, beam.finish_reason) == ([], "", 0.0, "length")
    assert beam.timings.time_to_first_token is None
    one, two = llm.beams(PROMPT, 2, max_tokens=1, num_return_sequences=2)
    likeliest = llm.generate(PROMPT, max_tokens=1, logprobs=2).logprobs[0].top
    assert [(beam.ids, pytest.approx(beam.score)) for beam in (one, two)] == [([id], p) for id, p in likeliest]
    assert one.timings.prompt_tokens == 40
    assert one.timings.time_to_first_token > one.timings.decode_seconds


def test_the_context_ends_a_text_too():
    llm = random_llm()
    found = llm.beams([*PROMPT, *PROMPT, *PROMPT], 3, num_return_sequences=3, ignore_eos=True)
    assert [(len(beam.ids), beam.finish_reason) for beam in found] == [(8, "length")] * 3
    with pytest.raises(ContextOverflow):
        llm.beams(PROMPT * 4, 2)


def test_the_text_and_the_end():
    llm = LLM(chain_checkpoint(say("bcd", after="a")))
    beam = llm.beams("a", 3, num_return_sequences=3, max_tokens=40)[0]
    assert (beam.text, beam.ids, beam.finish_reason, beam.stop_reason) == ("bcd", [*b"bcd", END], "stop", END)
    assert isinstance(beam, Beam)
    assert beam.search == BeamSearch(3, num_return_sequences=3)
    assert llm.beams("a", 2, max_tokens=6, ignore_eos=True)[0].ids[:5] == [*b"bcd", END, END]


def test_masks_that_leave_fewer_texts_than_beams():
    llm = LLM(chain_checkpoint(say("bcd", after="a")))
    found = llm.beams("a", 4, max_tokens=2, num_return_sequences=4, allowed_ids=[98, END])
    assert sorted(beam.ids for beam in found) == sorted([[END], [98, END], [98, 98]])
    with pytest.raises(SamplingError, match="all tokens are masked"):
        llm.beams("a", 2, banned_ids=list(range(VOCAB)))


def test_adapters_apply(caches: list[KVCache]):
    llm = load(GOLDEN / "llama", kv_dtype="float32", lora=ADAPTERS / "llama-all")
    with_it, without = (llm.beams([3, 5, 8], 3, max_tokens=8, adapters=which) for which in (None, []))
    assert with_it[0].ids != without[0].ids
    for beam, which in ((with_it[0], None), (without[0], [])):
        assert beam.score == pytest.approx(llm.score([3, 5, 8], beam.ids, which).logprob / len(beam.ids), rel=TOLERANCE)


def test_nothing_is_drawn_whatever_the_model_advises():
    advice = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.5}
    config, chain = {"generation_config": advice}, say("bcd", after="a")
    beam = LLM(chain_checkpoint(chain, **config)).beams("a", 2, max_tokens=5)[0]
    assert (beam.params.temperature, beam.params.top_k, beam.params.top_p) == (0.0, 0, 1.0)
    assert beam.params.repetition_penalty == 1.5  # which is no matter of chance


@pytest.mark.parametrize(
    ("parameter", "asked"),
    [
        ("num_beams", {"num_beams": 0}), ("num_beams", {"num_beams": 513}), ("num_beams", {"num_beams": 2.0}),
        ("num_beams", {"num_beams": True}), ("num_return_sequences", {"num_return_sequences": 4}),
        ("num_return_sequences", {"num_return_sequences": 0}), ("length_penalty", {"length_penalty": math.nan}),
        ("length_penalty", {"length_penalty": 11}), ("length_penalty", {"length_penalty": None}),
        ("early_stopping", {"early_stopping": "always"}), ("early_stopping", {"early_stopping": 1}),
        ("temperature", {"temperature": 0.7}), ("top_k", {"top_k": 3}), ("top_p", {"top_p": 0.5}),
        ("min_p", {"min_p": 0.1}), ("mirostat", {"mirostat": 2}), ("xtc_probability", {"xtc_probability": 0.5}),
        ("stop", {"stop": "x"}), ("logprobs_of", {"logprobs_of": "sampled"}), ("params", {"params": 3}),
        ("context_full", {"context_full": "roll"}),
        ("banned_ids", {"banned_ids": [VOCAB]}), ("prompt", {"prompt": [VOCAB]}), ("nonsense", {"nonsense": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused(parameter: str, asked: dict[str, Any], caches: list[KVCache]):
    llm = LLM(chain_checkpoint(say("bcd", after="a")))
    with pytest.raises(BadRequest) as caught:
        llm.beams(**{"prompt": "a", "num_beams": 3} | asked)
    assert caught.value.parameter == parameter
    assert not any(used_blocks(cache) for cache in caches)


def test_processors_of_ones_own_see_each_texts_past():
    llm = LLM(chain_checkpoint(say("bcd", after="a")))
    seen = set()

    def shout(ids: np.ndarray, logprobs: np.ndarray) -> np.ndarray:
        seen.add(tuple(ids.tolist()))
        assert np.exp(logprobs).sum() == pytest.approx(1)
        return np.where(np.arange(VOCAB) == 33, 0.0, logprobs)  # certain beside what the model says

    beam = llm.beams("a", 2, max_tokens=3, processors=shout)[0]
    assert beam.ids == [33, 33, 33]
    assert beam.score == 0
    assert (97, 33, 33) in seen

"""Log-probabilities, scores, samples and replays, through a model; references are one forward in float64, no cache."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import float64_model
from tests.chain_models import END, VOCAB, chain_checkpoint, say
from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tests.tiny_models import WINDOWED, random_model
from tinyinfer import LLM, SamplingParams
from tinyinfer.answer import Piece
from tinyinfer.cached_sequence import CachedSequence
from tinyinfer.checkpoint.source import Checkpoint
from tinyinfer.errors import BadRequest, ContextOverflow

TOLERANCE = 5e-5  # what the golden logits are held to; float32 sums in another order than float64 ones
PROMPT = np.random.default_rng(5).integers(0, 256, 40).tolist()


def random_llm(**changes: Any) -> LLM:
    config, tensors = random_model(vocab_size=VOCAB, **changes)
    tokenizer = {"eos_token": "<|im_end|>"}
    return LLM(
        Checkpoint(Path("random"), config, tensors, {}, byte_level_tokenizer_json(), tokenizer, None),
        kv_dtype="float32",
    )


@pytest.fixture(scope="module")
def llm() -> LLM:
    return random_llm()


@pytest.fixture(scope="module", params=[{}, WINDOWED], ids=["full", "windows"])
def either(request: pytest.FixtureRequest) -> LLM:
    return random_llm(**request.param)


def reference(llm: LLM, ids: list[int]) -> np.ndarray:
    """Log-probabilities after every id, float64 [n, vocab]."""
    logits = float64_model.logits(llm.checkpoint.config, llm.checkpoint.tensors, ids)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 1.7, "top_k": 5, "presence_penalty": 1}], ids=str
)
def test_the_models_own_log_probabilities_whatever_the_sampling(llm: LLM, params: dict[str, Any]):
    done = llm.generate(PROMPT, max_tokens=12, seed=3, ignore_eos=True, logprobs=3, **params)
    rows = reference(llm, PROMPT + done.ids)[len(PROMPT) - 1 : -1]
    assert [token.id for token in done.logprobs] == done.ids
    for token, row in zip(done.logprobs, rows, strict=True):
        assert token.logprob == pytest.approx(row[token.id], abs=TOLERANCE)
        likeliest = np.argsort(-row)[:3]
        assert [id for id, _ in token.top] == likeliest.tolist()
        np.testing.assert_allclose([logprob for _, logprob in token.top], row[likeliest], rtol=0, atol=TOLERANCE)
        assert token.rank == 1 + (row > row[token.id]).sum()
    if params["temperature"] == 0:
        assert all(token.top[0][0] == token.id for token in done.logprobs)


def test_asking_changes_nothing_and_not_asking_gives_none(llm: LLM):
    ask = {"max_tokens": 8, "temperature": 1, "seed": 2, "ignore_eos": True}
    plain, asked = llm.generate(PROMPT, **ask), llm.generate(PROMPT, logprobs=0, prompt_logprobs=1, **ask)
    assert (plain.logprobs, plain.prompt_logprobs) == (None, None)
    assert asked.ids == plain.ids
    assert all(token.top == () for token in asked.logprobs)
    assert all(piece.logprobs is None for piece in llm.stream(PROMPT, **ask))


def test_those_of_what_was_drawn_from(llm: LLM):
    ask = {"max_tokens": 6, "seed": 2, "ignore_eos": True, "logprobs": 9, "logprobs_of": "sampled"}
    done = llm.generate(PROMPT, temperature=1, top_k=4, **ask)
    for token in done.logprobs:
        assert len(token.top) == 4
        assert math.fsum(math.exp(logprob) for _, logprob in token.top) == pytest.approx(1)
        assert (token.id, token.logprob) in token.top
    greedy = llm.generate(PROMPT, **ask)
    assert [token.top for token in greedy.logprobs] == [((id, 0.0),) for id in greedy.ids]


def test_every_piece_has_those_of_its_ids():
    chain = LLM(chain_checkpoint(say("bcd", after="a")))
    pieces: list[Piece] = list(chain.stream("a", logprobs=1))
    assert [[token.id for token in piece.logprobs] for piece in pieces] == [piece.ids for piece in pieces]
    assert pieces[-1].ids == [END]
    assert [token for piece in pieces for token in piece.logprobs] == pieces[-1].completion.logprobs


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("rows", [1, 7, 512])
def test_log_probabilities_of_the_prompt(either: LLM, rows: int, max_tokens: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tinyinfer.cached_sequence.LOGITS_AT_ONCE", rows * VOCAB)
    session = either.session()
    session.generate(PROMPT[:20], max_tokens=2)  # what is cached has no logits any more
    done = session.generate(PROMPT, max_tokens=max_tokens, prompt_logprobs=2, ignore_eos=True)
    expected = reference(either, PROMPT)[np.arange(len(PROMPT) - 1), PROMPT[1:]]
    assert done.prompt_logprobs[0] is None
    assert [token.id for token in done.prompt_logprobs[1:]] == PROMPT[1:]
    found = [token.logprob for token in done.prompt_logprobs[1:]]
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    assert done.timings.cached_tokens == 0
    assert len(done.ids) == max_tokens
    assert done.ids == either.generate(PROMPT, max_tokens=max_tokens, ignore_eos=True).ids


def test_the_score_of_a_continuation(either: LLM):
    score = either.score(PROMPT[:30], PROMPT[30:])
    expected = reference(either, PROMPT)[np.arange(29, 39), PROMPT[30:]]
    np.testing.assert_allclose([token.logprob for token in score.tokens], expected, rtol=0, atol=TOLERANCE)
    assert score.logprob == pytest.approx(expected.sum(), abs=1e-3)
    assert not score.greedy
    said = either.generate(PROMPT, max_tokens=5, ignore_eos=True).ids
    assert either.score(PROMPT, said).greedy


def test_texts_are_scored_apart(llm: LLM):
    whole = llm.score("the cat", " sat")
    before = llm.tokenizer.encode("the cat")
    assert whole.tokens == llm.score(before, llm.tokenizer.encode(" sat")).tokens
    with pytest.raises(BadRequest, match="the continuation is empty"):
        llm.score("a", "")
    with pytest.raises(BadRequest, match="id 999 is outside") as caught:
        llm.score("a", [999])
    assert caught.value.parameter == "continuation"
    with pytest.raises(ContextOverflow, match="140 tokens"):
        llm.score([1] * 100, [1] * 40)


# samples


def test_samples_are_what_each_seed_gives_alone(either: LLM):
    ask = {"max_tokens": 20, "temperature": 1, "ignore_eos": True}
    samples = either.samples(PROMPT, 4, seed=11, logprobs=1, **ask)
    alone = [either.generate(PROMPT, seed=11 + i, logprobs=1, **ask) for i in range(4)]
    assert [done.ids for done in samples] == [done.ids for done in alone]
    assert [done.params.seed for done in samples] == [11, 12, 13, 14]
    assert len({tuple(done.ids) for done in samples}) == 4
    assert [done.timings.cached_tokens for done in samples] == [0, 39, 39, 39]


def test_samples_share_the_blocks_of_the_prompt(llm: LLM):
    first = CachedSequence(llm.model)
    first.prefill(PROMPT)
    (pool,) = first.sequence.cache.pools
    before = pool.num_blocks - pool.num_free
    branches = [first.fork() for _ in range(3)]
    assert pool.num_blocks - pool.num_free == before
    for branch in branches:
        branch.step(1)
    assert pool.num_blocks - pool.num_free == before + 3  # each has a copy of the block that it goes on in


def test_branches_go_on_as_if_alone(either: LLM):
    first = CachedSequence(either.model)
    first.prefill(PROMPT)
    branches = [first, first.fork(), first.fork()]
    texts = [list(PROMPT) for _ in branches]
    for turn in range(30):
        for i, branch in enumerate(branches):
            id = (7 * turn + 31 * i) % 256
            texts[i].append(id)
            logits = branch.step(id)
            if turn % 10 == 9:
                expected = float64_model.logits(either.checkpoint.config, either.checkpoint.tensors, texts[i])[-1]
                np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_an_impossible_number_of_samples(llm: LLM, n: Any):
    with pytest.raises(BadRequest, match="n should be a whole number from 1") as caught:
        llm.samples("a", n)
    assert caught.value.parameter == "n"


def test_samples_of_nothing_and_of_a_text_that_ends_at_once():
    chain = LLM(chain_checkpoint({ord("a"): END}))
    assert [done.ids for done in chain.samples("a", 3)] == [[END]] * 3
    assert [done.ids for done in chain.samples("a", 2, max_tokens=0)] == [[], []]


# replays

EVERYTHING = [
    {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.97, "top_n_sigma": 3.0},
    {"temperature": 1.2, "xtc_probability": 0.5, "repetition_penalty": 1.2, "dry_multiplier": 0.8},
    {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 3.0, "frequency_penalty": 0.3, "presence_penalty": -0.2},
    {"temperature": 0.8, "top_p": 0.9, "order": ["top_p", "temperature"], "logit_bias": {5: 3.0}, "banned_ids": [1, 2]},
    {"temperature": 0, "repetition_penalty": 1.3, "dry_multiplier": 2.0, "dry_allowed_length": 1, "min_tokens": 9},
]


@pytest.mark.parametrize("params", EVERYTHING, ids=str)
def test_the_record_of_a_completion_gives_it_again(llm: LLM, params: dict[str, Any]):
    first = llm.generate(PROMPT, max_tokens=40, ignore_eos=True, **params)
    record = json.loads(json.dumps(first.sampling))
    again = llm.generate(PROMPT, SamplingParams.from_dict(record))
    assert (again.ids, again.params) == (first.ids, first.params)


@pytest.mark.parametrize("params", EVERYTHING[:4], ids=str)
def test_an_answer_is_the_same_whatever_other_answers_are_made_beside_it(llm: LLM, params: dict[str, Any]):
    ask = {"max_tokens": 15, "ignore_eos": True, **params}
    alone = [llm.generate(PROMPT[i:], seed=i, **ask).ids for i in range(3)]
    streams = [llm.stream(PROMPT[i:], seed=i, **ask) for i in range(3)]
    found: list[list[int]] = [[], [], []]
    for _ in range(16):
        for ids, stream in zip(found, streams, strict=True):
            ids += next(stream).ids
    assert found == alone


def test_penalties_know_the_prompt_also_where_it_is_cached(llm: LLM):
    session = llm.session()
    ask = {"max_tokens": 10, "repetition_penalty": 1.5, "ignore_eos": True}
    cold = llm.generate(PROMPT, **ask)
    session.generate(PROMPT[:30], max_tokens=3)
    assert session.generate(PROMPT, **ask).ids == cold.ids


def test_the_end_waits_for_min_tokens_through_a_model():
    chain = LLM(chain_checkpoint(say("bc", after="a")))
    assert chain.generate("a").ids == [*b"bc", END]
    done = chain.generate("a", min_tokens=3)
    assert END not in done.ids[:3]
    assert done.ids[:2] == list(b"bc")


def test_a_repeat_is_broken_by_dry_but_not_across_a_breaker():
    llm = LLM(chain_checkpoint(say("xyz ", end=None, after="a")))
    ask = {"max_tokens": 16, "dry_multiplier": 100.0, "dry_allowed_length": 4}
    assert llm.generate("a", max_tokens=16).text == "xyz " * 4
    assert llm.generate("a", **ask).text != "xyz " * 4
    assert llm.generate("a", **ask, dry_breakers=["y"]).text == "xyz " * 4
    assert llm.generate("a", **ask, dry_breakers=["z x"]).text == "xyz " * 4  # three tokens in a row


@pytest.mark.parametrize("name", ["banned_ids", "allowed_ids", "logit_bias"])
def test_ids_outside_the_vocabulary_are_refused_before_anything_runs(llm: LLM, name: str):
    with pytest.raises(BadRequest, match=f"{name}: id {VOCAB} is outside"):
        llm.stream("a", **{name: {VOCAB: 1} if name == "logit_bias" else [VOCAB]})

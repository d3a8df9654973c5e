"""Forms of answers by way of a whole model: streamed, in several samples, repeated, with log-probabilities."""

from __future__ import annotations

import asyncio
import builtins
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.text.tiny_tokenizers import added_token, byte_level_tokenizer_json, sentencepiece_tokenizer_json
from tests.tiny_models import random_model
from tinyinfer import LLM, Engine, SamplingParams
from tinyinfer.checkpoint.source import Checkpoint
from tinyinfer.errors import BadRequest, MissingExtra, SamplingError, UnsupportedModel

SCHEMA = {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"enum": [1, 20, 300]}},
    "required": ["name", "n"], "additionalProperties": False,
}  # fmt: skip


def tiny(tokenizer_json: str | None, vocab_size: int = 280, **changes: Any) -> LLM:
    config, tensors = random_model(vocab_size=vocab_size, num_hidden_layers=1, max_position_embeddings=256, **changes)
    return LLM(Checkpoint(Path("random"), config, tensors, {}, tokenizer_json), kv_dtype="float32")


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_stream_joined_is_the_answer(llm: LLM, temperature: int):
    for seed in range(4):
        given = {"json_schema": SCHEMA, "temperature": temperature, "seed": seed, "max_tokens": 100}
        pieces = list(llm.stream("a", **given))
        done = pieces[-1].completion
        assert "".join(piece.text for piece in pieces) == done.text
        assert [id for piece in pieces for id in piece.ids] == done.ids
        assert done.finish_reason == "stop"
        found = json.loads(done.text)
        assert list(found) == ["name", "n"]
        assert len(found["name"]) <= 5
        assert found["n"] in (1, 20, 300)


def test_samples_keep_to_the_form_each_for_itself(llm: LLM):
    given = {"json_schema": SCHEMA, "temperature": 1, "seed": 7, "max_tokens": 100}
    found = llm.samples("a", 3, **given)
    assert [done.ids for done in found] == [llm.generate("a", **{**given, "seed": 7 + i}).ids for i in range(3)]
    assert len({done.text for done in found}) == 3
    assert all(json.loads(done.text) for done in found)


def test_a_record_repeats_the_answer(llm: LLM):
    for form in (
        {"json_schema": SCHEMA},
        {"regex": "[a-z]{3,9}"},
        {"choice": ["yes", "no"]},
        {"grammar": 'start: "a"+ "b"'},
    ):
        done = llm.generate("a", temperature=1, max_tokens=60, **form)
        record = json.loads(json.dumps(done.sampling))
        assert llm.generate("a", SamplingParams.from_dict(record)).ids == done.ids


def test_answers_side_by_side_don_t_disturb_each_other(llm: LLM):
    given = {"json_schema": SCHEMA, "temperature": 1, "max_tokens": 100}
    alone = [llm.generate("a", seed=seed, **given).text for seed in (1, 2)]
    streams = [llm.stream("a", seed=seed, **given) for seed in (1, 2)]
    texts = ["", ""]
    while any(streams):
        for i, stream in enumerate(streams):
            piece = next(stream, None) if stream else None
            texts[i] += piece.text if piece else ""
            streams[i] = stream if piece else None
    assert texts == alone


def test_threads_and_an_engine_say_what_is_said_alone(llm: LLM):
    each = [llm.resolved_params(json_schema=SCHEMA, temperature=1, seed=seed, max_tokens=80) for seed in range(3)]
    alone = [llm.generate("ab", params).ids for params in each]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda params: llm.generate("ab", params).ids, each)) == alone

    async def last(engine: Engine, params: SamplingParams) -> list[int]:
        return [piece async for piece in engine.stream("ab", params)][-1].completion.ids

    async def together() -> list[list[int]]:
        engine = Engine(llm)
        return await asyncio.gather(*(last(engine, params) for params in each))

    assert asyncio.run(together()) == alone


@pytest.mark.parametrize("of", ["model", "sampled"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_log_probabilities_are_finite(llm: LLM, of: str, temperature: int):
    given = {"temperature": temperature, "seed": 1, "logprobs": 280, "logprobs_of": of, "max_tokens": 40}
    done = llm.generate("a", json_schema=SCHEMA, prompt_logprobs=1, **given)
    assert len(done.logprobs) == len(done.ids)
    for id, token in zip(done.ids, done.logprobs, strict=True):
        assert token.id == id
        assert math.isfinite(token.logprob)
        assert all(math.isfinite(logprob) for _, logprob in token.top)
        assert math.fsum(math.exp(logprob) for _, logprob in token.top) == pytest.approx(1, abs=1e-5)
        assert id in [one for one, _ in token.top]
        assert (len(token.top) == 280) == (of == "model")


def test_a_stop_string_still_ends_the_text(llm: LLM):
    done = llm.generate("a", regex="[ab]{5}Xc", stop="X", temperature=1, seed=0)
    assert (done.finish_reason, done.stop_reason, len(done.text)) == ("stop", "X", 5)


def test_min_tokens_beyond_the_end_is_a_contradiction(llm: LLM):
    assert len(llm.generate("a", regex="a+", min_tokens=9, max_tokens=30, temperature=1, seed=1).ids) >= 9
    with pytest.raises(SamplingError, match="min_tokens=9 keeps off the end"):
        llm.generate("a", choice=["a"], min_tokens=9)
    with pytest.raises(SamplingError, match="among those that the constraint allows"):
        llm.generate("a", choice=["a"], banned_ids=[97])


def test_a_model_without_a_tokenizer_says_no():
    llm = tiny(None)
    with pytest.raises(UnsupportedModel, match="random: a constraint needs a tokenizer, and this model came without"):
        llm.generate([1], json=True)
    assert llm.generate([1], max_tokens=2, ignore_eos=True).ids


def test_a_model_without_an_end_stops_where_nothing_more_can_come():
    llm = tiny(byte_level_tokenizer_json(), eos_token_id=None)
    assert not llm.stop_ids
    done = llm.generate("a", choice=["abc", "xyz"], temperature=1)
    assert (done.text in ("abc", "xyz"), done.finish_reason) == (True, "stop")
    done = llm.generate("a", regex="a+", max_tokens=9)
    assert (done.text, done.finish_reason) == ("a" * 9, "length")


def test_a_sentencepiece_vocabulary():
    """Whose own ids of "th" begin with a space, so that they can't be taken where only "th" can come."""
    llm = tiny(sentencepiece_tokenizer_json(bos=False), vocab_size=300, eos_token_id=2)
    for form, text in (
        ({"choice": ["th"]}, "th"),
        ({"regex": "leading lead"}, "leading lead"),
        ({"choice": ["é日\n"]}, "é日\n"),
    ):
        done = llm.generate("a", temperature=1, **form)
        assert (done.text, done.finish_reason) == (text, "stop")
    for seed in range(5):
        found = json.loads(llm.generate("a", json_schema=SCHEMA, temperature=1, seed=seed, max_tokens=100).text)
        assert found["n"] in (1, 20, 300)


def test_added_tokens_that_are_text_may_come():
    llm = tiny(byte_level_tokenizer_json((added_token(0, "<call>"),)), eos_token_id=271)
    done = llm.generate("a", choice=["<call>"], temperature=1)
    assert (done.text, done.finish_reason) == ("<call>", "stop")
    ids = llm.constraint(llm.resolved_params(regex="<call>|x")).ids().tolist()
    assert 275 in ids


def test_a_vocabulary_that_can_t_say_it():
    pieces = json.loads(byte_level_tokenizer_json())
    pieces["model"]["vocab"] = {"a": 0, "b": 1, "Ġ": 2}
    pieces["model"]["merges"], pieces["added_tokens"] = [], [added_token(3, "</s>", special=True)]
    pieces["post_processor"] = None
    llm = tiny(json.dumps(pieces), vocab_size=4, eos_token_id=3)
    assert llm.generate([0], regex="[abc]{3}", temperature=1).finish_reason == "stop"
    for form in ({"choice": ["c"]}, {"regex": "c+"}):
        with pytest.raises(BadRequest, match="can't be compiled: the constraint can't be followed: no token goes on"):
            llm.generate([0], **form)


def test_without_llguidance_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "llguidance":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    llm = tiny(byte_level_tokenizer_json())
    for form in ({"json": True}, {"regex": "a"}, {"choice": ["a"]}):
        with pytest.raises(MissingExtra, match=r'pip install "tinyinfer\[json\]"'):
            llm.generate("a", **form)


def test_what_was_compiled_is_kept(llm: LLM):
    params = llm.resolved_params(regex="kept[0-9]")
    first, second = llm.constraint(params), llm.constraint(params)
    first.accept(ord("k"))
    assert second.permits(ord("k"))
    assert not second.permits(ord("e"))


def test_a_beam_search_does_not_pass_over_a_form(llm: LLM):
    for form in ({"json": True}, {"json_schema": SCHEMA}, {"choice": ["a"]}):
        with pytest.raises(BadRequest, match="has no place in a beam search, whose texts are not held to a form"):
            llm.beams("a", 2, **form)

"""Perplexity against one forward a window in float64; divergences between two models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import float64_model
from tests.text.tiny_tokenizers import added_token, byte_level_tokenizer_json
from tests.tiny_models import random_model
from tinyinfer import LLM
from tinyinfer.cached_sequence import CachedSequence
from tinyinfer.checkpoint.source import Checkpoint
from tinyinfer.errors import BadRequest, SamplingError
from tinyinfer.lab.perplexity import Window, measure, windows_of

VOCAB = 275
TEXT = "The quick brown fox jumps over the lazy dog. 🔥 " * 4
TOLERANCE = 5e-5  # what the golden logits are held to
BOS = 270


def random_llm(seed: int = 0, bos: bool = False, tokens: tuple = (), vocab: int = VOCAB, **changes: Any) -> LLM:
    config, tensors = random_model(seed=seed, vocab_size=vocab, **changes)
    files = {"eos_token": "<|im_end|>"} | ({"bos_token": "<s>"} if bos else {})
    tokenizer = byte_level_tokenizer_json(tokens, bos=bos)
    return LLM(Checkpoint(Path(f"random{seed}"), config, tensors, {}, tokenizer, files, None), kv_dtype="float32")


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "with BOS"])
def llm(request: pytest.FixtureRequest) -> LLM:
    return random_llm(bos=request.param)


def log_probabilities(llm: LLM, ids: list[int]) -> np.ndarray:
    logits = float64_model.logits(llm.checkpoint.config, llm.checkpoint.tensors, ids)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


@pytest.mark.parametrize(
    ("count", "window", "stride", "first", "expected"),
    [
        (10, 4, 2, 1, [(0, 1, 4), (2, 4, 6), (4, 6, 8), (6, 8, 10)]),
        (10, 4, 2, 0, [(0, 0, 4), (2, 4, 6), (4, 6, 8), (6, 8, 10)]),
        (10, 4, 4, 1, [(0, 1, 4), (4, 5, 8), (8, 9, 10)]),  # nothing stands before the first of each
        (10, 4, 4, 0, [(0, 0, 4), (4, 4, 8), (8, 8, 10)]),
        (5, 4, 3, 1, [(0, 1, 4), (3, 4, 5)]),
        (4, 4, 2, 1, [(0, 1, 4)]),
        (3, 8, 8, 1, [(0, 1, 3)]),
        (1, 8, 8, 1, [(0, 1, 1)]),
        (0, 8, 8, 1, []),
    ],
)
def test_windows(count, window, stride, first, expected):
    assert windows_of(count, window, stride, first) == [Window(*place) for place in expected]


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (0, 0), (8, 0), (8, 9), (8, -1)])
def test_impossible_windows(window, stride):
    with pytest.raises(BadRequest, match=r"window|stride"):
        windows_of(10, window, stride, 1)


@pytest.mark.parametrize(("window", "stride"), [(64, 32), (64, 64 - 1), (20, 5), (128, 100)])
def test_every_token_is_scored_once_with_what_its_window_holds(llm: LLM, window: int, stride: int):
    bos = [BOS] if llm.tokenizer.bos_token else []
    ids = llm.tokenizer.encode(TEXT, add_special_tokens=False)
    expected, done = [], 0 if bos else 1
    for begin in range(0, len(ids), stride):
        end = min(begin + window - len(bos), len(ids))
        rows = log_probabilities(llm, bos + ids[begin:end])
        expected += [-rows[len(bos) + place - begin - 1, ids[place]] for place in range(done, end)]
        done = end
        if end == len(ids):
            break
    told = []
    found, *rest = measure(llm, TEXT, window, stride, step=lambda *progress: told.append(progress))
    assert found.tokens == len(expected) == len(ids) - (0 if bos else 1)
    assert found.mean_surprise == pytest.approx(np.mean(expected), abs=TOLERANCE)
    assert found.perplexity == pytest.approx(math.exp(np.mean(expected)), rel=2 * TOLERANCE)
    assert found.standard_error == pytest.approx(np.std(expected, ddof=1) / math.sqrt(len(expected)), rel=1e-4)
    size = len(TEXT.encode()) - (0 if bos else len(llm.tokenizer.token_bytes(ids[0])))
    assert found.bits_per_byte == pytest.approx(sum(expected) / math.log(2) / size, rel=1e-4)
    assert rest == [None, None]
    assert told == [(i + 1, found.windows) for i in range(found.windows)]


def test_rows_are_taken_some_at_a_time(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    whole = measure(llm, TEXT, 100, 50)[0]
    monkeypatch.setattr("tinyinfer.cached_sequence.LOGITS_AT_ONCE", 7 * VOCAB)
    assert measure(llm, TEXT, 100, 50)[0].mean_surprise == pytest.approx(whole.mean_surprise, abs=1e-6)


def test_a_model_is_no_way_from_itself(llm: LLM):
    found, reference, apart = measure(llm, TEXT, 64, 32, llm)
    assert found == reference
    assert (apart.mean, apart.largest, apart.same_likeliest) == (0, 0, 1)


def test_the_divergence_from_another_model():
    llm, against = random_llm(0), random_llm(1)
    ids = llm.tokenizer.encode(TEXT)[:60]
    text = llm.tokenizer.decode(ids)
    found, reference, apart = measure(llm, text, 128, 64, against)
    p, q = log_probabilities(against, ids)[:-1], log_probabilities(llm, ids)[:-1]
    divergences = (np.exp(p) * (p - q)).sum(1)
    assert apart.mean == pytest.approx(divergences.mean(), rel=1e-4)
    assert apart.largest == pytest.approx(divergences.max(), rel=1e-3)
    assert apart.median == pytest.approx(np.median(divergences), rel=1e-3)
    assert apart.same_likeliest == pytest.approx((p.argmax(1) == q.argmax(1)).mean())
    assert reference.mean_surprise == pytest.approx(-p[np.arange(59), ids[1:]].mean(), abs=TOLERANCE)
    assert found.mean_surprise == pytest.approx(-q[np.arange(59), ids[1:]].mean(), abs=TOLERANCE)


def test_what_can_not_be_measured(llm: LLM):
    with pytest.raises(BadRequest, match="within the context of 128, found 129"):
        measure(llm, TEXT, 129, 64)
    with pytest.raises(BadRequest, match="too few to predict"):
        measure(llm, "", 64, 32)
    with pytest.raises(BadRequest, match="vocabularies of 275 and 280 tokens"):
        measure(llm, TEXT, 64, 32, random_llm(vocab=280))
    other = random_llm(bos=llm.tokenizer.bos_token is None)
    assert measure(llm, TEXT, 64, 32, other)[2].mean < 1e-9  # the same weights; the text and not BOS is compared


def test_one_token_has_no_error(llm: LLM):
    found = measure(llm, "ab" if llm.tokenizer.bos_token is None else "a", 64, 32)[0]
    assert (found.tokens, found.standard_error, found.perplexity_error) == (1, None, None)


def test_weights_that_give_no_number_are_an_error(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    rows = CachedSequence.rows
    monkeypatch.setattr(CachedSequence, "rows", lambda *args: (part * np.float32(np.nan) for part in rows(*args)))
    with pytest.raises(SamplingError, match="found nan at id 0"):
        measure(llm, TEXT, 64, 32)


def test_a_model_of_other_tokens_is_refused():
    other = random_llm(tokens=(added_token(0, "fox"),))
    with pytest.raises(BadRequest, match="other tokens than"):
        measure(random_llm(), TEXT, 64, 32, other)

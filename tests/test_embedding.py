"""Texts to vectors, held against transformers' own last hidden states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.test_scores import PROMPT, random_llm
from tests.tiny_models import ARCHITECTURES, GOLDEN, WINDOWED
from tinyinfer import LLM, load
from tinyinfer.cache import KVCache
from tinyinfer.embedding import POOLINGS
from tinyinfer.errors import BadRequest, ContextOverflow
from tinyinfer.model.forward import Chunk
from tinyinfer.model.tensors import floats

HIDDEN = safetensors.numpy.load_file(GOLDEN.parent / "hidden" / "hidden.safetensors")
TOLERANCE = 5e-5  # as of logits, on vectors of length about sqrt(64): float32 sums in another order


@pytest.fixture(scope="module", params=[{}, WINDOWED], ids=["full", "windows"])
def llm(request: pytest.FixtureRequest) -> LLM:
    return random_llm(max_position_embeddings=2048, **request.param)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_hidden_states_of_transformers(name: str):
    llm = load(GOLDEN / name, kv_dtype="float32")
    ids = safetensors.numpy.load_file(GOLDEN / name / "golden.safetensors")["input_ids"].reshape(-1).tolist()
    llm.context = max(llm.context, len(ids))  # dynamic scaling goes past the original length
    for pooling, expected in zip(("mean", "last", "cls"), HIDDEN[name], strict=True):
        (vector,) = llm.embed([ids], pooling, normalize=False)
        np.testing.assert_allclose(vector, expected, rtol=0, atol=TOLERANCE)
        (unit,) = llm.embed([ids], pooling)
        np.testing.assert_allclose(unit, expected / np.linalg.norm(expected), rtol=0, atol=TOLERANCE)


def test_the_head_makes_logits_of_them(llm: LLM):
    sequence = llm.model.new_cache().sequence()
    hidden = llm.model.hidden([Chunk(sequence, np.array(PROMPT))])
    assert (hidden.shape, hidden.dtype, sequence.length) == ((40, 40), np.float32, 40)
    logits = hidden @ floats(llm.model.tensors.head).T
    np.testing.assert_allclose(logits, llm.forward(PROMPT), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_texts_together_are_as_alone(llm: LLM, pooling: str):
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 256, n).tolist() for n in (3, 1, 500, 20, 1100, 40, 512, 513, 2)]
    together = llm.embed(texts, pooling)
    assert (together.shape, together.dtype) == ((9, 40), np.float32)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-6)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(llm.embed([text], pooling)[0], vector, rtol=0, atol=TOLERANCE)


def test_a_long_text_in_parts_is_as_whole(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    whole = llm.embed([PROMPT])
    monkeypatch.setattr("tinyinfer.embedding.MOST_ROWS", 7)
    np.testing.assert_allclose(llm.embed([PROMPT]), whole, rtol=0, atol=TOLERANCE)


def test_texts_and_ids(llm: LLM):
    ids = llm.tokenizer.encode("the cat")
    np.testing.assert_array_equal(llm.embed("the cat"), llm.embed([ids]))
    np.testing.assert_array_equal(llm.embed(["the cat"]), llm.embed([ids]))


def test_blocks_are_given_back_and_no_logits_are_made(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    caches: list[KVCache] = []
    new_cache = llm.model.new_cache
    monkeypatch.setattr(llm.model, "new_cache", lambda: caches.append(new_cache()) or caches[-1])
    monkeypatch.setattr(llm.model._tape, "run", None)
    llm.embed([PROMPT, PROMPT])
    assert all(pool.num_free == pool.num_blocks > 0 for pool in caches[0].pools)


@pytest.mark.parametrize(
    ("texts", "pooling", "parameter"),
    [
        ([], "mean", "texts"), (["a"], "max", "pooling"), ([[275]], "mean", "prompt"), ([[1.5]], "mean", "prompt"),
        ([3], "mean", "prompt"), ([""], "mean", "prompt"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused(llm: LLM, texts: Any, pooling: str, parameter: str):
    with pytest.raises(BadRequest) as caught:
        llm.embed(texts, pooling)
    assert caught.value.parameter == parameter
    with pytest.raises(ContextOverflow):
        llm.embed([[1] * 2049])


def test_adapters_apply():
    from tests.checkpoint.test_adapters import ADAPTERS

    llm = load(GOLDEN / "llama", kv_dtype="float32", lora=ADAPTERS / "llama-all")
    assert np.abs(llm.embed([[3, 4, 5]]) - llm.embed([[3, 4, 5]], adapters=[])).max() > 0.01
    plain = load(GOLDEN / "llama", kv_dtype="float32")
    np.testing.assert_array_equal(llm.embed([[3, 4, 5]], adapters=[]), plain.embed([[3, 4, 5]]))

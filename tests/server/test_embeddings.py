"""/v1/embeddings by OpenAI's own client, against what Python gives for the same."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import openai
import pytest

from tests.server.served import Served, chain_llm, served, wait_for


@pytest.mark.parametrize("form", ["float", "base64", None])
@pytest.mark.parametrize("texts", ["the quick", ["a", "bc", "def"] * 7, [1, 2, 3], [[1, 2], [3]]], ids=repr)
def test_vectors_are_those_of_python(server: Served, client: openai.OpenAI, texts: Any, form: str | None):
    found = client.embeddings.create(model="chain", input=texts, **({"encoding_format": form} if form else {}))
    expected = server.llm.embed([texts] if isinstance(texts[0], int) else texts)
    assert [one.index for one in found.data] == list(range(len(expected)))
    vectors = [one.embedding for one in found.data]
    if form == "base64":  # asked for by name, it is the caller's to decode
        vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors]
    # the same rows are run in other company here, which changes no bit of them
    assert np.array_equal(np.array(vectors, np.float32), expected)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


def test_pooling_and_length(server: Served, client: openai.OpenAI):
    extra = {"pooling": "last", "normalize": False}
    found = client.embeddings.create(model="chain", input="abc", dimensions=275, user="me", extra_body=extra)
    assert np.array_equal(np.float32(found.data[0].embedding), server.llm.embed("abc", "last", False)[0])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", None), ("input", 5), ("input", ""), ("input", []), ("input", ["a", ""]), ("input", [999]),
        ("input", "x" * 600), ("dimensions", 5), ("dimensions", True), ("encoding_format", "hex"), ("pooling", "max"),
        ("normalize", 1), ("adapters", ["none"]), ("more", 1),
    ],
)  # fmt: skip
def test_every_field_is_checked_and_named(server: Served, field: str, value: Any):
    assert server.refused("/v1/embeddings", {"input": "x", field: value})["param"] == field


def test_beside_running_answers():
    with served(chain_llm(context=20_000)) as server:
        with server.client().completions.create(
            model="chain", prompt="\n", stream=True, extra_body={"ignore_eos": True}
        ) as stream:
            next(stream)
            expected = server.llm.embed("abc")[0]
            for _ in range(3):
                found = server.client().embeddings.create(model="chain", input="abc")
                assert np.array_equal(np.float32(found.data[0].embedding), expected)
            assert server.engine.load.running == 1
        wait_for(lambda: server.at_rest)

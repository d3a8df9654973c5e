"""/v1/completions by OpenAI's own client, /tokenize and /detokenize, against what Python gives for the same."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.server.served import HELLO, Served, chain_llm, served

PARAMS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 1},
    {"max_tokens": 0},
    {"stop": ["fr"]},
    {"seed": 3, "temperature": 4.0, "top_p": 0.8, "max_tokens": 20},
    {"logit_bias": {"105": -100}, "max_tokens": 6},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5, "max_tokens": 6},
    {"seed": 1, "temperature": 5.0, "extra_body": {"top_k": 5, "xtc_probability": 0.5}, "max_tokens": 20},
]


def python(params: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**params, **params.get("extra_body", {})}.items() if key != "extra_body"}


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("prompt", ["Say\n", [83, 97, 10]], ids=["text", "ids"])
def test_answers_are_those_of_python(server: Served, client: openai.OpenAI, prompt: Any, params: dict[str, Any]):
    expected = server.llm.generate(prompt, **python(params))
    found = client.completions.create(model="chain", prompt=prompt, **params)
    assert (found.choices[0].text, found.choices[0].finish_reason) == (expected.text, expected.finish_reason)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(expected.prompt_ids), len(expected.ids))
    chunks = list(client.completions.create(model="chain", prompt=prompt, stream=True, **params))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason == expected.finish_reason


def test_several_prompts_with_several_answers_each(server: Served, client: openai.OpenAI):
    prompts, how = ["a\n", "is\n", "Hi"], {"temperature": 4.0, "max_tokens": 8}
    expected = [server.llm.generate(prompt, seed=9 + i, **how).text for prompt in prompts for i in range(2)]
    found = client.completions.create(model="chain", prompt=prompts, n=2, seed=9, **how)
    assert [choice.text for choice in found.choices] == expected
    assert [choice.index for choice in found.choices] == list(range(6))
    assert found.usage.prompt_tokens == 2 + 3 + 2
    texts, options = [""] * 6, {"include_usage": True}
    stream = client.completions.create(
        model="chain", prompt=[list(prompt.encode()) for prompt in prompts], n=2, seed=9, stream=True,
        stream_options=options, **how,
    )  # fmt: skip
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected
    assert chunk.usage.total_tokens == found.usage.total_tokens


def test_log_probabilities(server: Served, client: openai.OpenAI):
    expected = server.llm.generate("\n", logprobs=2).logprobs[:-1]
    found = client.completions.create(model="chain", prompt="\n", logprobs=2).choices[0].logprobs
    assert found.tokens == list(HELLO)
    assert found.token_logprobs == [token.logprob for token in expected]
    assert found.text_offset == list(range(len(HELLO)))
    assert [sorted(top.values()) for top in found.top_logprobs] == [
        sorted(logprob for _, logprob in token.top) for token in expected
    ]
    parts = [
        chunk.choices[0].logprobs
        for chunk in client.completions.create(model="chain", prompt="\n", logprobs=2, stream=True)
    ]
    assert [offset for part in parts if part for offset in part.text_offset] == found.text_offset
    assert [token for part in parts if part for token in part.tokens] == found.tokens


def test_a_prompt_is_echoed(server: Served, client: openai.OpenAI):
    found = client.completions.create(model="chain", prompt="Say\n", echo=True, logprobs=1, max_tokens=2).choices[0]
    expected = server.llm.generate("Say\n", max_tokens=2, logprobs=1, prompt_logprobs=1)
    assert found.text == "Say\nHi"
    assert found.logprobs.tokens == list(found.text)
    assert found.logprobs.token_logprobs == [None] + [
        token.logprob for token in expected.prompt_logprobs[1:] + expected.logprobs
    ]
    assert found.logprobs.top_logprobs[0] is None
    assert client.completions.create(model="chain", prompt=[83, 10], echo=True).choices[0].text == "S\n" + HELLO
    chunks = client.completions.create(model="chain", prompt=["a\n", "b\n"], echo=True, stream=True)
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["a\n" + HELLO, "b\n" + HELLO]
    scored = client.completions.create(model="chain", prompt="Say\n", echo=True, logprobs=1, max_tokens=0).choices[0]
    assert (scored.text, scored.finish_reason, len(scored.logprobs.tokens)) == ("Say\n", "length", 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", 5), ("prompt", None), ("prompt", {}), ("prompt", [1.5]), ("prompt", [True]), ("prompt", [[1], 2]),
        ("prompt", [-1]), ("prompt", [999]), ("prompt", ["a"] * 2049), ("prompt", [[]]), ("prompt", "\ud800"),
        ("logprobs", True), ("logprobs", 21), ("echo", 1), ("suffix", "x"), ("best_of", 3), ("messages", []),
        ("max_completion_tokens", 3), ("top_logprobs", 3), ("temperature", []), ("max_tokens", -1),
    ],
)  # fmt: skip
def test_every_field_is_checked_and_named(server: Served, field: str, value: Any):
    error = server.refused("/v1/completions", {"prompt": "\n", field: value})
    assert error["param"] == field


def test_a_streamed_echo_has_no_log_probabilities(server: Served):
    body = {"prompt": "\n", "echo": True, "logprobs": 1, "stream": True}
    assert server.refused("/v1/completions", body)["param"] == "echo"


# ---- too long, empty, and at the limit


def test_a_prompt_as_long_as_the_context_and_one_longer():
    with served(chain_llm(context=32)) as server:
        client = server.client()
        for length, said in ((30, 2), (31, 1), (32, 0)):
            found = client.completions.create(model="chain", prompt="x" * (length - 1) + "\n", max_tokens=10)
            assert (found.usage.completion_tokens, found.choices[0].finish_reason) == (said, "length")
        error = server.refused("/v1/completions", {"prompt": "x" * 33})
        assert ("33" in error["message"], "32" in error["message"]) == (True, True)
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
        long = [{"role": "system", "content": "x" * 40}, {"role": "user", "content": "Hi"}]
        error = server.refused("/v1/chat/completions", {"messages": long})
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
        assert client.completions.create(model="chain", prompt="\n", max_tokens=3).choices[0].text == "Hi,"


def test_an_empty_prompt_is_bos_or_refused(server: Served):
    for prompt in ("", [""], [], [[]], None):
        assert server.refused("/v1/completions", {"prompt": prompt})["param"] == "prompt"
    config = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    with served(chain_llm(tokenizer_config=config)) as with_bos:
        for prompt in ("", [""], [], [[]]):
            found = with_bos.client().completions.create(model="chain", prompt=prompt, max_tokens=1)
            assert found.usage.prompt_tokens == 1


def test_the_end_on_the_last_token_allowed_is_a_stop(client: openai.OpenAI):
    count = len(HELLO) + 1
    for most, reason in ((count - 1, "length"), (count, "stop"), (count + 1, "stop"), (1, "length")):
        ask = {"model": "chain", "max_tokens": most}
        assert client.completions.create(prompt="\n", **ask).choices[0].finish_reason == reason
        messages = [{"role": "user", "content": "x"}]
        assert client.chat.completions.create(messages=messages, **ask).choices[0].finish_reason == reason


# ---- /tokenize, /detokenize, /v1/models


def test_tokens_and_back(server: Served):
    found = server.post("/tokenize", {"prompt": "the quick é", "with_pieces": True}).json()
    assert found["tokens"] == server.llm.tokenizer.encode("the quick é")
    assert found["count"] == len(found["tokens"]) == len(found["pieces"])
    assert server.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": "the quick é"}
    messages = [{"role": "user", "content": "Hi"}]
    assert server.post("/tokenize", {"messages": messages}).json()["tokens"] == server.llm.chat_ids(messages)
    assert server.post("/tokenize", {"prompt": ""}).json()["tokens"] == []
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"), ("/tokenize", {"prompt": "a", "more": 1}, "more"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"), ("/tokenize", {"prompt": "\udfff"}, "prompt"),
        ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [999]}, "tokens"), ("/detokenize", {"tokens": [1.5]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": [1], "more": 1}, "more"),
    ],
)  # fmt: skip
def test_bad_tokens_are_refused(server: Served, path: str, body: Any, param: str):
    assert server.refused(path, body)["param"] == param


def test_the_model_is_listed(server: Served, client: openai.OpenAI):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.context_length, model.adapters) == ("chain", "model", 512, [])
    assert client.models.retrieve("chain").id == "chain"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")
    for body in ({"prompt": "x", "model": "other"}, {"prompt": "x", "model": 5}):
        status = 404 if body["model"] == "other" else 400
        assert server.refused("/v1/completions", body, status)["param"] == "model"

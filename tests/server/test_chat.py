"""/v1/chat/completions by OpenAI's own client, whole and streamed, against what Python gives for the same."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.server.served import HELLO, Served, chain_llm, served

ASK = [{"role": "user", "content": "Say it"}]
PARAMS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 3},
    {"max_completion_tokens": 3},
    {"max_tokens": 0},
    {"stop": ","},
    {"stop": ["xx", "my"]},
    {"seed": 3, "temperature": 4.0},
    {"seed": 3, "temperature": 4.0, "top_p": 0.5, "max_tokens": 20},
    {"seed": 4, "temperature": 3.0, "presence_penalty": 1.5, "frequency_penalty": -0.5, "max_tokens": 20},
    {"logit_bias": {"105": 100}, "max_tokens": 4},
    {"logit_bias": {"105": -100.0}, "max_tokens": 4},
    {"seed": 1, "temperature": 5.0, "extra_body": {"top_k": 5, "min_p": 0.01, "max_tokens": 20}},
    {"extra_body": {"repetition_penalty": 1.3, "ignore_eos": True, "max_tokens": 30}},
    {"extra_body": {"min_tokens": 20, "max_tokens": 25, "banned_ids": [73]}},
    {"seed": 1, "temperature": 3.0, "extra_body": {"dry_multiplier": 0.8, "typical_p": 0.9, "max_tokens": 9}},
    {"seed": 1, "temperature": 3.0, "extra_body": {"mirostat": 2, "mirostat_tau": 3.0, "max_tokens": 9}},
    {"extra_body": {"allowed_ids": [72, 105], "max_tokens": 5}},
    {"seed": 1, "temperature": 2.0, "extra_body": {"order": ["top_k", "temperature"], "top_k": 3, "max_tokens": 5}},
]


def in_python(params: dict[str, Any]) -> dict[str, Any]:
    """What a client says, as `LLM.chat` takes it."""
    said = {**params, **params.get("extra_body", {})}
    said.pop("extra_body", None)
    if "max_completion_tokens" in said:
        said["max_tokens"] = said.pop("max_completion_tokens")
    return said


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_answers_are_those_of_python(server: Served, client: openai.OpenAI, params: dict[str, Any]):
    expected = server.llm.chat(ASK, **in_python(params))
    found = client.chat.completions.create(model="chain", messages=ASK, **params)
    choice = found.choices[0]
    assert (choice.message.content, choice.message.role) == (expected.text, "assistant")
    assert choice.finish_reason == expected.finish_reason
    assert found.usage.prompt_tokens == len(expected.prompt_ids)
    assert found.usage.completion_tokens == len(expected.ids)
    assert found.usage.total_tokens == len(expected.prompt_ids) + len(expected.ids)


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_streamed_answers_are_those_of_python(server: Served, client: openai.OpenAI, params: dict[str, Any]):
    expected = server.llm.chat(ASK, **in_python(params))
    chunks = list(client.chat.completions.create(model="chain", messages=ASK, stream=True, **params))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [expected.finish_reason]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_the_last_chunk_has_the_usage_where_it_is_asked_for(server: Served, client: openai.OpenAI):
    chunks = list(
        client.chat.completions.create(
            model="chain", messages=ASK, stream=True, stream_options={"include_usage": True}, max_tokens=4
        )
    )
    assert [len(chunk.choices) for chunk in chunks] == [1] * (len(chunks) - 1) + [0]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    whole = client.chat.completions.create(model="chain", messages=ASK, max_tokens=4)
    assert chunks[-1].usage.model_dump(exclude={"prompt_tokens_details"}) == whole.usage.model_dump(
        exclude={"prompt_tokens_details"}
    )
    text = server.post("/v1/chat/completions", {"messages": ASK, "stream": True}).text
    assert text.endswith("data: [DONE]\n\n")
    assert '"usage"' not in text


def test_several_answers_have_the_seeds_that_follow(server: Served, client: openai.OpenAI):
    how = {"temperature": 4.0, "max_tokens": 12}
    expected = [server.llm.chat(ASK, seed=5 + i, **how).text for i in range(3)]
    found = client.chat.completions.create(model="chain", messages=ASK, n=3, seed=5, **how)
    assert [choice.message.content for choice in found.choices] == expected
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert [choice.seed for choice in found.choices] == [5, 6, 7]
    assert found.usage.prompt_tokens == len(server.llm.chat_ids(ASK))
    texts = dict.fromkeys(range(3), "")
    for chunk in client.chat.completions.create(model="chain", messages=ASK, n=3, seed=5, stream=True, **how):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert list(texts.values()) == expected


def test_log_probabilities(server: Served, client: openai.OpenAI):
    expected = server.llm.chat(ASK, logprobs=2).logprobs[:-1]  # without the end, which says nothing
    found = client.chat.completions.create(model="chain", messages=ASK, logprobs=True, top_logprobs=2)
    tokens = found.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == HELLO
    assert [token.logprob for token in tokens] == [token.logprob for token in expected]
    assert [bytes(token.bytes) for token in tokens] == [char.encode() for char in HELLO]
    assert [[top.logprob for top in token.top_logprobs] for token in tokens] == [
        [logprob for _, logprob in token.top] for token in expected
    ]
    plain = client.chat.completions.create(model="chain", messages=ASK, logprobs=True)
    assert [token.top_logprobs for token in plain.choices[0].logprobs.content] == [[]] * len(HELLO)
    chunks = client.chat.completions.create(model="chain", messages=ASK, logprobs=True, top_logprobs=2, stream=True)
    streamed = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert streamed == tokens
    assert client.chat.completions.create(model="chain", messages=ASK).choices[0].logprobs is None


def test_a_token_that_is_half_a_character_has_its_bytes():
    with served(chain_llm(chain={ord("\n"): 0xC3, 0xC3: 0xA9})) as server:
        found = server.client().chat.completions.create(model="chain", messages=ASK, logprobs=True)
    assert found.choices[0].message.content == "é"
    assert [token.token for token in found.choices[0].logprobs.content] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert [token.bytes for token in found.choices[0].logprobs.content] == [[0xC3], [0xA9]]


def test_what_was_cached_is_told(server: Served, client: openai.OpenAI):
    messages = [{"role": "user", "content": "a long beginning of a text, " * 5}]
    first, second = (client.chat.completions.create(model="chain", messages=messages) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert 0 < second.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens


def test_fields_without_meaning_here_are_taken(client: openai.OpenAI):
    found = client.chat.completions.create(
        model="chain", messages=ASK, user="me", metadata={"a": "b"}, store=False, service_tier="auto", seed=None,
        safety_identifier="x", prompt_cache_key="y", response_format={"type": "text"}, modalities=["text"],
        tool_choice="none", parallel_tool_calls=True, top_logprobs=None, logit_bias=None, stop=None,
    )  # fmt: skip
    assert found.choices[0].message.content == HELLO


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1), ("temperature", "hot"), ("temperature", True), ("top_p", 1.5), ("top_p", -0.1), ("n", 0),
        ("n", 1.5), ("n", 129), ("max_tokens", -1), ("max_completion_tokens", -2), ("max_completion_tokens", "many"),
        ("stop", ""), ("stop", 5), ("seed", -3), ("seed", 1.5), ("logprobs", 3), ("top_logprobs", 3),
        ("logit_bias", {"x": 1}), ("logit_bias", {"300": 1}), ("logit_bias", [1]), ("logit_bias", {"5": None}),
        ("frequency_penalty", "no"), ("presence_penalty", [1]), ("stream", "yes"), ("stream_options", {}),
        ("user_name", "x"), ("suffix", "x"), ("functions", []), ("store", True), ("service_tier", "flex"),
        ("modalities", ["audio"]), ("echo", True), ("prompt", "x"), ("best_of", 2), ("processors", []),
        ("prompt_logprobs", 1), ("reasoning_effort", "low"), ("banned_ids", [999]), ("allowed_ids", [999]),
        ("top_k", -1), ("min_p", 2), ("repetition_penalty", 0), ("order", ["top_x"]), ("adapters", ["none"]),
        ("priority", "high"), ("messages", "Hi"), ("messages", []), ("messages", None), ("messages", [5]),
        ("messages", [{"role": "user", "content": 5}]), ("messages", [{"content": "x"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ],
)  # fmt: skip
def test_every_field_is_checked_and_named(server: Served, field: str, value: Any):
    error = server.refused("/v1/chat/completions", {"messages": ASK, field: value})
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"
    assert error["message"]


def test_contradictions_are_refused(server: Served):
    both = {"messages": ASK, "max_tokens": 3, "max_completion_tokens": 3}
    assert server.refused("/v1/chat/completions", both)["param"] == "max_tokens"
    options = {"messages": ASK, "stream": True, "stream_options": {"include_usage": True, "more": 1}}
    assert server.refused("/v1/chat/completions", options)["param"] == "stream_options"


def test_a_client_gets_its_own_exceptions(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="chain", messages=ASK, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=ASK)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="chain", messages=ASK, temperature=-1, stream=True)


# ---- what the template says: its BOS and no other, its refusals


def test_a_template_that_refuses_is_quoted(server: Served):
    messages = [{"role": "system", "content": "something forbidden"}, *ASK]
    error = server.refused("/v1/chat/completions", {"messages": messages})
    assert "System role refused" in error["message"]
    assert error["param"] == "messages"


@pytest.mark.parametrize(
    "messages",
    [
        [*ASK, *ASK],
        [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
        [*ASK, {"role": "assistant", "content": None}, *ASK],
        [*ASK, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]}, *ASK],
    ],
)  # fmt: skip
def test_messages_of_odd_shapes_are_answered_as_in_python(server: Served, client: openai.OpenAI, messages: list):
    found = client.chat.completions.create(model="chain", messages=messages)
    assert found.choices[0].message.content == server.llm.chat(messages).text
    assert found.usage.prompt_tokens == len(server.llm.chat_ids(messages))


def test_bos_stands_once_as_the_template_says_it():
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
    from tests.text.tiny_tokenizers import byte_level_tokenizer_json

    config = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    for written, count in ((template, 1), (template.removeprefix("{{ bos_token }}"), 0)):
        llm = chain_llm(template=written, tokenizer_json=byte_level_tokenizer_json(bos=True), tokenizer_config=config)
        with served(llm) as server:
            ids = server.post("/tokenize", {"messages": ASK}).json()["tokens"]
            assert ids.count(270) == count
            found = server.client().chat.completions.create(model="chain", messages=ASK)
            assert (found.usage.prompt_tokens, found.choices[0].message.content) == (len(ids), HELLO)
            raw = server.post("/tokenize", {"prompt": "Hi"}).json()["tokens"]
            assert raw == [270, *b"Hi"]
            assert server.client().completions.create(model="chain", prompt="Hi").usage.prompt_tokens == len(raw)


def test_a_model_without_a_template_continues_prompts_only():
    with served(chain_llm(template=None)) as server:
        assert "no chat template" in server.refused("/v1/chat/completions", {"messages": ASK})["message"]
        assert server.client().completions.create(model="chain", prompt="\n").choices[0].text == HELLO

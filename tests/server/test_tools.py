"""Tools, reasoning and forms of answers over HTTP: S5, the same streamed and not, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.server.served import Served, chain_llm, served
from tests.test_tools import ASK, BAD, CALL, HERMES, THINKS, TOOLS, saying

FIRST, SECOND = CALL, ("<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>")


@pytest.fixture(scope="module")
def calling() -> Iterator[Served]:
    with served(saying("Wait.", "  ", *CALL)) as server:
        yield server


def streamed(server: Served, **params: Any) -> dict[str, Any]:
    """The fields of a message put together from its chunks, and why it ended."""
    found: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": [], "finish_reason": None}
    for chunk in server.client().chat.completions.create(model="chain", messages=ASK, stream=True, **params):
        choice = chunk.choices[0]
        found["content"] += choice.delta.content or ""
        found["reasoning_content"] += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            assert call.index == len(found["tool_calls"])
            found["tool_calls"].append((call.id, call.type, call.function.name, call.function.arguments))
        found["finish_reason"] = choice.finish_reason or found["finish_reason"]
    return found


def whole(server: Served, **params: Any) -> dict[str, Any]:
    choice = server.client().chat.completions.create(model="chain", messages=ASK, **params).choices[0]
    calls = choice.message.tool_calls or []
    return {
        "content": choice.message.content or "",
        "reasoning_content": getattr(choice.message, "reasoning_content", None) or "",
        "tool_calls": [(call.id, call.type, call.function.name, call.function.arguments) for call in calls],
        "finish_reason": choice.finish_reason,
    }


@pytest.mark.parametrize("texts", [("Wait.", "  ", *CALL), (*FIRST, "\n", *SECOND), BAD, ("Just text",)], ids=str)
@pytest.mark.parametrize("limit", [None, 1, 3, 5, 7, 9])
def test_the_same_fields_streamed_and_not_also_when_cut(texts: tuple[str, ...], limit: int | None):
    llm = saying(*texts)
    with served(llm) as server:
        found = whole(server, tools=TOOLS, max_tokens=limit)
        assert streamed(server, tools=TOOLS, max_tokens=limit) == found
    expected = llm.chat(ASK, tools=TOOLS, max_tokens=limit)
    assert (found["content"], found["finish_reason"]) == (expected.text, expected.finish_reason)
    assert [call[2:] for call in found["tool_calls"]] == [(call.name, call.arguments) for call in expected.tool_calls]
    if texts is not BAD:
        assert "tool_call" not in found["content"]


def test_a_call_alone_has_no_content():
    with served(saying(*CALL)) as server:
        message = server.client().chat.completions.create(model="chain", messages=ASK, tools=TOOLS).choices[0].message
        assert message.content is None
        answered = [
            *ASK, message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "5"},
        ]  # fmt: skip
        again = server.client().chat.completions.create(model="chain", messages=answered, tools=TOOLS)
        assert again.usage.prompt_tokens == len(server.llm.chat_ids(answered, TOOLS))


def test_reasoning_is_apart():
    with served(saying("<think>", "Hm, ", "so.", "</think>", "Yes", template=THINKS)) as server:
        found = whole(server)
        assert (found["reasoning_content"], found["content"]) == ("Hm, so.", "Yes")
        assert streamed(server) == found


def test_no_tools_are_shown_where_none_is_to_be_chosen(calling: Served):
    plain = whole(calling)
    assert whole(calling, tools=TOOLS, tool_choice="none") == plain
    assert plain["tool_calls"] == []
    assert whole(calling, tools=TOOLS, tool_choice="auto")["finish_reason"] == "tool_calls"
    shown = calling.post("/tokenize", {"messages": ASK, "tools": TOOLS}).json()["tokens"]
    assert shown == calling.llm.chat_ids(ASK, TOOLS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", "f"), ("tools", [5]), ("tools", [{"type": "function"}]), ("tools", [{"function": {"name": "f"}}]),
        ("tools", [{"type": "web_search", "function": {"name": "f"}}]),
        ("tools", [{"type": "function", "function": {}}]),
        ("tools", [{"type": "function", "function": {"name": "f", "code": "x"}}]), ("tool_choice", "required"),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": 5}}]), ("tool_choice", "always"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}), ("tool_format", "xml"),
        ("parallel_tool_calls", False), ("response_format", "json"), ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}), ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": 5}}),
        ("response_format", {"type": "json_object", "more": 1}), ("regex", "("), ("grammar", "nonsense"),
        ("choice", [1]), ("json_schema", {"type": "nothing"}), ("context_full", "shift"),
    ],
)  # fmt: skip
def test_every_field_is_checked_and_named(calling: Served, field: str, value: Any):
    assert calling.refused("/v1/chat/completions", {"messages": ASK, field: value})["param"] == field


def test_a_template_without_a_place_for_tools(server: Served):
    assert server.refused("/v1/chat/completions", {"messages": ASK, "tools": TOOLS})["param"] == "tools"


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_that_has_to_be_a_call(seed: int):
    """Of a model that would say anything."""
    age = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99, "minimum": 0}},
           "required": ["age"], "additionalProperties": False}  # fmt: skip
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [
        {"type": "function", "function": {"name": "set_age", "parameters": age, "strict": True}},
        {"type": "function", "function": {"name": "forget", "parameters": empty}},
    ]
    one = {"type": "function", "function": {"name": "set_age"}}
    with served(chain_llm(template=HERMES)) as server:
        how = {"tools": tools, "temperature": 5.0, "max_tokens": 300, "seed": seed}
        for choice, names in (("required", {"set_age", "forget"}), (one, {"set_age"})):
            found = whole(server, tool_choice=choice, **how)
            ((_, kind, name, arguments),) = found["tool_calls"]
            assert (kind, found["content"], found["finish_reason"]) == ("function", "", "tool_calls")
            assert name in names
            jsonschema.validate(json.loads(arguments), age if name == "set_age" else empty)
            assert streamed(server, tool_choice=choice, **how) == found


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tool_format": "mistral"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}]}, "tools"),
    ],
)
def test_calls_that_cannot_be_enforced(calling: Served, more: dict, param: str):
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required"} | more
    assert calling.refused("/v1/chat/completions", body)["param"] == param


# ---- forms of answers

SCHEMA = {
    "type": "object", "required": ["name", "age"], "additionalProperties": False,
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
}  # fmt: skip
HOT = {"temperature": 5.0, "max_tokens": 200}  # of a model that would say anything


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_keeps_to_a_schema(server: Served, client: openai.OpenAI, seed: int):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    found = client.chat.completions.create(model="chain", messages=ASK, response_format=form, seed=seed, **HOT)
    text = found.choices[0].message.content
    jsonschema.validate(json.loads(text), SCHEMA)
    assert text == server.llm.chat(ASK, json_schema=SCHEMA, seed=seed, **HOT).text
    chunks = client.chat.completions.create(
        model="chain", messages=ASK, response_format=form, seed=seed, stream=True, **HOT
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_other_forms(server: Served, client: openai.OpenAI):
    ask = {"model": "chain", "messages": ASK, "seed": 2}
    biased = {"logit_bias": {str(ord("}")): 30}}  # or it would go on and on
    found = client.chat.completions.create(response_format={"type": "json_object"}, **biased, **ask, **HOT)
    assert isinstance(json.loads(found.choices[0].message.content), dict)
    found = client.chat.completions.create(extra_body={"regex": "[ab]{3}"}, **ask, **HOT)
    assert found.choices[0].message.content in {x + y + z for x in "ab" for y in "ab" for z in "ab"}
    texts = client.completions.create(
        model="chain", prompt="x", n=3, extra_body={"choice": ["yes", "no"]}, temperature=2
    )
    assert {choice.text for choice in texts.choices} <= {"yes", "no"}
    body = {"messages": ASK, "response_format": {"type": "json_object"}, "regex": "a"}
    assert server.refused("/v1/chat/completions", body)["param"] == "regex"

"""/v1/responses by OpenAI's client, whole and streamed: the same items, events in their order, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pydantic
import pytest

from tests.server.served import HELLO, Served, chain_llm, served, wait_for
from tests.server.test_models import BYE, Shelf, serving
from tests.test_tools import CALL, HERMES, THINKS, saying
from tinyinfer.llm import LLM

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}
TEXT_EVENTS = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done",
               "content_part.done", "output_item.done"]  # fmt: skip
CALL_EVENTS = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
               "output_item.done"]  # fmt: skip
REASONING_EVENTS = [name.replace("output_text", "reasoning_text") for name in TEXT_EVENTS]


def events_of(server: Served, **params: Any) -> list[Any]:
    """All events, checked: numbered in order, named alike in both places, and beginning and ending as they should."""
    events = list(server.client().responses.create(model="chain", stream=True, **params))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event.response.status for event in events[:2]] == ["in_progress"] * 2
    assert events[0].response.output == []
    return events


def without(found: Any, *names: str) -> Any:
    """What stays the same when a request is answered again."""
    if isinstance(found, dict):
        return {name: without(value, *names) for name, value in found.items() if name not in names}
    return [without(value, *names) for value in found] if isinstance(found, list) else found


def shown(response: Any) -> Any:
    return without(response.to_dict(), "id", "call_id", "created_at", "seed", "input_tokens_details")


def names_of(events: list[Any]) -> list[str]:
    """Their names, repeated deltas once."""
    names = [event.type.removeprefix("response.") for event in events]
    return [name for number, name in enumerate(names) if number == 0 or name != names[number - 1]]


# ---- text


def test_text_whole(server: Served):
    found = server.client().responses.create(model="chain", input="x")
    assert (found.object, found.status, found.model, found.output_text) == ("response", "completed", "chain", HELLO)
    (message,) = found.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert message.content[0].annotations == []
    alone = server.llm.chat([{"role": "user", "content": "x"}])
    usage = found.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(alone.prompt_ids), len(alone.ids))
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert (found.error, found.incomplete_details, found.tools, found.tool_choice) == (None, None, [], "auto")
    assert (found.temperature, found.top_p, found.text.format.type) == (0, 1, "text")


def test_text_streamed_event_by_event(server: Served):
    events = events_of(server, input="x")
    assert names_of(events) == ["created", "in_progress", *TEXT_EVENTS, "completed"]
    added, part, *deltas, done, part_done, item_done, last = events[2:]
    assert (added.item.status, added.item.content, added.output_index) == ("in_progress", [], 0)
    assert (part.part.text, part.content_index) == ("", 0)
    assert len(deltas) > 5
    assert "".join(delta.delta for delta in deltas) == done.text == part_done.part.text == HELLO
    item = last.response.output[0]
    assert item_done.item.to_dict() == item.to_dict()
    assert {event.item_id for event in (part, *deltas, done, part_done)} == {added.item.id} == {item.id}
    assert last.response.id == events[0].response.id
    assert shown(last.response) == shown(server.client().responses.create(model="chain", input="x"))


def test_what_is_on_the_wire(server: Served):
    found = server.post(PATH, {"input": "x", "stream": True})
    assert found.headers["content-type"].startswith("text/event-stream")
    blocks = found.text.removesuffix("\n\n").split("\n\n")
    for block in blocks:
        name, data = block.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert blocks[-1].startswith("event: response.completed\n")


def test_the_helper_that_puts_events_together():
    llm = saying("<think>", "Hm.", "</think>", "Yes.", *CALL, template=THINKS)
    with served(llm) as server, server.client().responses.stream(model="chain", input="x", tools=[TOOL]) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "Yes."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert json.loads(final.output[2].arguments) == {"a": [1, 2]}


def test_parameters_are_those_of_chats(server: Served):
    how = {"temperature": 4.0, "top_p": 0.9, "seed": 7, "top_k": 20, "min_p": 0.01}
    expected = server.llm.chat([{"role": "user", "content": "x"}], max_tokens=9, **how)
    extra = {name: how[name] for name in ("seed", "top_k", "min_p")}
    found = server.client().responses.create(
        model="chain", input="x", max_output_tokens=9, temperature=4.0, top_p=0.9, extra_body=extra
    )
    assert found.output_text == expected.text
    assert (found.temperature, found.top_p, found.max_output_tokens, found.seed) == (4.0, 0.9, 9, 7)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_an_answer_that_is_cut(server: Served, limit: int):
    found = server.client().responses.create(model="chain", input="x", max_output_tokens=limit)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.output_text, found.output[0].status) == (HELLO[:limit], "incomplete")
    events = events_of(server, input="x", max_output_tokens=limit)
    assert events[-1].type == "response.incomplete"
    assert shown(events[-1].response) == shown(found)


def test_log_probabilities(server: Served):
    how: dict[str, Any] = {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    found = server.client().responses.create(model="chain", **how)
    logprobs = found.output[0].content[0].logprobs
    assert "".join(one.token for one in logprobs) == HELLO
    assert all(len(one.top_logprobs) == 2 and one.top_logprobs[0].token == one.token for one in logprobs)
    chat = server.client().chat.completions.create(
        model="chain", messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=2
    )
    assert [one.logprob for one in logprobs] == [one.logprob for one in chat.choices[0].logprobs.content]
    events = events_of(server, **how)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(one.token for event in deltas for one in event.logprobs) == HELLO
    assert shown(events[-1].response) == shown(found)


class Answer(pydantic.BaseModel):
    n: int


SCHEMA = Answer.model_json_schema() | {"additionalProperties": False}
FORMS = [{"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}, {"type": "json_object"}]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["type"])
def test_forms_of_answers_are_those_of_chats(server: Served, form: dict[str, Any]):
    ask = {"temperature": 5.0, "seed": 3}  # of a model that would say anything
    found = server.client().responses.create(
        model="chain", input="x", text={"format": form}, max_output_tokens=200, extra_body=ask
    )
    described = {name: value for name, value in form.items() if name != "type"}
    chat_form = {"type": form["type"]} | ({"json_schema": described} if described else {})
    body = ask | {"messages": [{"role": "user", "content": "x"}], "response_format": chat_form, "max_tokens": 200}
    chat = server.post("/v1/chat/completions", body).json()["choices"][0]
    assert (found.output_text, found.text.format.type) == (chat["message"]["content"], form["type"])
    assert found.status == {"stop": "completed", "length": "incomplete"}[chat["finish_reason"]]
    if "schema" in form:
        jsonschema.validate(json.loads(found.output_text), SCHEMA)


def test_an_answer_as_an_object():
    with served(saying('{"n": 7}')) as server:
        found = server.client().responses.parse(model="chain", input="x", text_format=Answer)
        assert found.output_parsed == Answer(n=7)


# ---- conversations


def prompt_tokens(llm: LLM, *messages: tuple[str, str]) -> int:
    return len(llm.chat_ids([{"role": role, "content": content} for role, content in messages]))


def test_going_on_from_a_response(server: Served):
    client = server.client()
    first = client.responses.create(model="chain", instructions="Be brief", input="One")
    assert first.usage.input_tokens == prompt_tokens(server.llm, ("system", "Be brief"), ("user", "One"))
    second = client.responses.create(model="chain", input="Two", previous_response_id=first.id, instructions="Shout")
    said = ("user", "One"), ("assistant", HELLO), ("user", "Two")
    assert second.usage.input_tokens == prompt_tokens(server.llm, ("system", "Shout"), *said)
    assert (second.previous_response_id, second.instructions) == (first.id, "Shout")
    third = events_of(server, input="Three", previous_response_id=second.id)[-1].response
    more = ("assistant", HELLO), ("user", "Three")
    assert third.usage.input_tokens == prompt_tokens(server.llm, *said, *more)
    client.responses.delete(second.id)  # what went on from it has all that it needs
    fourth = client.responses.create(model="chain", input="Four", previous_response_id=third.id)
    assert fourth.usage.input_tokens == prompt_tokens(server.llm, *said, *more, ("assistant", HELLO), ("user", "Four"))
    again = client.responses.create(model="chain", input="Four", previous_response_id=third.id)
    assert again.usage.input_tokens_details.cached_tokens > 32


def test_what_is_kept_and_what_is_not(server: Served):
    client = server.client()
    kept = client.responses.create(model="chain", input="x", metadata={"a": "b"})
    assert client.responses.retrieve(kept.id).to_dict() == kept.to_dict()
    assert (kept.store, kept.metadata) == (True, {"a": "b"})
    streamed = events_of(server, input="x")[-1].response
    assert client.responses.retrieve(streamed.id).to_dict() == streamed.to_dict()
    client.responses.delete(kept.id)
    passing = client.responses.create(model="chain", input="x", store=False)
    assert passing.store is False
    for id in (kept.id, passing.id, "resp_none"):
        for ask in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError) as error:
                ask(id)
            assert error.value.code == "response_not_found"
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(model="chain", input="x", previous_response_id=id)
        assert (error.value.param, error.value.code) == ("previous_response_id", "previous_response_not_found")
    found = server.http.delete(f"{server.url}{PATH}/{streamed.id}")
    assert found.json() == {"id": streamed.id, "object": "response", "deleted": True}
    assert server.get(f"{PATH}/{passing.id}?stream=true").json()["error"]["param"] == "stream"


# ---- calls and reasoning


@pytest.fixture(scope="module")
def calling() -> Iterator[Served]:
    with served(saying("Wait.", *CALL)) as server:
        yield server


def test_a_call_whole_and_streamed_and_its_output(calling: Served):
    client = calling.client()
    found = client.responses.create(model="chain", input="x", tools=[TOOL])
    message, call = found.output
    assert (message.content[0].text, found.status, found.tools[0].name) == ("Wait.", "completed", "f")
    assert (call.type, call.name, json.loads(call.arguments), call.status) == (
        "function_call", "f", {"a": [1, 2]}, "completed",
    )  # fmt: skip
    events = events_of(calling, input="x", tools=[TOOL])
    assert names_of(events) == ["created", "in_progress", *TEXT_EVENTS, *CALL_EVENTS, "completed"]
    added, delta, done, item_done = events[-5:-1]
    assert (added.item.arguments, added.output_index) == ("", 1)
    assert delta.delta == done.arguments == item_done.item.arguments == call.arguments
    assert shown(events[-1].response) == shown(found)

    output = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    later = client.responses.create(model="chain", input=[output], previous_response_id=found.id, tools=[TOOL])
    by_hand = [{"role": "user", "content": "x"}, *(item.to_dict() for item in found.output), output]
    assert client.responses.create(model="chain", input=by_hand, tools=[TOOL]).usage == later.usage or (
        later.usage.input_tokens
        == client.responses.create(model="chain", input=by_hand, tools=[TOOL]).usage.input_tokens
    )
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "Wait.",
         "tool_calls": [{"id": call.call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "3", "tool_call_id": call.call_id},
    ]  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert later.usage.input_tokens == len(calling.llm.chat_ids(messages, tools))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}])
def test_a_call_that_has_to_be(choice: Any):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    how = {"input": "x", "tools": [TOOL | {"parameters": schema}], "temperature": 5.0, "max_output_tokens": 300}
    with served(chain_llm(template=HERMES)) as server:
        client = server.client()
        found = client.responses.create(model="chain", tool_choice=choice, extra_body={"seed": 1}, **how)
        (call,) = found.output
        assert (call.type, call.name, found.status) == ("function_call", "f", "completed")
        jsonschema.validate(json.loads(call.arguments), schema)
        assert found.to_dict()["tool_choice"] == choice
        events = events_of(server, tool_choice=choice, extra_body={"seed": 1}, **how)
        assert shown(events[-1].response) == shown(found)
        none = client.responses.create(model="chain", tool_choice="none", **how | {"temperature": 0})
        assert none.output_text == HELLO


@pytest.mark.parametrize("limit", range(1, 13))
def test_reasoning_text_and_a_call_wherever_they_are_cut(limit: int):
    texts = ("<think>", "Hm, ", "so.", "</think>", "Yes.", *CALL)
    with served(saying(*texts, template=THINKS)) as server:
        how = {"input": "x", "tools": [TOOL], "max_output_tokens": limit}
        found = server.client().responses.create(model="chain", **how)
        events = events_of(server, **how)
        assert shown(events[-1].response) == shown(found)
        assert "<" not in json.dumps(found.to_dict()["output"])
        kinds = [item.type for item in found.output]
        assert kinds == [kind for kind in ("reasoning", "message", "function_call") if kind in kinds]
        assert [item.status for item in found.output[:-1]] == ["completed"] * (len(kinds) - 1)
        if limit > len(texts):
            assert names_of(events)[2:-1] == [*REASONING_EVENTS, *TEXT_EVENTS, *CALL_EVENTS]
            assert found.output[0].content[0].text == "Hm, so."
            assert found.usage.output_tokens_details.reasoning_tokens in (3, 4)
            again = server.client().responses.create(model="chain", input="y", previous_response_id=found.id)
            assert again.status == "completed"


def test_one_of_several_models():
    with serving(Shelf()) as server:
        found = server.client().responses.create(model="second", input="x")
        assert (found.model, found.output_text) == ("second", BYE)
        with pytest.raises(openai.NotFoundError):
            server.client().responses.create(model="fourth", input="x")


# ---- what goes wrong


def test_a_stream_that_cannot_go_on_says_so():
    server = Served(chain_llm(context=60_000))
    server.server._drain_seconds = 0.2
    stream = server.client().responses.create(
        model="chain", input="x", stream=True, extra_body={"ignore_eos": True}, include=["message.output_text.logprobs"]
    )
    next(stream)
    wait_for(lambda: server.engine.load.running)
    server.server.drain()
    *_, last = stream
    assert (last.type, last.response.status, last.response.error.code) == ("response.failed", "failed", "server_error")
    assert "closed" in last.response.error.message
    server.thread.join(20)
    assert not server.thread.is_alive()

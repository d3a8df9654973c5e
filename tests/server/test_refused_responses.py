"""What /v1/responses does not take: every field is taken, or refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.served import HELLO, Served
from tests.server.test_http import error_of, request, status_of
from tests.server.test_responses import PATH, TOOL


def part(**what: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [what]}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"), ({"input": []}, "input"), ({"input": 4}, "input"), ({"input": [4]}, "input"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "input"), ({"input": [{"role": "user"}]}, "input"),
        ({"input": part(type="input_image", image_url="x")}, "input"), ({"input": part(type="input_text")}, "input"),
        ({"input": part(type="output_text", text="x")}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input"), ({"input": [{"type": ["message"]}]}, "input"),
        ({"input": [{"role": "user", "content": "x", "phase": "commentary"}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "no JSON"}]}, "input"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}]}, "input"),
        ({"input": "x" * 1000}, "input"), ({"input": "forbidden", "instructions": "forbidden"}, "input"),
        ({"input": "x", "instructions": ["y"]}, "instructions"), ({"input": "x", "store": "yes"}, "store"),
        ({"input": "x", "previous_response_id": 4}, "previous_response_id"),
        ({"input": "x", "text": "json"}, "text"), ({"input": "x", "text": {"verbosity": "low"}}, "text.verbosity"),
        ({"input": "x", "text": {"form": 1}}, "text"), ({"input": "x", "text": {"format": "json"}}, "text.format"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "a", "schema": 5}}}, "text.format"),
        ({"input": "x", "tools": "f"}, "tools"), ({"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools"), ({"input": "x", "tools": [4]}, "tools"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice"),
        ({"input": "x", "max_output_tokens": -1}, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": "9"}, "max_output_tokens"), ({"input": "x", "top_p": 2}, "top_p"),
        ({"input": "x", "temperature": -1}, "temperature"),
        ({"input": "x", "include": ["file_search_call.results"]}, "include"),
        ({"input": "x", "include": "all"}, "include"), ({"input": "x", "top_logprobs": 3}, "top_logprobs"),
        ({"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 30}, "top_logprobs"),
        ({"input": "x", "reasoning": {"effort": "high"}}, "reasoning"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "truncation": "auto"}, "truncation"), ({"input": "x", "metadata": {"a": 1}}, "metadata"),
        ({"input": "x", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"input": "x", "stream": 1}, "stream"), ({"input": "x", "service_tier": "flex"}, "service_tier"),
        ({"input": "x", "parallel_tool_calls": False}, "parallel_tool_calls"),
        *(({"input": "x", name: value}, name) for name, value in (
            ("messages", []), ("max_tokens", 4), ("max_completion_tokens", 4), ("n", 1), ("logprobs", True),
            ("response_format", {"type": "text"}), ("best_of", 1), ("suffix", ""), ("conversation", "c"),
            ("prompt", {"id": "p"}), ("max_tool_calls", 1), ("moderation", {}), ("echo", True), ("nonsense", 1),
            ("nonsense", None), ("max_tokens", None),
        )),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused_by_name(server: Served, body: dict[str, Any], param: str):
    error = server.refused(PATH, body)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert not error["message"].startswith(("messages", "response_format", "max_tokens", "prompt "))  # a chat's names


def test_fields_that_say_what_is_done_anyway(server: Served):
    body = {
        "input": "x", "background": False, "truncation": "disabled", "reasoning": {"effort": None}, "user": "me",
        "stream_options": {"include_obfuscation": False}, "parallel_tool_calls": True, "service_tier": "auto",
        "top_logprobs": 0, "include": [], "text": {"verbosity": "medium"}, "instructions": None, "metadata": {},
        "previous_response_id": None, "max_output_tokens": None, "prompt_cache_key": "k", "tools": [],
    }  # fmt: skip
    found = server.post(PATH, body).json()
    assert found["output"][0]["content"][0]["text"] == HELLO


def test_bad_requests_byte_by_byte(server: Served):
    for body in (b"", b"{", b"[]", b'{"input": NaN}', b'{"input": "x", "input": "y"}', b'{"input": "\xff"}'):
        answer = server.raw(request(body, path=PATH))
        assert status_of(answer) == 400, body
    answer = server.raw(request(b'{"input": "\\ud800"}', path=PATH))
    assert (status_of(answer), error_of(answer)["param"]) == (400, "input")
    assert status_of(server.raw(request(b'{"input": "x"}', path=PATH))) == 200
    assert server.get(PATH).status_code == 405
    assert server.http.put(f"{server.url}{PATH}/x").status_code == 405

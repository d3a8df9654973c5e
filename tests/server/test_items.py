from __future__ import annotations

from typing import Any

from tinyinfer.server.items import messages_of, read_input


def test_items_become_messages():
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}', "id": "fc_1"}
    items = read_input(
        [
            {"role": "developer", "content": "Be brief"},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "Wait", "annotations": []}]},
            call, call | {"call_id": "c2"},
            {"type": "function_call_output", "call_id": "c2", "output": "2"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
            {"role": "assistant", "content": "So"}, {"role": "assistant", "content": "it is"},
            call | {"call_id": "c3"}, {"type": "reasoning", "summary": [], "content": None}, call | {"call_id": "c4"},
        ]
    )  # fmt: skip

    def made(id: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}

    part = {"type": "text"}
    assert messages_of(items) == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": [part | {"text": "a"}, part | {"text": "b"}]},
        {"role": "assistant", "reasoning_content": "hm", "content": [part | {"text": "Wait"}],
         "tool_calls": [made("c1"), made("c2")]},
        {"role": "tool", "content": "2", "tool_call_id": "c2", "name": "f"},
        {"role": "tool", "content": [part | {"text": "1"}], "tool_call_id": "c1", "name": "f"},
        {"role": "assistant", "content": "So"}, {"role": "assistant", "content": "it is", "tool_calls": [made("c3")]},
        {"role": "assistant", "reasoning_content": "", "tool_calls": [made("c4")]},
    ]  # fmt: skip

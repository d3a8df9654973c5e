"""Conversations as people send them -> conversations as chat templates take them.

A message is a dict with a "role". What differs between senders is made one here, on a copy: null fields are left out
(a null "content" becomes ""), tool-call arguments sent as JSON text are parsed, reasoning is given under the names that
templates read, and content given as a list of parts keeps its text parts only, refusing the others by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import BadRequest

DEEPEST = 64  # levels of lists and dicts: deeper ones would exhaust Python's stack in a template
REASONING = ("reasoning_content", "thinking", "reasoning")


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy made of JSON's own types only, so that a template meets nothing that has methods of its own.

    Raises `BadRequest` naming `where` for a value of any other type, or one nested too deeply.
    """
    if depth > DEEPEST:
        raise BadRequest(f"{where} is nested more than {DEEPEST} levels deep", _parameter(where))
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind.__new__(kind, value)
    if isinstance(value, Mapping):
        return {plain(key, where, depth + 1): plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where, depth + 1) for item in value]
    raise BadRequest(f"{where} holds a {type(value).__name__}, expected only what JSON has", _parameter(where))


def prepare_messages(messages: Any, parse_arguments: bool = True) -> list[dict[str, Any]]:
    """Check a conversation and give a copy in the one form that templates get; content lists hold text parts.

    Raises `BadRequest` (one sentence, naming the message by its number) for anything malformed.
    """
    if not isinstance(messages, (list, tuple)):
        raise BadRequest(f"messages should be a list of dicts, found {type(messages).__name__}", "messages")
    if not messages:
        raise BadRequest("messages should hold at least one message, found none", "messages")
    return [_prepare(message, f"messages[{i}]", parse_arguments) for i, message in enumerate(messages)]


def check_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Check and copy a list of tool descriptions; None stays None. Raises `BadRequest` for anything else."""
    if tools is None:
        return None
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRequest("tools should be a list of dicts, each a tool's JSON description", "tools")
    return plain(tools, "tools")


def joined_parts(content: Sequence[Mapping[str, str]]) -> str:
    """The text of content parts, one below the other, for a template that takes content as text."""
    return "\n".join(part["text"] for part in content)


def _prepare(message: Any, where: str, parse_arguments: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadRequest(f"{where} should be a dict, found {type(message).__name__}", "messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest(f"{where} should have a role such as 'user', found {role!r}", "messages")
    null_content = message.get("content") is None and ("content" in message or role == "assistant")
    given = {**message, "content": ""} if null_content else dict(message)
    result: dict[str, Any] = {}
    for key, value in given.items():
        if key == "content":
            result[key] = _content(value, role, f"{where}.content")
        elif key == "tool_calls" and value is not None:
            result[key] = _tool_calls(value, f"{where}.tool_calls", parse_arguments)
        elif value is not None:
            result[key] = plain(value, f"{where}.{key}")
    return _with_reasoning(result)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    # Templates read "reasoning_content", and gpt-oss's "thinking"; older servers send "reasoning".
    found = next((message[key] for key in REASONING if key in message), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


def _content(content: Any, role: str, where: str) -> Any:
    if isinstance(content, str) or (isinstance(content, Mapping) and role == "tool"):
        return plain(content, where)
    if isinstance(content, (list, tuple)):
        return [{"type": "text", "text": _part_text(part, f"{where}[{i}]")} for i, part in enumerate(content)]
    raise BadRequest(f"{where} should be text or a list of parts, found {type(content).__name__}", "messages")


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return plain(part, where)
    kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise BadRequest(f"{where} is of type {kind!r}, but this model reads only text", "messages")
    if not isinstance(part.get("text"), str):
        raise BadRequest(f"{where}.text should be text, found {part.get('text')!r}", "messages")
    return plain(part["text"], where)


def _tool_calls(calls: Any, where: str, parse_arguments: bool) -> list[dict[str, Any]]:
    calls = plain(calls, where)
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadRequest(f"{where} should be a list of dicts", "messages")
    for i, call in enumerate(calls):
        function = call["function"] if isinstance(call.get("function"), dict) else call
        if parse_arguments and isinstance(function.get("arguments"), str):
            function["arguments"] = _parsed(function["arguments"], f"{where}[{i}]: arguments")
    return calls


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{where} should be a JSON object: {error}", "messages") from error
    if not isinstance(value, dict):
        raise BadRequest(f"{where} should be a JSON object, found {text[:40]!r}", "messages")
    return plain(value, where)


def _parameter(where: str) -> str:
    return where.partition("[")[0].partition(".")[0]

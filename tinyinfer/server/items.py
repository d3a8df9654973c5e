"""The items that a conversation is made of in /v1/responses -> messages, as chats have them.

What stands beside each other there is one message here: a model's reasoning, its text, and the calls that it makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import BadRequest
from ..strict_json import parse_object

Item = dict[str, Any]
Message = dict[str, Any]

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}  # templates know no other
TEXTS = {"input_text": "text", "output_text": "text", "refusal": "refusal", "reasoning_text": "text"}
MARKS = {"type", "id", "status"}  # what every item may have
FIELDS = {
    "message": MARKS | {"role", "content"},
    "function_call": MARKS | {"call_id", "name", "arguments"},
    "function_call_output": MARKS | {"call_id", "output"},
    "reasoning": MARKS | {"summary", "content", "encrypted_content"},
}


def read_input(found: Any) -> list[Item]:
    """The input of a request as items, checked. Raises `BadRequest` naming the item."""
    if isinstance(found, str):
        return [{"type": "message", "role": "user", "content": found}]
    if not isinstance(found, list) or not found:
        raise BadRequest(f"input should be text or a list of items, found {_short(found)}", "input")
    return [_checked(item, f"input[{number}]") for number, item in enumerate(found)]


def messages_of(items: Sequence[Item]) -> list[Message]:
    """Items that `read_input` gave, or that were answered, as messages.

    Raises `BadRequest` for an output of a call that was not made.
    """
    messages: list[Message] = []
    names: dict[str, str] = {}  # of the functions that were called, by the ids of the calls
    for item in items:
        kind = item["type"]
        if kind == "message" and item["role"] != "assistant":
            messages.append({"role": ROLES[item["role"]], "content": _as_content(item["content"])})
        elif kind == "message":
            message = _assistant(messages, unlike=("content", "tool_calls"))
            message["content"] = _as_content(item["content"])
        elif kind == "reasoning":
            message = _assistant(messages, unlike=("content", "tool_calls", "reasoning_content"))
            message["reasoning_content"] = "".join(part["text"] for part in item.get("content") or [])
        elif kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            _assistant(messages).setdefault("tool_calls", []).append(call)
            names[item["call_id"]] = item["name"]
        else:
            if item["call_id"] not in names:
                raise BadRequest(f"input: there is no call {item['call_id'][:80]!r} before its output", "input")
            told = {"tool_call_id": item["call_id"], "name": names[item["call_id"]]}
            messages.append({"role": "tool", "content": _as_content(item["output"]), **told})
    return messages


def _assistant(messages: list[Message], unlike: Sequence[str] = ()) -> Message:
    """The model's message that goes on: the last one, if it is the model's and has none of these fields; else a new."""
    if not (messages and messages[-1]["role"] == "assistant" and not any(name in messages[-1] for name in unlike)):
        messages.append({"role": "assistant"})
    return messages[-1]


def _as_content(content: str | list[Item]) -> str | list[Item]:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": part[TEXTS[part["type"]]]} for part in content]


def _checked(item: Any, where: str) -> Item:
    if not isinstance(item, dict):
        raise BadRequest(f"{where} should be an object, found {_short(item)}", "input")
    item = {name: value for name, value in item.items() if value is not None}
    kind = item.setdefault("type", "message")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise BadRequest(f"{where}: items of type {_short(kind)} are not known here, but {', '.join(FIELDS)}", "input")
    for name in item:
        if name not in FIELDS[kind]:
            raise BadRequest(f"{where}: there is no {name[:80]!r} in an item of type {kind!r}", "input")
    check = {"message": _message, "function_call": _call, "function_call_output": _output, "reasoning": _reasoning}
    return check[kind](item, where)


def _message(item: Item, where: str) -> Item:
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadRequest(f"{where}.role should be one of {', '.join(ROLES)}, found {_short(role)}", "input")
    kinds = ("output_text", "refusal", "input_text") if role == "assistant" else ("input_text",)
    return item | {"content": _text(item.get("content"), f"{where}.content", kinds)}


def _call(item: Item, where: str) -> Item:
    for name in ("call_id", "name", "arguments"):
        _checked_text(item.get(name), f"{where}.{name}")
    arguments = (item["arguments"].strip() or "{}").encode("utf-8", "surrogatepass")
    parse_object(arguments, lambda why, _: BadRequest(f"{where}.arguments: {why}", "input"))
    return item


def _output(item: Item, where: str) -> Item:
    _checked_text(item.get("call_id"), f"{where}.call_id")
    return item | {"output": _text(item.get("output"), f"{where}.output", ("input_text",))}


def _reasoning(item: Item, where: str) -> Item:
    for name in ("summary", "encrypted_content"):
        if item.get(name):
            raise BadRequest(f"{where}.{name} can't be read here: reasoning is given as content", "input")
    if isinstance(item.get("content", []), list):
        return item | {"content": _text(item.get("content", []), f"{where}.content", ("reasoning_text",))}
    raise BadRequest(f"{where}.content should be a list of parts, found {_short(item['content'])}", "input")


def _text(content: Any, where: str, kinds: Sequence[str]) -> str | list[Item]:
    """Text, or a list of its parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{where} should be text or a list of parts, found {_short(content)}", "input")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds:
            raise BadRequest(f"{where}[{number}] should be of type {' or '.join(kinds)}, found {_short(part)}", "input")
        _checked_text(part.get(TEXTS[kind]), f"{where}[{number}].{TEXTS[kind]}")
    return content


def _checked_text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise BadRequest(f"{where} should be text, found {_short(value)}", "input")


def _short(value: Any) -> str:
    return repr(value)[:80]

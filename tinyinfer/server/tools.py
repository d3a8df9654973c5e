"""OpenAI's tools and tool_choice: what a request may say, and the form of an answer that has to be a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import BadRequest
from ..sampling import SamplingParams
from ..text.chat import ChatPrompt
from .errors import named

FUNCTION = {"name", "description", "parameters", "strict"}  # what describes a tool
EXPECTED = "functions, each with a name and maybe description, parameters and strict"


def read_tools(tools: Any, choice: Any) -> tuple[list[Any] | None, bool]:
    """The tools that the model is to be shown, None for none, and whether it has to call one.

    `choice` is "auto", "none", "required", or one function, which then is the only one shown. Raises `BadRequest`.
    """
    if not isinstance(tools, list | None):
        raise BadRequest(f"tools should be a list, found {_short(tools)}", "tools")
    for tool in tools or []:
        _check(tool)
    if choice in ("auto", "none"):
        return (tools or None) if choice == "auto" else None, False
    if choice == "required":
        chosen = tools
    else:
        wanted = isinstance(choice, dict) and choice.get("type") == "function" and choice.get("function")
        chosen = [tool for tool in tools or [] if wanted == {"name": tool["function"]["name"]}]
    if not chosen:
        expected = "'auto', 'none', or with tools 'required' or one of them"
        raise BadRequest(f"tool_choice should be {expected}, found {_short(choice)}", "tool_choice")
    return chosen, True


def calling(params: SamplingParams, prompt: ChatPrompt, tools: Sequence[Any]) -> SamplingParams:
    """Under which an answer is a call of one of `tools` and nothing else: JSON, as models write it without a mark.

    Raises `BadRequest` where the model writes calls in another way, where it has begun to reason, and for parameters
    of a tool that can't be enforced.
    """
    if prompt.markup.format.alone is None or prompt.markup.thinking:
        why = "reasons first" if prompt.markup.thinking else "writes calls in a form that can't be enforced"
        raise BadRequest(f"this model {why}: tool_choice may be 'auto' or 'none'", "tool_choice")
    if params.constrained_by is not None:
        raise BadRequest(f"tool_choice asks for a call, and {params.constrained_by} for another form", "tool_choice")
    calls = [
        {
            "type": "object", "required": ["name", "arguments"], "additionalProperties": False,
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or {"type": "object"},
            },
        }
        for tool in tools
    ]  # fmt: skip
    with named({"json_schema": "tools"}):
        return params.with_overrides(json_schema=calls[0] if len(calls) == 1 else {"anyOf": calls})


def _check(tool: Any) -> None:
    function = tool.get("function") if isinstance(tool, dict) and tool.keys() == {"type", "function"} else None
    known = isinstance(function, dict) and isinstance(function.get("name"), str) and function.keys() <= FUNCTION
    if not known or tool["type"] != "function":
        raise BadRequest(f"tools should be {EXPECTED}, found {_short(tool)}", "tools")
    if not isinstance(function.get("parameters"), dict | None):
        raise BadRequest(f"a tool's parameters should be a JSON schema, found {_short(function)}", "tools")


def _short(value: Any) -> str:
    return repr(value)[:80]

"""What a call of a tool is, and how JSON that a model wrote becomes one."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from json import JSONDecodeError, JSONDecoder
from typing import Any

Names = Collection[str] | None
"""Of the tools that were offered, None where they are not known; a mapping also says which parameters are text."""


@dataclass(frozen=True)
class ToolCall:
    """A call that a model asks for: `arguments` is the text of a JSON object, whatever form the model wrote."""

    name: str
    arguments: str
    id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """In the form of OpenAI's API."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


Found = tuple[list[ToolCall], int]
Reader = Callable[[str, bool, Names], "Found | None"]
"""What stands behind a mark -> the calls in it, and how many characters they take; None: more text may complete one.

With the second argument no more text comes. Raises ValueError where this is no valid call.
"""


class NoCall(ValueError):
    """What stands here is no valid call, or only the beginning of one; `before` are the calls that stand before it."""

    def __init__(self, before: list[ToolCall]):
        super().__init__("no call")
        self.before = before


@dataclass(frozen=True)
class ToolFormat:
    """One way of writing calls."""

    opens: Mapping[str, Reader] = field(default_factory=dict)  # what begins calls, and what reads them
    alone: Reader | None = None  # what reads an answer that is a call from its first character on
    others: tuple[str, ...] = ()  # further marks in a call and at its end


def calls_of(value: Any) -> list[ToolCall]:
    """The calls of a value of JSON, one or a list of them; raises ValueError where it is none."""
    return some([call_of(item) for item in (value if isinstance(value, list) else [value])])


def call_of(value: Any) -> ToolCall:
    """A call of what a model wrote; some wrap it in "function", some write the arguments as text of JSON."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value | value["function"]
    if not isinstance(value, dict):
        raise ValueError("not an object")
    name, arguments, id = value.get("name"), value.get("arguments", value.get("parameters")), value.get("id")
    if isinstance(arguments, str):
        arguments = _DECODER.decode(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a name and an object of arguments are needed")
    return ToolCall(name, dumped(arguments), id if isinstance(id, str) else "")


def dumped(arguments: dict) -> str:
    """Arguments as JSON; raises ValueError where it can't hold them."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can hold
        return json.dumps(arguments, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError("JSON can't hold this") from error
    return text


def json_at(text: str, at: int, done: bool) -> tuple[Any, int] | None:
    """The JSON value at a place, and where it ends; None where more text may complete it. Raises ValueError."""
    try:
        return _DECODER.raw_decode(text, at)
    except JSONDecodeError as error:
        # where a text is cut, what fails is a string without its end, or within the last characters, as in `fals`
        cut = error.msg.startswith("Unterminated string") or len(text.rstrip()) - error.pos < LONGEST_PART
        if cut and not done:
            return None
        raise
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def after_space(text: str, at: int, more: str = "") -> int:
    """The next place that holds neither white space nor any of `more`."""
    while at < len(text) and (text[at].isspace() or text[at] in more):
        at += 1
    return at


def some(calls: list[ToolCall]) -> list[ToolCall]:
    """Calls, of which there must be one; raises ValueError."""
    if not calls:
        raise ValueError("no call")
    return calls


_DECODER = JSONDecoder(strict=False)  # small models write line breaks into strings as they are
LONGEST_PART = 12  # of what JSON takes apart as one: \ud83d\ude0

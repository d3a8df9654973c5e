"""Calls whose parts stand between tags.

    qwen3_coder   <tool_call>                      deepseek   <｜tool▁calls▁begin｜>
                  <function=f>                                <｜tool▁call▁begin｜>function<｜tool▁sep｜>f
                  <parameter=a>                               ```json
                  text, or JSON                               {...}
                  </parameter>                                ```<｜tool▁call▁end｜>
                  </function>                                 <｜tool▁calls▁end｜>
                  </tool_call>                     since 3.1  ...begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
    glm           <tool_call>f
                  <arg_key>a</arg_key>
                  <arg_value>text, or JSON</arg_value>
                  </tool_call>

What stands between the tags of one argument does not say whether it is text. The tool's own description does: what is
a string there stays as it is, anything else is JSON where it reads as such, and else text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from .tool_call import Found, Names, NoCall, Reader, ToolCall, ToolFormat, after_space, call_of, dumped, json_at, some

PYTHON = {"True": True, "False": False, "None": None}  # as templates print these of earlier calls


class More(Exception):
    """The text ends before what is being read does."""


class Cursor:
    """A place in a text of which more may come, unless it is done. Raises `More` there, and ValueError where not."""

    def __init__(self, text: str, done: bool):
        self.text, self.done, self.at = text, done, 0

    def space(self) -> None:
        """Go past white space."""
        self.at = after_space(self.text, self.at)

    def skips(self, mark: str) -> bool:
        """Whether a mark stands here; go past it."""
        if self.text.startswith(mark, self.at):
            self.at += len(mark)
            return True
        if not self.done and mark.startswith(self.text[self.at :]):
            raise More
        return False

    def ends(self, mark: str) -> bool:
        """Whether a last mark stands here, of which the end of the text may have left out some or all."""
        if self.done and mark.startswith(self.text[self.at :]):
            self.at = len(self.text)
            return True
        return self.skips(mark)

    def needs(self, mark: str) -> None:
        """Go past a mark; raises ValueError where there is another thing."""
        if not self.skips(mark):
            raise ValueError(f"no {mark}")

    def name(self) -> str:
        """A name, which ends where something stands that none can hold."""
        found = re.compile(r"[\w.-]*").match(self.text, self.at)[0]
        self.at += len(found)
        if self.at == len(self.text) and not self.done:
            raise More
        if not found:
            raise ValueError("no name")
        return found

    def upto(self, mark: str, *following: str) -> str:
        """What stands before the first mark, or the first that white space and one of `following` come after."""
        end = self.text.find(mark, self.at)
        while end >= 0:
            rest = self.text[after_space(self.text, end + len(mark)) :]
            if not following or any(rest.startswith(next) for next in following):
                found, self.at = self.text[self.at : end], end + len(mark)
                return found
            if not self.done and any(next.startswith(rest) for next in following):
                break
            end = self.text.find(mark, end + 1)
        raise ValueError(f"no {mark}") if self.done else More

    def json(self) -> Any:
        """A JSON value."""
        found = json_at(self.text, self.at, self.done)
        if found is None:
            raise More
        self.at = found[1]
        return found[0]


def _reader(read_calls: Callable[[Cursor, Names, list[ToolCall]], None]) -> Reader:
    """A reader of what adds calls to a list, one after the other."""

    def read(text: str, done: bool, names: Names) -> Found | None:
        cursor, calls = Cursor(text, done), []
        try:
            read_calls(cursor, names, calls)
            return some(calls), cursor.at
        except More:
            return None
        except ValueError as error:
            raise NoCall(calls) from error

    return read


def _functions(cursor: Cursor, names: Names, calls: list[ToolCall]) -> None:
    """Of Qwen3-Coder, behind its first mark."""
    while True:
        cursor.space()
        if cursor.ends("</tool_call>"):
            return
        if cursor.skips("<function="):
            calls.append(_function(cursor, names))
        elif calls:
            return
        else:
            raise ValueError("no call")


def _bare_function(cursor: Cursor, names: Names, calls: list[ToolCall]) -> None:
    """Of Qwen3-Coder, where the model leaves the outer mark out, at times only its first half."""
    calls.append(_function(cursor, names))
    end = cursor.at
    cursor.space()
    if not cursor.ends("</tool_call>"):
        cursor.at = end


def _function(cursor: Cursor, names: Names) -> ToolCall:
    name, arguments = cursor.name(), {}
    cursor.needs(">")
    while True:
        cursor.space()
        if cursor.skips("</function>"):
            return ToolCall(name, dumped(arguments))
        cursor.needs("<parameter=")
        key = cursor.name()
        cursor.needs(">")
        value = cursor.upto("</parameter>", "<parameter=", "</function>")
        _add(arguments, key, value.removeprefix("\n").removesuffix("\n"), _texts(names, name))


def _glm(cursor: Cursor, names: Names, calls: list[ToolCall]) -> None:
    cursor.space()
    name, arguments = cursor.name(), {}
    while True:
        cursor.space()
        if cursor.skips("</tool_call>"):
            calls.append(ToolCall(name, dumped(arguments)))
            return
        cursor.needs("<arg_key>")
        key = cursor.upto("</arg_key>").strip()
        cursor.space()
        cursor.needs("<arg_value>")
        _add(arguments, key, cursor.upto("</arg_value>", "<arg_key>", "</tool_call>"), _texts(names, name))


def _deepseek(cursor: Cursor, names: Names, calls: list[ToolCall]) -> None:
    while True:
        cursor.space()
        if calls and cursor.ends("<｜tool▁calls▁end｜>"):
            return
        cursor.needs("<｜tool▁call▁begin｜>")
        name = cursor.name()
        cursor.needs("<｜tool▁sep｜>")
        cursor.space()
        fenced = not cursor.skips("{")
        if fenced:  # the name was "function"
            name = cursor.name()
            cursor.space()
            cursor.needs("```json")
            cursor.space()
            cursor.needs("{")
        cursor.at -= 1
        call = call_of({"name": name, "arguments": cursor.json()})
        cursor.space()
        if fenced:
            cursor.needs("```")
        cursor.needs("<｜tool▁call▁end｜>")
        calls.append(call)


def _add(arguments: dict[str, Any], key: str, value: str, texts: Collection[str]) -> None:
    if key in arguments:
        raise ValueError("an argument that is there twice")
    arguments[key] = value if key in texts else _read(value)


def _read(value: str) -> Any:
    try:
        found = json.loads(value)
        dumped({"": found})
        return found
    except (ValueError, RecursionError):
        return PYTHON.get(value.strip(), value)


def _texts(names: Names, name: str) -> Collection[str]:
    """The parameters of a tool that hold text."""
    return names.get(name, ()) if isinstance(names, Mapping) else ()


QWEN3_CODER = ToolFormat(
    {"<tool_call>": _reader(_functions), "<function=": _reader(_bare_function)},
    others=("</tool_call>", "</function>", "<parameter=", "</parameter>"),
)
GLM = ToolFormat(
    {"<tool_call>": _reader(_glm)},
    others=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
DEEPSEEK = ToolFormat(
    {"<｜tool▁calls▁begin｜>": _reader(_deepseek)},
    others=("<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
)

"""How models write down that they call a tool, and what the call is.

A format is chosen from the text of the chat template, which shows the model how calls are written:

    hermes    <tool_call>{"name": "f", "arguments": {...}}</tool_call>          Qwen 2.5 and 3, Hermes, EXAONE
              small models forget the marks: the same alone, or in ```json
    llama3    {"name": "f", "parameters": {...}} as the whole answer, several with ";" between them, or behind
              <|python_tag|>, where a built-in tool is f.call(a="x")
    mistral   [TOOL_CALLS][{"name": "f", "arguments": {...}}], since 2025 [TOOL_CALLS]f[ARGS]{...} for each call
    granite   <|tool_call|>[{"name": "f", "arguments": {...}}]                   Phi-4-mini adds <|/tool_call|>
    gemma     ```tool_code, f(a="x"), ```; or [f(a="x")] as the whole answer; or JSON as llama3's, also in ```json
    qwen3_coder, glm, deepseek     see `tagged_calls.py`

A call is valid where it names a tool and gives its arguments as one object; without a mark of its own the tool must be
one that was offered. Nothing is run or imported: Python's syntax is read by `ast`, and values must be literals.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from typing import Any

from ..errors import BadRequest
from .tagged_calls import DEEPSEEK, GLM, QWEN3_CODER
from .tool_call import (
    Found,
    Names,
    NoCall,
    Reader,
    ToolCall,
    ToolFormat,
    after_space,
    call_of,
    calls_of,
    json_at,
    some,
)

NONE = ToolFormat()


def tool_format(template: str | None, name: str | None = None) -> ToolFormat:
    """The format that a caller names, or else the one that a chat template shows; one without marks for none.

    Raises `BadRequest` for a name that is not known.
    """
    if name is None:
        name = template_format(template or "")
    if name not in FORMATS:
        raise BadRequest(f"tool_format should be one of {', '.join(FORMATS)}, found {name!r}", "tool_format")
    return FORMATS[name]


def template_format(template: str) -> str:
    """The name of the format that a chat template shows, "none" where it shows no tools, or calls of another form."""
    if "tools" not in template:
        return "none"
    return next((name for name, mark in SHOWN_BY.items() if mark in template), "none")


def _tagged(close: str) -> Reader:
    """JSON, an object or a list of them, once or several times, up to a mark that the model may leave out."""

    def read(text: str, done: bool, names: Names) -> Found | None:
        calls: list[ToolCall] = []
        at = 0
        while True:
            at = after_space(text, at)
            if text.startswith(close, at):
                return some(calls), at + len(close)
            if close.startswith(text[at:]):  # the text ends before, or in, the mark
                return (some(calls), len(text)) if done else None
            if text[at] not in "{[":
                return some(calls), at
            found = _one_more(text, at, done, calls)
            if found is None:
                return None
            calls, at = found

    return read


def _mistral(text: str, done: bool, names: Names) -> Found | None:
    at = after_space(text, 0)
    head = re.match(r"([\w.-]+)\s*(?:\[CALL_ID\]\s*([\w-]+)\s*)?(?:\[ARGS\]\s*)?(?=\{)", text[at:])
    if head:
        found = json_at(text, at + head.end(), done)
        return found and ([call_of({"name": head[1], "arguments": found[0], "id": head[2]})], found[1])
    if text[at : at + 1] in ("[", "{"):
        found = json_at(text, at, done)
        return found and (calls_of(found[0]), found[1])
    if done or not re.fullmatch(r"[\w.-]*\s*(?:\[[\w\s\]-]*(?:\[[A-Z]*\]?\s*)?)?", text[at:]):
        raise ValueError("no call")
    return None


def _fenced(read_body: Callable[[str], list[ToolCall]], json_only: bool) -> Reader:
    """A block of Markdown, up to its three backticks; those in a string of its calls are part of that."""

    def read(text: str, done: bool, names: Names) -> Found | None:
        at = text.find("```")
        if json_only and not may_begin_call(text[:at] if at >= 0 else text, names):
            raise ValueError("no call")
        while at >= 0 and _ends_in_string(text[:at]):
            at = text.find("```", at + 3)
        if at < 0 and not done:
            return None
        body, end = (text[:at], at + 3) if at >= 0 else (text, len(text))
        return _offered(read_body(body), names if json_only else None), end

    return read


# Strings of Python, and comments; strings of JSON are among them.
_STRING = re.compile(
    r"""\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|#[^\n]*""", re.DOTALL
)


def _ends_in_string(body: str) -> bool:
    """Whether calls end inside of a string: a quote is left when all whole strings are taken out."""
    return not {'"', "'"}.isdisjoint(_STRING.sub("", body))


def _rest(read_body: Callable[[str], list[ToolCall]], marked: bool) -> Reader:
    """All that is left of the answer; without a mark it counts as calls only if the tools named were offered."""

    def read(text: str, done: bool, names: Names) -> Found | None:
        if not marked and not may_begin_call(text, names):
            raise ValueError("no call")
        if not done:
            if text.lstrip().startswith("{"):
                _json_calls(text, False)  # to know at once where it is none
            return None
        try:
            return _offered(read_body(text), None if marked else names), len(text)
        except NoCall as error:
            raise NoCall(_offered(error.before, None if marked else names)) from None

    return read


def may_begin_call(text: str, names: Names) -> bool:
    """Whether a text without a mark, from its first character on, can still become a call of a tool offered.

    That is `{"name": "f", "parameters": {`, perhaps with a type or a list around it, or `[f(`.
    """
    compact = "".join(text[:LONGEST_HEAD].split())
    for head, tails in BARE_HEADS.items():
        if head.startswith(compact):
            return True
        name = re.match(r"[\w.-]*", compact[len(head) :])[0] if compact.startswith(head) else ""
        rest = compact[len(head) + len(name) :]
        if not name:
            continue
        if not rest and (names is None or any(known.startswith(name) for known in names)):
            return True
        if (names is None or name in names) and any(rest.startswith(t) or t.startswith(rest) for t in tails):
            return True
    return False


def _json_calls(text: str, done: bool = True) -> list[ToolCall]:
    """JSON objects or lists with nothing but space, semicolons and commas between them; those whole, if not `done`."""
    calls: list[ToolCall] = []
    at = after_space(text, 0)
    while at < len(text):
        found = _one_more(text, at, done, calls)
        if found is None:
            return calls
        calls, at = found
        at = after_space(text, at, ";,")
    return some(calls)


def _one_more(text: str, at: int, done: bool, calls: list[ToolCall]) -> Found | None:
    """The calls so far and those of the JSON at a place, and where it ends."""
    if text[at] not in "{[":
        raise NoCall(calls)
    try:
        found = json_at(text, at, done)
        return found and (calls + calls_of(found[0]), found[1])
    except ValueError as error:
        raise NoCall(calls) from error


def _python_calls(text: str) -> list[ToolCall]:
    """Calls in Python's syntax, each a line of its own or in one list, perhaps inside print(...)."""
    calls: list[ToolCall] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an escape such as \d
            body = ast.parse(text.strip()).body
        for statement in body:
            value = statement.value if isinstance(statement, ast.Expr) else None
            calls += [_python_call(node) for node in (value.elts if isinstance(value, ast.List) else [value])]
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError("not calls in Python with literals") from error
    return some(calls)


def _python_call(node: Any) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    name = ast.unparse(node.func)
    if name == "print" and len(node.args) == 1 and not node.keywords:
        return _python_call(node.args[0])
    if node.args or not re.fullmatch(r"[\w.]+", name):
        raise ValueError("only arguments with names say what they are")
    arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    if None in arguments:
        raise ValueError("arguments that are spread out")
    return call_of({"name": name, "arguments": arguments})


def _json_or_python(text: str) -> list[ToolCall]:
    try:
        return _json_calls(text)
    except ValueError:
        if text.lstrip().startswith("{"):
            raise
    return [ToolCall(call.name.removesuffix(".call"), call.arguments) for call in _python_calls(text)]


def _offered(calls: list[ToolCall], names: Names) -> list[ToolCall]:
    if names is not None and any(call.name not in names for call in calls):
        raise ValueError("no such tool")
    return calls


LONGEST_HEAD = 1000  # characters that say whether a text without a mark is a call
_OBJECT = ('","arguments":{', '","parameters":{')
BARE_HEADS = {
    '{"name":"': _OBJECT, '[{"name":"': _OBJECT, '{"type":"function","name":"': _OBJECT, "[": ("(",),
}  # fmt: skip

FORMATS = {
    "hermes": ToolFormat(
        {"<tool_call>": _tagged("</tool_call>"), "```json": _fenced(_json_calls, True)},
        _rest(_json_calls, False),
        ("</tool_call>", "```"),
    ),
    "llama3": ToolFormat({"<|python_tag|>": _rest(_json_or_python, True)}, _rest(_json_calls, False)),
    "mistral": ToolFormat({"[TOOL_CALLS]": _mistral}, None, ("[ARGS]", "[CALL_ID]")),
    "granite": ToolFormat({"<|tool_call|>": _tagged("<|/tool_call|>")}, None, ("<|/tool_call|>",)),
    "gemma": ToolFormat(
        {"```tool_code": _fenced(_python_calls, False), "```json": _fenced(_json_calls, True)},
        _rest(_json_or_python, False),
        ("```",),
    ),
    "qwen3_coder": QWEN3_CODER,
    "glm": GLM,
    "deepseek": DEEPSEEK,
    "none": NONE,
}
# a part of a template that shows a format; the first counts, since some have marks of others too
SHOWN_BY = {
    "qwen3_coder": "<parameter=", "none": "<function=", "glm": "<arg_key>", "deepseek": "<｜tool▁call▁begin｜>",
    "mistral": "[TOOL_CALLS]", "llama3": "<|python_tag|>", "granite": "<|tool_call|>", "gemma": "tool_code",
    "hermes": "<tool_call>",
}  # fmt: skip

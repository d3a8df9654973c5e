"""A conversation -> the text that a model was trained to continue, by the chat template that comes with the model.

Templates are Jinja programs. Here they get what transformers' `apply_chat_template` gives them, so that the text is the
same, in a sandbox (`sandbox.py`) and on a checked copy of the messages (`messages.py`).
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, MissingExtra, TemplateError
from .calls import NONE, tool_format
from .markup import REASONING, Markup
from .messages import check_tools, joined_parts, plain, prepare_messages
from .tokenizer import Tokenizer
from .tool_call import Names

if TYPE_CHECKING:
    import jinja2

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as the ids that a model continues, and how to read its answer."""

    ids: list[int]
    markup: Markup


def chat_prompt(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Any, tools: Any = None, format: str | None = None
) -> ChatPrompt:
    """Render and tokenize a conversation. The template alone says where BOS stands: none is added.

    Calls of tools are looked for where `tools` are given or a `format` is named (see `calls.py`), reasoning where the
    template or an added token of the vocabulary shows its marks.
    Raises what `ChatTemplate.render` does, and `BadRequest` for a format that is not known, or for tools that the
    template would leave out.
    """
    text = template.render(messages, tools)
    source = template.source or ""
    if tools and format is None and "tools" not in source:
        hint = "describe them in a message, and name the form of the calls by tool_format"
        raise BadRequest(f"this model's chat template has no place for tools: {hint}", "tools")
    think = next((marks for marks in REASONING.items() if _shows(source, tokenizer, marks)), None)
    markup = Markup(
        tool_format(source, format) if tools or format else NONE,
        _names(tools),
        think,
        think is not None and text.rstrip().endswith(think[0]),
        seed=text,
    )
    special = frozenset(mark for mark in markup.marks if tokenizer.id_of(mark) in tokenizer.special_ids)
    return ChatPrompt(tokenizer.encode(text, add_special_tokens=False), replace(markup, special=special))


def _shows(source: str, tokenizer: Tokenizer, marks: tuple[str, str]) -> bool:
    return any(mark in source or tokenizer.id_of(mark) in tokenizer.added_ids for mark in marks)


def _names(tools: Any) -> Names:
    """The names of tools, given as OpenAI's API has them or bare, and which of their parameters are text.

    None where one has no name.
    """
    functions = [tool["function"] if isinstance(tool.get("function"), Mapping) else tool for tool in tools or []]
    names = {function.get("name"): _texts(function.get("parameters")) for function in functions}
    return names if names and all(isinstance(name, str) for name in names) else None


def _texts(schema: Any) -> frozenset[str]:
    """The properties of an object that can only be strings, as far as a JSON schema says so in plain words."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return frozenset()
    kinds = {name: found.get("type") for name, found in properties.items() if isinstance(found, Mapping)}
    return frozenset(name for name, kind in kinds.items() if kind in ("string", ["string"]))


class ChatTemplate:
    """A model's chat template. Compiled when it is first used; safe to share between threads."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str] | None = None):
        """`source` is Jinja, None for a model that has none; `special_tokens` are variables such as "bos_token"."""
        self.source = source
        self.special_tokens = dict(special_tokens or {})

    def render(self, messages: Any, tools: Any = None, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The conversation as text, ready for `Tokenizer.encode(text, add_special_tokens=False)`.

        `messages` are dicts with a "role", and "content" that is text, null, or a list of text parts. The parts go to a
        template that prints them by itself; to any other they are joined by newlines. `tools` are JSON descriptions.
        With `add_generation_prompt` the text ends where the assistant's answer begins. `variables` are seen by the
        template under their names. Nothing that is given is changed.

        Raises `BadRequest` for malformed messages or tools, `TemplateError` where there is no template, where it is not
        valid, where it refuses the conversation (with its own words) or fails, and `MissingExtra` without jinja2.
        """
        given = {"documents": None, **self.special_tokens, **plain(variables, "template variables")}
        given |= {"tools": check_tools(tools), "add_generation_prompt": bool(add_generation_prompt)}
        parsed = prepare_messages(messages)
        try:
            return self._render(parsed, given)
        except TemplateError:
            # A few templates add the arguments of a tool call to text, and want them as the text that was sent.
            as_sent = prepare_messages(messages, parse_arguments=False)
            if as_sent != parsed:
                with suppress(TemplateError):
                    return self._render(as_sent, given)
            raise

    def _render(self, messages: Messages, variables: dict[str, Any]) -> str:
        return self._run(self._fit_content(messages, variables), variables)

    def _fit_content(self, messages: Messages, variables: dict[str, Any]) -> Messages:
        """Join the parts of every content list that the template would not print by itself.

        That is found by asking it: the conversation is rendered with a marker in each part, which must come out, and
        not as Python writes a list.
        """
        lists = [i for i, message in enumerate(messages) if isinstance(message.get("content"), list)]
        if not lists:
            return messages
        marked = list(messages)
        markers = {i: [f"part-{i}-{j}-of-content" for j in range(len(messages[i]["content"]))] for i in lists}
        for i in lists:
            marked[i] = {**messages[i], "content": [{"type": "text", "text": marker} for marker in markers[i]]}
        text = ""
        with suppress(TemplateError):
            text = self._run(marked, variables)
        fitted = list(messages)
        for i in lists:
            if not all(marker in text and f"'text': '{marker}'" not in text for marker in markers[i]):
                fitted[i] = {**messages[i], "content": joined_parts(messages[i]["content"])}
        return fitted

    def _run(self, messages: Messages, variables: dict[str, Any]) -> str:
        template = self._compiled
        from . import sandbox

        try:
            return sandbox.run(template, {**variables, "messages": messages})
        except sandbox.Refused as error:
            raise TemplateError(f"the chat template refused the conversation: {error}", "messages") from error
        except Exception as error:  # a template may lead to any error that Python has
            raise TemplateError(f"the chat template failed{_line(error)}: {_reason(error)}", "messages") from error

    @cached_property
    def _compiled(self) -> jinja2.Template:
        if self.source is None:
            where = "chat_template.jinja or tokenizer_config.json"
            raise TemplateError(f"this model has no chat template in {where}: give it a plain prompt", "messages")
        try:
            from .sandbox import Environment
        except ModuleNotFoundError as error:
            if error.name != "jinja2":
                raise
            raise MissingExtra("rendering a chat template", "chat") from error
        try:
            return Environment().from_string(self.source)
        except Exception as error:  # besides Jinja's own, Python's compiler and stack have their limits
            raise TemplateError(f"the chat template is not valid{_line(error)}: {_reason(error)}") from error


def _line(error: Exception) -> str:
    """ " at line 3", the innermost line of the template that an error came from; "" where that is unknown."""
    line = None if isinstance(error, SyntaxError) else getattr(error, "lineno", None)  # that of Python is not its line
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename in ("<template>", "<unknown>"):
            line = number
    return f" at line {line}" if line else ""


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself without end, or is nested too deeply"
    return str(error) or type(error).__name__

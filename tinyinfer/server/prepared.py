"""What is asked -> requests of the engine: for the routes of the server, and for batches, which have no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine import Engine
from ..engine.request import Request
from ..errors import BadRequest
from ..text.tokenizer import Tokenizer
from .asked import Asked
from .errors import Refusal, named
from .tools import calling

FORMS = ("json", "json_schema")  # what response_format and tool_choice become


def chosen_name(asked: Any, names: Sequence[str]) -> str:
    """Which of `names` a request means: none is the first. Raises `Refusal` with status 404 for any other."""
    if asked is None:
        return names[0]
    if not isinstance(asked, str):
        raise BadRequest(f"model should be text, found {str(asked)[:80]}", "model")
    if asked not in names:
        there = ", ".join(map(repr, names))
        raise Refusal(404, f"there is no model {asked[:80]!r} here, but {there}", "model", "model_not_found")
    return asked


def prepared(engine: Engine, asked: Asked) -> list[Request]:
    """A request of the engine for each prompt. Raises `BadRequest` for what can't be answered, naming the field."""
    how = {name: getattr(asked, name) for name in ("n", "adapters", "priority", "graphemes", "speculate")}
    if asked.messages is None:
        return [engine.prepare(prompt, asked.params, **how) for prompt in asked.prompts]
    return [_prepared_chat(engine, asked, how)]


def _prepared_chat(engine: Engine, asked: Asked, how: dict[str, Any]) -> Request:
    form = "tools" if asked.must_call else "response_format" if asked.response_format else None
    with named({"prompt": "messages"} | (dict.fromkeys(FORMS, form) if form else {})):
        prompt = engine.llm.chat_prompt(asked.messages, asked.tools, asked.tool_format)
        params = calling(asked.params, prompt, asked.tools) if asked.must_call else asked.params
        return engine.prepare(prompt, params, **how)


def echoed(asked: Asked, requests: Sequence[Request], tokenizer: Tokenizer | None) -> list[str]:
    """The text of each prompt where it is to stand before the answers; else nothing."""
    found = []
    for prompt, request in zip(asked.prompts, requests if asked.echo else (), strict=asked.echo):
        ids = request.answer.prompt_ids
        found.append(prompt if isinstance(prompt, str) else tokenizer.decode(ids) if tokenizer else "")
    return found

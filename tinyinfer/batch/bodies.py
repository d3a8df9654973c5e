"""The bodies of a batch: OpenAI's JSON as the server reads and writes it, for an engine without HTTP."""

from __future__ import annotations

from typing import Any

from ..engine import Engine
from ..engine.request import Request
from ..errors import BadRequest
from ..server.asked import read_chat, read_text
from ..server.errors import refusal_of
from ..server.prepared import chosen_name, echoed, prepared
from ..server.shapes import ChatShape, Shape, TextShape
from .requests import ID_PREFIX, BatchRequest


class Bodies:
    """Reads what is asked of one model; `name` is what requests may call it."""

    def __init__(self, engine: Engine, name: str):
        self._engine, self._name = engine, name
        self._tokenizer = None if engine.llm.checkpoint.tokenizer_json is None else engine.llm.tokenizer

    def read(self, request: BatchRequest) -> tuple[list[Request], Shape]:
        """What the engine is to run, and the shape of the answer. Raises what `error_body` tells."""
        if request.error is not None:
            raise request.error
        chosen_name(request.body.get("model"), [self._name])
        chat = request.url == "/v1/chat/completions"
        asked = (read_chat if chat else read_text)(with_seed(request))
        if asked.stream:
            raise BadRequest("an answer in a file can't be streamed: leave out stream", "stream")
        requests, named = prepared(self._engine, asked), (self._name, self._tokenizer, asked.n)
        if chat:
            return requests, ChatShape(*named)
        return requests, TextShape(*named, echoed=echoed(asked, requests, self._tokenizer))


def with_seed(request: BatchRequest) -> dict[str, Any]:
    """The body, with a seed that goes by the line if it has none: a run that was cut short gives the same answers."""
    if request.body.get("seed") is not None:
        return request.body
    return request.body | {"seed": int(request.id.removeprefix(ID_PREFIX)[:7], 16)}


def error_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the body that tell an error."""
    refusal = refusal_of(error)
    return refusal.status, refusal.body

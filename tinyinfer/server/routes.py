"""One function for each route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..answer import Completion, Piece
from ..engine.request import Request as EngineRequest
from ..errors import BadRequest
from ..sampling.checks import flag
from . import events
from .asked import Asked, read_chat, read_text
from .body import read_object
from .errors import json_response, named, refusal_of
from .model import ServedModel
from .prepared import echoed
from .service import READY, Service
from .shapes import ChatShape, Shape, TextShape


async def health(request: Request) -> Response:
    """Whether requests are answered."""
    state = service_of(request).state
    return json_response({"status": "ok" if state == READY else state}, 200 if state == READY else 503)


async def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def models(request: Request) -> Response:
    """All models, and of those that are loaded the adapters that requests may name."""
    service = service_of(request)
    service.check_ready()
    return json_response({"object": "list", "data": [_model(model) for model in service.models.values()]})


async def model(request: Request) -> Response:
    """The same of one, by its name."""
    service = service_of(request)
    service.check_ready()
    return json_response(_model(service.named(request.path_params["name"])))


def _model(model: ServedModel) -> dict[str, Any]:
    engine = model.engine
    return {
        "id": model.name, "object": "model", "created": model.since, "owned_by": "tinyinfer",
        "loaded": engine is not None, "context_length": engine and engine.context,
        "adapters": engine.llm.adapters.names if engine else [],
    }  # fmt: skip


async def chat(request: Request) -> Response:
    """/v1/chat/completions."""
    service, model, body = await asked_of(request)
    asked = read_chat(body)

    def shape(_: list[EngineRequest]) -> Shape:
        return ChatShape(model.name, model.tokenizer, asked.n, asked.include_usage)

    return Answering(service, model, asked, shape)


async def completions(request: Request) -> Response:
    """/v1/completions."""
    service, model, body = await asked_of(request)
    asked = read_text(body)

    def shape(requests: list[EngineRequest]) -> Shape:
        texts = echoed(asked, requests, model.tokenizer)
        return TextShape(model.name, model.tokenizer, asked.n, asked.include_usage, echoed=texts)

    return Answering(service, model, asked, shape)


async def tokenize(request: Request) -> Response:
    """The ids of a prompt or of a conversation, as they would be run."""
    service, model, body = await asked_of(request)
    only(body, "model", "prompt", "messages", "tools", "add_special_tokens", "with_pieces")
    if ("prompt" in body) == ("messages" in body):
        raise BadRequest("prompt or messages is needed, one of them", "prompt")
    special = flag("add_special_tokens", body.get("add_special_tokens", True))
    pieces = flag("with_pieces", body.get("with_pieces", False))
    if "tools" in body and "messages" not in body:
        raise BadRequest("tools are shown in a conversation: give messages", "tools")
    if "messages" in body and not special:
        raise BadRequest("the chat template says which special tokens there are", "add_special_tokens")
    async with service.using(model):
        llm, context = model.engine.llm, model.engine.context
        if "messages" in body:
            with named({"prompt": "messages"}):
                ids = await asyncio.to_thread(llm.chat_ids, body["messages"], body.get("tools"))
        else:
            ids = await asyncio.to_thread(llm.tokenizer.encode, body["prompt"], special)
        found = {"tokens": ids, "count": len(ids), "context_length": context}
        return json_response(found | ({"pieces": [llm.tokenizer.decode([id]) for id in ids]} if pieces else {}))


async def detokenize(request: Request) -> Response:
    """The text of ids."""
    service, model, body = await asked_of(request)
    only(body, "model", "tokens")
    tokens = body.get("tokens")
    if not isinstance(tokens, list):
        raise BadRequest("tokens is needed: a list of ids", "tokens")
    async with service.using(model):
        with named({"ids": "tokens"}):
            return json_response({"prompt": model.engine.llm.tokenizer.decode(tokens)})


def only(body: dict[str, Any], *names: str) -> None:
    """Raises `BadRequest` for a field of another name."""
    for name in body:
        if name not in names:
            raise BadRequest(f"there is no parameter {name[:80]!r} here", name[:80])


def service_of(request: Request) -> Service:
    """What is served."""
    return request.app.state.service


async def asked_of(request: Request) -> tuple[Service, ServedModel, dict[str, Any]]:
    """What is served, which model a request means, and its body. Raises as `read_object` and `Service.named` do."""
    service, settings = service_of(request), request.app.state.settings
    service.check_ready()
    body = await read_object(request, settings.most_bytes, settings.body_seconds)
    model = service.named(body.get("model"))
    request.state.model = model.name
    return service, model, body


class Answering(Response):
    """An answer of a model's engine, whole or streamed, for as long as somebody reads it."""

    def __init__(
        self,
        service: Service,
        model: ServedModel,
        asked: Asked,
        shape: Callable[[list[EngineRequest]], Shape],
        names: Mapping[str, str] | None = None,
    ):
        """`shape` is called with what the engine is to run, when the model is there; `names` say what parameters that
        errors name are called here, where that is something else."""
        self.background, self.status_code = None, 200
        self._service, self._model, self._asked, self._shape_of = service, model, asked, shape
        self._names = dict(names or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. Raises as `Service.using` and `ServedModel` do, where nothing was sent yet."""
        await while_connected(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._service.using(self._model):
            with named(self._names):
                requests = await self._model.prepared(self._asked)
            self._shape = self._shape_of(requests)
            async with self._model.running(requests) as pieces:
                await (self._stream(pieces, send) if self._asked.stream else self._whole(pieces, scope, receive, send))

    async def _whole(
        self, pieces: AsyncIterator[tuple[int, Piece]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        done = {}
        async for index, piece in pieces:
            self._note(done, index, piece)
            self._shape.take(index, piece)
        await json_response(self._shape.whole(_in_order(done)))(scope, receive, send)

    async def _stream(self, pieces: AsyncIterator[tuple[int, Piece]], send: Send) -> None:
        await events.begin(send)
        done, shape = {}, self._shape
        try:
            for event in shape.opening():
                await events.send_json(send, event)
            async for index, piece in pieces:
                self._note(done, index, piece)
                for event in shape.chunks(index, piece):
                    await events.send_json(send, event)
            for event in shape.closing(_in_order(done)):
                await events.send_json(send, event)
            await events.end(send, shape.mark)
        except Exception as error:
            await events.send_json(send, shape.failed(refusal_of(error)), more=False)

    def _note(self, done: dict[int, Completion], index: int, piece: Piece) -> None:
        if piece.completion:
            done[index] = piece.completion
            self._service.metrics.note(self._model.name, piece.completion)


def _in_order(done: dict[int, Completion]) -> list[Completion]:
    return [done[index] for index in sorted(done)]


async def while_connected(receive: Receive, work: Awaitable[None]) -> None:
    """Do `work`; where the client goes away it is cancelled, which raises `ClientDisconnect`."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

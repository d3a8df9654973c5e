"""/v1/responses: what it asks as a chat, which is then read and answered as any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..engine.request import Request as EngineRequest
from ..errors import BadRequest
from ..sampling.checks import flag, whole
from .asked import KNOWN as CHAT
from .asked import Asked, read_chat, settle
from .errors import Refusal, json_response, named
from .items import Item, messages_of, read_input
from .response_shape import ResponseShape
from .routes import Answering, asked_of
from .store import Store

# what a chat calls otherwise: that name, and the one here
NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format",
         "logprobs": "include"}  # fmt: skip
CHAT_ONLY = {*NAMES, "max_completion_tokens", "n", "modalities", "best_of", "suffix"}
LOGPROBS = "message.output_text.logprobs"

# fields that may say only what is done anyway
SETTLED: dict[str, tuple[Any, ...]] = {
    "background": (False,), "truncation": ("disabled",), "stream_options": ({}, {"include_obfuscation": False}),
    "reasoning": ({}, {"effort": None}, {"summary": None}, {"effort": None, "summary": None}),
}  # fmt: skip

KNOWN = (
    CHAT | SETTLED.keys() | {"input", "instructions", "previous_response_id", "text", "max_output_tokens", "include"}
)


@dataclass(frozen=True)
class AskedResponse:
    """What a request asks for."""

    asked: Asked
    items: Sequence[Item]  # of the whole conversation
    said: Mapping[str, Any]  # fields of the request that the response repeats
    store: bool


def read_response(body: Mapping[str, Any], store: Store) -> AskedResponse:
    """The body of /v1/responses. Raises `BadRequest` naming the field, `Refusal` for a response that is not there."""
    for name in body:
        if name in CHAT_ONLY:
            raise BadRequest(f"there is no parameter {name!r} here", name)
    rest = {name: value for name, value in body.items() if value is not None or name not in KNOWN}
    settle(rest, SETTLED)
    instructions, metadata = rest.pop("instructions", None), _metadata(rest.pop("metadata", {}))
    if not isinstance(instructions, str | None):
        raise BadRequest(f"instructions should be text, found {_short(instructions)}", "instructions")
    keep, previous = flag("store", rest.pop("store", True)), rest.pop("previous_response_id", None)
    items = [*_items_before(previous, store), *read_input(rest.pop("input", None))]
    system = [] if instructions is None else [{"role": "system", "content": instructions}]
    tools, choice, form = rest.pop("tools", []), rest.pop("tool_choice", "auto"), _form(rest.pop("text", {}))
    most, top = whole("max_output_tokens", rest.pop("max_output_tokens", None)), rest.pop("top_logprobs", None)
    chat = rest | {
        "messages": system + messages_of(items), "tools": _chat_tools(tools), "tool_choice": _chat_choice(choice),
        "response_format": _chat_form(form), "max_tokens": most, **_logprobs(rest.pop("include", []), top),
    }  # fmt: skip
    with named(NAMES):
        asked = read_chat(chat)
    said = {
        "instructions": instructions, "metadata": metadata, "store": keep, "previous_response_id": previous,
        "tools": tools, "tool_choice": choice, "text": {"format": form}, "max_output_tokens": most,
        "top_logprobs": top or 0,
    }  # fmt: skip
    return AskedResponse(asked, items, said, keep)


def _items_before(previous: Any, store: Store) -> Sequence[Item]:
    if previous is None:
        return ()
    if not isinstance(previous, str):
        raise BadRequest(f"previous_response_id should be text, found {_short(previous)}", "previous_response_id")
    try:
        return store.get(previous).items
    except Refusal as error:
        raise Refusal(400, error.message, "previous_response_id", "previous_response_not_found") from None


def _metadata(found: Any) -> dict[str, str]:
    if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
        return found
    raise BadRequest(f"metadata should be an object whose values are text, found {_short(found)}", "metadata")


def _form(text: Any) -> dict[str, Any]:
    """The format of `text`."""
    if not isinstance(text, dict) or not text.keys() <= {"format", "verbosity"}:
        raise BadRequest(f"text should be an object with a format, found {_short(text)}", "text")
    if text.get("verbosity") not in (None, "medium"):
        found = _short(text["verbosity"])
        raise BadRequest(f"text.verbosity is not done here: it may only be 'medium', found {found}", "text.verbosity")
    form = text.get("format") or {"type": "text"}
    if not isinstance(form, dict):
        raise BadRequest(f"text.format should be an object with a type, found {_short(form)}", "text.format")
    return form


def _chat_form(form: dict[str, Any]) -> dict[str, Any]:
    if form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


def _chat_tools(tools: Any) -> Any:
    """Functions as chats have them; what is no such list is left for whoever reads it there."""
    if not isinstance(tools, list):
        return tools
    return [_as_function(tool) if isinstance(tool, dict) and tool.get("type") == "function" else tool for tool in tools]


def _chat_choice(choice: Any) -> Any:
    return _as_function(choice) if isinstance(choice, dict) and choice.get("type") == "function" else choice


def _as_function(found: dict[str, Any]) -> dict[str, Any]:
    inner = {name: value for name, value in found.items() if name != "type" and value is not None}
    return {"type": "function", "function": inner}


def _logprobs(include: Any, top: Any) -> dict[str, Any]:
    """What a chat says for it."""
    if not isinstance(include, list) or any(one != LOGPROBS for one in include):
        raise BadRequest(f"include may hold {LOGPROBS!r} only, found {_short(include)}", "include")
    if include:
        return {"logprobs": True, "top_logprobs": top}
    if whole("top_logprobs", top):
        raise BadRequest(f"top_logprobs needs include to hold {LOGPROBS!r}", "top_logprobs")
    return {}


def _short(value: Any) -> str:
    return repr(value)[:80]


async def create(request: Request) -> Response:
    """POST /v1/responses."""
    service, model, body = await asked_of(request)
    store = _store(request)
    told = read_response(body, store)

    def shape(requests: list[EngineRequest]) -> ResponseShape:
        params = requests[0].answer.sampler.params
        return ResponseShape(model.name, model.tokenizer, told.said, params, keep)

    def keep(response: dict[str, Any]) -> None:
        if told.store:
            store.keep(response, [*told.items, *response["output"]])

    return Answering(service, model, told.asked, shape, NAMES)


async def retrieve(request: Request) -> Response:
    """GET /v1/responses/ID."""
    for name, value in request.query_params.items():
        if (name, value) != ("stream", "false"):
            raise BadRequest(f"there is no parameter {name[:80]!r} here", name[:80])
    return json_response(_store(request).get(request.path_params["id"]).response)


async def delete(request: Request) -> Response:
    """DELETE /v1/responses/ID."""
    id = request.path_params["id"]
    _store(request).delete(id)
    return json_response({"id": id, "object": "response", "deleted": True})


def _store(request: Request) -> Store:
    return request.app.state.responses

"""Server-sent events, as OpenAI's streams are made of them (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import Send

from .errors import Refusal, json_bytes

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the text back
]


async def begin(send: Send) -> None:
    """Say that events come."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})


async def send_json(send: Send, value: Mapping[str, Any], more: bool = True) -> None:
    """One event, named by its type where it says one; `more` are to come."""
    name = f"event: {value['type']}\n" if "type" in value else ""
    await _send(send, name, json_bytes(value), more)


async def end(send: Send, mark: str | None) -> None:
    """The stream is whole, as the mark says where there is one."""
    if mark is None:
        await send({"type": "http.response.body", "body": b""})
    else:
        await _send(send, "", mark.encode(), more=False)


async def end_with(send: Send, refusal: Refusal) -> None:
    """The stream is not whole: the status was sent long ago, so an event says why, and no mark comes."""
    await send_json(send, refusal.body, more=False)


async def _send(send: Send, name: str, data: bytes, more: bool) -> None:
    event = name.encode() + b"data: " + data + b"\n\n"
    await send({"type": "http.response.body", "body": event, "more_body": more})

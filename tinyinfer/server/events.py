"""Server-sent events, as OpenAI's streams are made of them (WHATWG HTML, section 9.2)."""

from __future__ import annotations

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


async def send_json(send: Send, value: Any) -> None:
    """One event."""
    await _send(send, json_bytes(value), more=True)


async def end(send: Send) -> None:
    """The stream is whole."""
    await _send(send, b"[DONE]", more=False)


async def end_with(send: Send, refusal: Refusal) -> None:
    """The stream is not whole: the status was sent long ago, so an event says why, and no [DONE] comes."""
    await _send(send, json_bytes(refusal.body), more=False)


async def _send(send: Send, data: bytes, more: bool) -> None:
    await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": more})

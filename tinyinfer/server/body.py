"""A request's body, within its limits of bytes and time, as JSON that can be read in one way only."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from ..strict_json import parse_object
from .errors import CLOSE, Refusal


async def read_object(request: Request, most_bytes: int, seconds: float) -> dict[str, Any]:
    """The JSON object that a request brings.

    Raises `Refusal`: 400 for what is no JSON object, 408 where it is not there in time, 413 for a body that is too
    large, 415 for one of another type; and `ClientDisconnect` where its sender goes away.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, f"content-type should be application/json, found {kind[:80] or 'none'}", headers=CLOSE)
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise Refusal(415, f"content-encoding should be none, found {coding[:80]}", headers=CLOSE)
    try:
        raw = await asyncio.wait_for(_read(request, most_bytes), seconds)
    except asyncio.TimeoutError:
        raise Refusal(408, f"the body was not there after {seconds:g} seconds", headers=CLOSE) from None
    return parse_object(raw, lambda reason, key: Refusal(400, f"the body: {reason}", key))


async def _read(request: Request, most_bytes: int) -> bytes:
    too_large = Refusal(413, f"the body has more than the {most_bytes:,} bytes that are taken", headers=CLOSE)
    if int(request.headers.get("content-length", 0)) > most_bytes:  # the HTTP layer lets digits through alone
        raise too_large
    parts, size = [], 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most_bytes:
            raise too_large
        if not message.get("more_body"):
            return b"".join(parts)

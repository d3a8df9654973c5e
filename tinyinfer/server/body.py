"""A request's body, within its limits of bytes and time, as JSON that can be read in one way only."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

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
    return parse_object(raw)


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


def parse_object(raw: bytes) -> dict[str, Any]:
    """Strict JSON: UTF-8, no key twice, no NaN. Raises `Refusal` with status 400."""
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        where = f"byte {raw[error.start]:#04x} at {error.start:,}"
        raise Refusal(400, f"the body is not UTF-8: {where}") from None
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply") from None
    except ValueError as error:  # also whole numbers of thousands of digits
        raise Refusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refusal(400, f"the body should be a JSON object, found {text[:40]!r}")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Refusal(400, f"the body has {twice[:80]!r} twice in one object", twice[:80])
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")

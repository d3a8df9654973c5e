"""The file of requests: JSON Lines, read lazily, since it may be far larger than memory.

A line is {"custom_id": "...", "method": "POST", "url": "/v1/chat/completions", "body": {...}}.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadRequest
from ..strict_json import parse_object

URLS = ("/v1/chat/completions", "/v1/completions")
KEYS = ("custom_id", "method", "url", "body")
LONGEST_LINE = 2**24  # bytes: no context in use holds as much text
LONGEST_ID = 512  # characters
BOM = codecs.BOM_UTF8  # which some editors put at the beginning
ID_PREFIX = "batch_req_"


@dataclass(frozen=True)
class BatchRequest:
    """One line: what is asked, or what is wrong with it.

    `id` goes by what the line says (and for a line that can't be answered, by where it stands too), so that a later
    run knows it again. `custom_id` is None where the line has none that can be read.
    """

    line: int  # from 1
    id: str
    custom_id: str | None
    url: str
    body: dict[str, Any]
    error: BadRequest | None = None
    offset: int = 0  # where the line begins, in bytes


def read_requests(path: Path) -> Iterator[BatchRequest]:
    """The requests of a file, one for each line that is not blank; a bad line is one with an error.

    Of all that was read only the custom_ids are remembered: one that was there before is an error of its line.
    """
    seen: set[str] = set()
    for number, offset, raw in _lines(path):
        request = request_at(number, raw, offset)
        if request.custom_id in seen:
            error = BadRequest(f"line {number:,}: custom_id {request.custom_id!r} was given before", "custom_id")
            request = _bad(number, raw, request.custom_id, error)
        elif request.custom_id is not None:
            seen.add(request.custom_id)
        yield request


def count_requests(path: Path) -> int:
    """How many requests `read_requests` gives."""
    return sum(1 for _ in _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Lines that are not blank, after their numbers and where they begin; of one that is too long, not all of it."""
    with path.open("rb") as file:
        number = 0
        while True:
            offset, number = file.tell(), number + 1
            if not (raw := file.readline(LONGEST_LINE + 1)):
                return
            rest = raw
            while not rest.endswith(b"\n") and (rest := file.readline(LONGEST_LINE)):
                pass
            if raw.strip():
                yield number, offset, raw


def request_at(number: int, raw: bytes, offset: int = 0) -> BatchRequest:
    """What one line asks, whatever stands in others."""
    custom_id = None
    try:
        if len(raw) > LONGEST_LINE:
            raise BadRequest(f"the line is longer than {LONGEST_LINE:,} bytes")
        found = _object(raw)
        custom_id = _custom_id(found)
        url, body = _checked(found)
    except BadRequest as error:
        return _bad(number, raw, custom_id, BadRequest(f"line {number:,}: {error}", error.parameter))
    return BatchRequest(number, _id(raw.strip()), custom_id, url, body, offset=offset)


def _object(raw: bytes) -> dict[str, Any]:
    return parse_object(raw.removeprefix(BOM), lambda reason, key: BadRequest(reason))


def _custom_id(found: dict[str, Any]) -> str:
    custom_id = found.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= LONGEST_ID:
        expected = f"a string of 1 to {LONGEST_ID} characters"
        raise BadRequest(f"custom_id should be {expected}, found {_short(custom_id)}", "custom_id")
    return custom_id


def _checked(found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    for name in found:
        if name not in KEYS:
            raise BadRequest(f"there is no field {name[:80]!r}; known are {', '.join(KEYS)}", name[:80])
    if found.get("method") != "POST":
        raise BadRequest(f'method should be "POST", found {_short(found.get("method"))}', "method")
    url, body = found.get("url"), found.get("body")
    if url not in URLS:
        raise BadRequest(f"url should be one of {', '.join(URLS)}, found {_short(url)}", "url")
    if not isinstance(body, dict):
        raise BadRequest(f"body should be a JSON object, found {_short(body)}", "body")
    return url, body


def _bad(number: int, raw: bytes, custom_id: str | None, error: BadRequest) -> BatchRequest:
    return BatchRequest(number, _id(b"%d:" % number + raw.strip()), custom_id, "", {}, error)


def _id(said: bytes) -> str:
    return ID_PREFIX + hashlib.sha256(said).hexdigest()[:32]


def _short(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."

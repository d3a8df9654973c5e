"""The file of answers: JSON Lines, appended as they come, so that whatever ends a run, whole lines stay.

A line is {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error": null}; a request that could
not be answered has its status, 400 say, and a body {"error": {"message", "type", "param", "code"}}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import BadRequest
from .requests import ID_PREFIX, BatchRequest

BEGINNING = b'{"id": "' + ID_PREFIX.encode()  # of every line that this writes


class Answers:
    """OUT, held against other jobs from `with` to its end.

    What an earlier run wrote stays: `has` says which requests are answered. A line that a killed run left half-written
    is cut off.
    """

    def __init__(self, path: Path):
        """`path` need not be there, nor its folder."""
        self.path = path = path.resolve()
        self._lock = FileLock(path.with_name(f".{path.name}.lock"), blocking=False)

    def __enter__(self) -> Answers:
        """Raises `BadRequest` where another job has the file, or where it holds anything but answers."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise BadRequest(f"{self.path}: another batch job is writing this file") from None
        try:
            self._known, self._ids = _known(self.path)  # custom_id to id, and ids
            self._file = self.path.open("ab")
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._lock.release()

    def __len__(self) -> int:
        """How many requests are answered."""
        return len(self._ids)

    def __contains__(self, id: str) -> bool:
        """Whether the request of that id is answered."""
        return id in self._ids

    def has(self, request: BatchRequest) -> bool:
        """Whether a request is answered.

        Raises `BadRequest` where its custom_id was, but to a line that said something else: of an earlier version of
        the file of requests, say.
        """
        if request.id in self._ids:
            return True
        if request.error is None and request.custom_id in self._known:
            told = f"{self.path} answers custom_id {request.custom_id!r} of another request than line {request.line:,}"
            raise BadRequest(f"{told}; give another file for these answers, or another custom_id")
        return False

    def write(self, request: BatchRequest, status: int, body: dict[str, Any]) -> None:
        """Append an answer: the system has the whole line when this returns, and nothing ends with this process.

        Raises `OSError` where the disk is full; the next run then goes on from what is there.
        """
        response = {"status_code": status, "request_id": request.id.removeprefix("batch_"), "body": body}
        line = {"id": request.id, "custom_id": request.custom_id, "response": response, "error": None}
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        self._ids.add(request.id)


def _known(path: Path) -> tuple[dict[str, str], set[str]]:
    """What the whole lines of a file answer; the rest is cut off, once all of them are seen to be answers."""
    known: dict[str, str] = {}
    ids: set[str] = set()
    if not path.exists():
        return known, ids
    whole = 0
    for number, raw in _read(path):
        if not raw.endswith(b"\n"):
            if raw[: len(BEGINNING)] != BEGINNING[: len(raw)]:
                raise _stranger(path, number)
            os.truncate(path, whole)
            break
        id, custom_id, status = _facts(path, number, raw)
        if id in ids:
            raise BadRequest(f"{path}: line {number:,} answers a request that was answered before: {id}")
        ids.add(id)
        if custom_id is not None and status == 200:
            known[custom_id] = id
        whole += len(raw)
    return known, ids


def _read(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from enumerate(file, 1)


def _facts(path: Path, number: int, raw: bytes) -> tuple[str, str | None, int]:
    try:
        line = json.loads(raw)
        id, custom_id, status = line["id"], line["custom_id"], line["response"]["status_code"]
    except (ValueError, KeyError, TypeError):
        raise _stranger(path, number) from None
    if not raw.startswith(BEGINNING) or not isinstance(custom_id, str | None) or not isinstance(status, int):
        raise _stranger(path, number)
    return id, custom_id, status


def _stranger(path: Path, number: int) -> BadRequest:
    return BadRequest(f"{path}: line {number:,} is no answer of a batch job: nothing is appended to such a file")

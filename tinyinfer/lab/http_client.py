"""As much of an HTTP/1.1 client as measuring a server takes: one connection a request, its body as it comes.

Of the standard library alone, so that little stands between the server and the clock. RFC 9112.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..errors import BadRequest

LONGEST_LINE = 2**20  # bytes, of a header or an event
MOST_HEADERS = 200


class Target(NamedTuple):
    """Where a server is."""

    host: str
    port: int
    tls: bool
    base: str  # what stands before "/v1/..."


class BadAnswer(Exception):
    """The server said something that is no HTTP answer, or stopped in the middle of one."""


def target_of(url: str) -> Target:
    """`http://127.0.0.1:8080`, with or without `/v1`. Raises `BadRequest` for what is no such address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadRequest(f"{url!r} is no address: {error}", "url") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise BadRequest(f"expected an address as http://127.0.0.1:8080, found {url!r}", "url")
    base = parts.path.rstrip("/").removesuffix("/v1")
    tls = parts.scheme == "https"
    if any(not 0x20 < ord(letter) < 0x7F for letter in base + parts.hostname):
        raise BadRequest(f"an address is written in ASCII, without spaces: found {url!r}", "url")
    return Target(parts.hostname, port or (443 if tls else 80), tls, base)


@dataclass
class Answer:
    """An answer whose head is there and whose body comes."""

    status: int
    headers: dict[str, str]  # names in lower case
    _reader: asyncio.StreamReader

    async def parts(self) -> AsyncIterator[bytes]:
        """The body, in pieces as they arrive. Raises `BadAnswer` where the connection ends before the body does."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := await self._chunk_size():
                yield await self._exactly(size)
                await self._exactly(2)
        elif "content-length" in self.headers:
            yield await self._exactly(_number(self.headers["content-length"], 10))
        else:
            while part := await self._reader.read(2**16):
                yield part

    async def json(self) -> Any:
        """The whole body. Raises `BadAnswer` where it is no JSON."""
        raw = b"".join([part async for part in self.parts()])
        try:
            return json.loads(raw)
        except ValueError:
            raise BadAnswer(f"not JSON: {raw[:80]!r}") from None

    async def events(self) -> AsyncIterator[str]:
        """The data of each server-sent event: https://html.spec.whatwg.org/multipage/server-sent-events.html."""
        held, data = b"", []
        async for part in self.parts():
            *lines, held = (held + part).split(b"\n")
            for line in lines:
                line = line.removesuffix(b"\r").decode("utf-8", "replace")
                if line.startswith("data:"):
                    data.append(line[5:].removeprefix(" "))
                elif not line and data:
                    yield "\n".join(data)
                    data = []
            if len(held) > LONGEST_LINE:
                raise BadAnswer(f"an event of more than {LONGEST_LINE:,} bytes")

    async def _chunk_size(self) -> int:
        line = await _line(self._reader)
        return _number(line.partition(b";")[0].decode("latin-1").strip(), 16)

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError:
            raise BadAnswer("the connection ended in the middle of the answer") from None


@asynccontextmanager
async def request(
    target: Target, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Answer]:
    """Send a request with a JSON body and wait for the head of its answer; the connection ends with the block.

    Raises `OSError` where there is no connection, `BadAnswer` for what is no HTTP.
    """
    tls = ssl.create_default_context() if target.tls else None
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=tls, limit=LONGEST_LINE)
    try:
        raw = b"" if body is None else json.dumps(body).encode()
        host = f"[{target.host}]" if ":" in target.host else target.host
        head = {"host": f"{host}:{target.port}", "connection": "close", "content-length": len(raw)}
        head |= {"content-type": "application/json"} | dict(headers or {})
        lines = [f"{method} {target.base}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + raw)
        await writer.drain()
        yield await _head(reader)
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader) -> Answer:
    version, _, rest = (await _line(reader)).decode("latin-1").partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise BadAnswer(f"not HTTP: {version[:40]!r}")
    headers: dict[str, str] = {}
    while line := (await _line(reader)).decode("latin-1"):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
        if len(headers) > MOST_HEADERS:
            raise BadAnswer(f"more than {MOST_HEADERS} headers")
    return Answer(int(rest[:3]), headers, reader)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readline()
    except ValueError:
        raise BadAnswer(f"a line of more than {LONGEST_LINE:,} bytes") from None
    if not line.endswith(b"\n"):
        raise BadAnswer("the connection ended before the answer")
    return line.strip()


def _number(text: str, base: int) -> int:
    try:
        found = int(text, base)
    except ValueError:
        found = -1
    if not 0 <= found <= 2**40:
        raise BadAnswer(f"a length of {text[:20]!r}")
    return found

"""A small server that says what a test wants, in server-sent events: raw bytes, so that broken ones can be said too."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager


def event(content=None, **rest):
    delta = {} if content is None else {"content": content}
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]} | rest).encode() + b"\n\n"


def usage(prompt=7, completion=4, cached=2):
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event(choices=[], usage=counts | {"prompt_tokens_details": {"cached_tokens": cached}})


ANSWER = [event(), *map(event, "four"), usage(), b"data: [DONE]\n\n"]


def chunked(parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def answer(body, status="200 OK", kind="text/event-stream", chunks=True):
    """A whole HTTP answer, as its head and its body."""
    parts = body if isinstance(body, list) else [body]
    length = b"transfer-encoding: chunked" if chunks else b"content-length: %d" % len(b"".join(parts))
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n".encode() + length + b"\r\n\r\n"
    return head, chunked(parts) if chunks else b"".join(parts)


@contextmanager
def serving(say, pause=0.0, together=1):
    """The address of a server that answers request number `i` (from 0) with `say(i, body)`, a head and a body.

    /v1/models names "fake". `pause` seconds follow head and body each. Nothing is answered before `together` requests
    have come. Gives also the list of bodies it was sent.
    """
    loop, asked, ready = asyncio.new_event_loop(), [], threading.Event()

    async def serve(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        if head.startswith(b"get /v1/models"):
            parts = answer(json.dumps({"data": [{"id": "fake"}]}).encode(), kind="application/json", chunks=False)
        else:
            asked.append(json.loads(body))
            parts = say(len(asked) - 1, asked[-1])
            while len(asked) < together:
                await asyncio.sleep(0.005)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        writer.close()

    async def begin():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        ready.set()

    address = []
    loop.create_task(begin())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    ready.wait()
    try:
        yield address[0], asked
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

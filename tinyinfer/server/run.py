"""A socket, a server on it, and an end in order."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import BadRequest
from .errors import Refusal, json_bytes
from .service import Service

HEAD_SECONDS = 30  # until the first lines of a request are there
HEAD_BYTES = 65536
END_SECONDS = 2  # for connections to close once nothing is answered any more


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound; port 0 takes a free one. Raises `BadRequest` where it can't be had."""
    if not 0 <= port <= 65535:
        raise BadRequest(f"port should be a whole number from 0 to 65535, found {port}", "port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise BadRequest(f"can't listen on port {port} of {host}: {error.strerror or error}", "port") from None
    return bound


class Server(uvicorn.Server):
    """Loads the first model while it says 503, answers, and on SIGTERM or SIGINT finishes what runs; a second one ends
    it."""

    def __init__(self, app: Starlette, drain_seconds: float = 30.0):
        """What runs at the end is given `drain_seconds`."""
        config = uvicorn.Config(
            app, http=Protocol, ws="none", loop="asyncio", lifespan="off", log_config=None, log_level="error",
            access_log=False, server_header=False, proxy_headers=False, h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_graceful_shutdown=END_SECONDS,
        )  # fmt: skip
        super().__init__(config)
        self.service: Service = app.state.service
        self.failure: BaseException | None = None
        self._drain_seconds, self._deadline = drain_seconds, 0.0
        self._starting: asyncio.Task[None] | None = None

    def serve_on(self, bound: socket.socket) -> None:
        """Serve until a signal comes, or `drain`. Raises what loading the first model raises."""
        self.run(sockets=[bound])
        if self.failure:
            raise self.failure

    def drain(self) -> None:
        """Begin nothing more, finish what runs, and end."""
        self._deadline = time.monotonic() + self._drain_seconds
        self.service.draining = True

    def handle_exit(self, sig: int, frame: Any) -> None:
        """A signal came."""
        if self.service.draining:
            self.should_exit = self.force_exit = True
        else:
            self.drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer from now on, if only that the first model is being loaded."""
        await super().startup(sockets)
        self._starting = asyncio.ensure_future(self._start())

    async def on_tick(self, counter: int) -> bool:
        """Whether it is time to end."""
        drained = self.service.draining and (self.service.idle or time.monotonic() > self._deadline)
        return await super().on_tick(counter) or drained

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Those who are not done are told so; then all is closed."""
        await self.service.end()
        await super().shutdown(sockets)

    async def _start(self) -> None:
        try:
            await self.service.start()
        except Exception as error:  # `serve_on` raises it, unless it came of the end
            self.failure = None if self.service.draining else error
            self.should_exit = True


class Protocol(H11Protocol):
    """uvicorn's HTTP, with a limit of time for a request's first lines, and errors in OpenAI's form."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Go on with it."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._unwatch()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json_bytes(Refusal(400, f"this is no HTTP that can be read: {msg}").body)
            head = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
            for event in (h11.Response(status_code=400, headers=head), h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

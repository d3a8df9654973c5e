"""What stands before every route: who may ask, for how long, and the count of what was answered."""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import events
from .errors import CLOSE, Refusal, refusal_of
from .metrics import Metrics

if TYPE_CHECKING:
    from .app import Settings

OPEN = "/health"  # the one route that needs no key
LOG = logging.getLogger("tinyinfer.server")
GONE = 499  # counted where a client went away before its answer was there


class Guard:
    """Lets a request through, or answers it; counts both."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, paths: frozenset[str]):
        """`paths` are those of routes: others are counted together."""
        self._app, self._settings, self._metrics, self._paths = app, settings, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = GONE

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check(scope)
            await asyncio.wait_for(self._app(scope, receive, noting), self._settings.seconds)
        except ClientDisconnect:
            pass
        except asyncio.TimeoutError:
            await self._out_of_time(status != GONE, scope, receive, noting)
        except Refusal as refusal:
            await refusal.response()(scope, receive, noting)
        except Exception as error:
            LOG.exception("a request failed")
            if status != GONE:
                raise
            await refusal_of(error).response()(scope, receive, noting)
        finally:
            route = scope["path"] if scope["path"] in self._paths else "other"
            model = scope.get("state", {}).get("model", "")  # set by the route, for those that need one
            self._metrics.requests.labels(route, str(status), model).inc()
            LOG.info("%s %s %s", scope["method"], route, status)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if scope["path"] == OPEN:
            return
        key = self._settings.api_key
        if key is None:
            self._check_host(headers.get("host", ""))
        # in a time that doesn't tell how much of it is right
        elif not hmac.compare_digest(_key(headers.get("authorization", "")), key.encode()):
            # a browser asks for the key as a password, so that the page works too
            asks = {"www-authenticate": 'Basic realm="tinyinfer: the API key is the password"', **CLOSE}
            raise Refusal(401, "the API key is missing or wrong", code="invalid_api_key", headers=asks)

    def _check_host(self, host: str) -> None:
        """On loopback, only names of this machine: else any web page could have its own name lead here."""
        if self._settings.loopback and not is_loopback(_without_port(host)):
            hint = "give the server an --api-key if it is reached by another name"
            raise Refusal(403, f"the host should be this machine, found {host[:80]!r}: {hint}", headers=CLOSE)

    async def _out_of_time(self, begun: bool, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"the answer was not done after {self._settings.seconds:g} seconds"
        if not begun:
            await Refusal(504, message, code="timeout", headers=CLOSE).response()(scope, receive, send)
            return
        with suppress(asyncio.TimeoutError):  # who reads no more hears no more
            await asyncio.wait_for(events.end_with(send, Refusal(504, message, code="timeout")), 1)


def _key(authorization: str) -> bytes:
    """The key as a client gives it, or as the password that a browser asks for; empty where there is none."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode("latin-1")  # as headers are decoded
    if scheme.lower() == "basic":
        with suppress(ValueError):
            return base64.b64decode(rest, validate=True).partition(b":")[2]
    return b""


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine and reached from here alone."""
    if host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost"):
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False

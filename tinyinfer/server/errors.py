"""What goes wrong, as OpenAI's API says it: a status and {"error": {message, type, param, code}}."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, ContextOverflow, MissingExtra, SamplingError, TinyinferError, UnsupportedModel

if TYPE_CHECKING:  # not all who have errors to tell have HTTP
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response

TYPES = {401: "authentication_error", 429: "rate_limit_error"}  # else by the first digit
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
CLOSE = {"connection": "close"}  # where the rest of the request is not read


class Refusal(Exception):
    """An answer that is an error: its status, one sentence, and the parameter at fault where there is one."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """What is sent."""
        kind = TYPES.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The same as HTTP."""
        return json_response(self.body, self.status, self.headers)


def refusal_of(error: Exception) -> Refusal:
    """Which answer an error becomes; one that is no fault of the caller's is a 500."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, BadRequest):
        code = "context_length_exceeded" if isinstance(error, ContextOverflow) else None
        return Refusal(400, str(error), error.parameter, code)
    if isinstance(error, UnsupportedModel | SamplingError):
        return Refusal(400, str(error))
    if isinstance(error, MissingExtra):
        return Refusal(501, str(error))
    if isinstance(error, TinyinferError):
        return Refusal(500, str(error))
    return Refusal(500, f"a fault in the server: {type(error).__name__}")


async def answer_error(request: Request, error: Exception) -> Response:
    """For Starlette: any error that a route raises."""
    from starlette.exceptions import HTTPException

    if isinstance(error, HTTPException):
        error = _of_router(request, error)
    return refusal_of(error).response()


def _of_router(request: Request, error: HTTPException) -> Refusal:
    path, status = request.url.path[:200], error.status_code
    if status == 404:
        return Refusal(404, f"there is no route {path}", code="unknown_url")
    if status == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return Refusal(405, f"{path} takes {allowed}, found {request.method[:20]}", headers=error.headers)
    return Refusal(status, error.detail or HTTPStatus(status).phrase, headers=error.headers)


def json_bytes(value: Any) -> bytes:
    """JSON in UTF-8; half a surrogate pair, which has no UTF-8, stays the escape that JSON has for it."""
    return ENCODER.encode(value).encode("utf-8", "backslashreplace")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    from starlette.responses import Response

    return Response(json_bytes(value), status, dict(headers or {}), "application/json")


@contextmanager
def named(names: dict[str, str]) -> Iterator[None]:
    """Errors name a parameter as the sender does, also where their sentence begins with it."""
    try:
        yield
    except BadRequest as error:
        if (before := error.parameter) in names:
            error.parameter = names[before]
            error.args = (re.sub(rf"^{re.escape(before)}(?= )", lambda _: names[before], str(error)),)
        raise

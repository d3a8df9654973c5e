"""The chat at /: one file, which talks to this server alone."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response


async def show(request: Request) -> Response:
    """The page."""
    page, headers = _page()
    return Response(page, headers=headers, media_type="text/html; charset=utf-8")


@cache
def _page() -> tuple[str, dict[str, str]]:
    """The page, and headers that let nothing run or load but what is in it, and nothing be reached but this server."""
    page = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    allowed = {
        "default-src": "'none'", "script-src": _hash(page, "script"), "style-src": _hash(page, "style"),
        "connect-src": "'self'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
        "frame-ancestors": "'none'",
    }  # fmt: skip
    policy = "; ".join(f"{name} {value}" for name, value in allowed.items())
    return page, {
        "content-security-policy": policy, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }  # fmt: skip


def _hash(page: str, tag: str) -> str:
    (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

"""HTTP: OpenAI's routes over the engine. JSON becomes prompts and SamplingParams, the engine's events become JSON.

    asked.py      a request's JSON -> what is asked; every field is taken, or refused by name
    tools.py      tools, and answers that have to be a call
    shapes.py     completions and pieces -> OpenAI's JSON, whole and streamed
    errors.py     what goes wrong -> status and OpenAI's form of an error
    prepared.py   what is asked -> requests of the engine
    model.py      a model and its engine: loading and unloading, requests, and their events
    service.py    all models by name: which is there, and which makes room; loading, ready, draining
    body.py       a request's body within its limits, as strict JSON
    routes.py     one function for each route; embeddings.py one more
    responses.py  /v1/responses, as a chat; items.py its input, response_shape.py what comes out, store.py what is kept
    events.py     server-sent events
    guard.py      what stands before every route: key, host, time, the count of what was answered
    metrics.py    /metrics
    app.py        all of these put together
    run.py        a socket, a server, signals
    page.html     the chat at /; page.py sends it

Needs the extra `serve`: starlette, uvicorn and prometheus-client; but asked, shapes, prepared and errors don't, which
batches use too.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ServedModel", "Service", "Settings", "create_app"]


def __getattr__(name: str) -> Any:
    """Starlette is imported by whoever needs it."""
    if name in ("Settings", "create_app"):
        from . import app

        return getattr(app, name)
    if name == "ServedModel":
        from .model import ServedModel

        return ServedModel
    if name == "Service":
        from .service import Service

        return Service
    raise AttributeError(name)

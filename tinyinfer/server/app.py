"""The routes, what stands before them, and what becomes of their errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from ..errors import TinyinferError
from . import embeddings, page, responses, routes
from .errors import Refusal, answer_error
from .guard import Guard
from .service import Service
from .store import Store


@dataclass(frozen=True)
class Settings:
    """What a server allows."""

    api_key: str | None = None  # what every request but those to /health must bring
    cors: Sequence[str] = ()  # origins whose pages may use the server, "*" for all
    loopback: bool = True  # whether it is reached from this machine alone
    most_bytes: int = 8 * 2**20  # of a request's body
    body_seconds: float = 30.0  # until the body is there
    seconds: float = 600.0  # until the answer is done


ROUTES = [
    Route("/", page.show, methods=["GET"]),
    Route("/health", routes.health, methods=["GET"]),
    Route("/metrics", routes.metrics, methods=["GET"]),
    Route("/v1/models", routes.models, methods=["GET"]),
    Route("/v1/models/{name:path}", routes.model, methods=["GET"]),
    Route("/v1/chat/completions", routes.chat, methods=["POST"]),
    Route("/v1/completions", routes.completions, methods=["POST"]),
    Route("/v1/responses", responses.create, methods=["POST"]),
    Route("/v1/responses/{id}", responses.retrieve, methods=["GET"]),
    Route("/v1/responses/{id}", responses.delete, methods=["DELETE"]),
    Route("/v1/embeddings", embeddings.embeddings, methods=["POST"]),
    Route("/tokenize", routes.tokenize, methods=["POST"]),
    Route("/detokenize", routes.detokenize, methods=["POST"]),
]


def create_app(service: Service, settings: Settings | None = None) -> Starlette:
    """The server as an ASGI application."""
    settings = settings or Settings()
    paths = frozenset(route.path for route in ROUTES)
    before = [Middleware(Guard, settings, service.metrics, paths)]
    if settings.cors:
        allowed = {
            "allow_origins": list(settings.cors),
            "allow_methods": ["GET", "POST", "DELETE"],
            "allow_headers": ["*"],
        }
        before.insert(0, Middleware(CORSMiddleware, **allowed))  # before the key: browsers ask first without it
    errors = dict.fromkeys((HTTPException, Refusal, TinyinferError), answer_error)
    app = Starlette(routes=ROUTES, middleware=before, exception_handlers=errors)
    app.router.redirect_slashes = False
    app.state.service, app.state.settings, app.state.responses = service, settings, Store()
    return app

"""`tinyinfer serve`: models behind OpenAI's HTTP API."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import BadRequest, MissingExtra
from .options import (
    MODEL_HELP,
    Parser,
    add_loading,
    integer,
    limit_threads,
    load_model,
    loading,
    model_name,
    no_model,
    number,
)
from .output import note
from .speculation import add_speculation, speculation_wish

if TYPE_CHECKING:
    from ..llm import LLM
    from ..server import ServedModel

EPILOG = """\
Any client of OpenAI's API works, with the base URL http://127.0.0.1:8080/v1 and any key where none is set. SIGTERM and
Ctrl-C let what runs come to its end; a second one does not.

  tinyinfer serve smollm2-135m-instruct
  TINYINFER_API_KEY=secret tinyinfer serve model.gguf --host 0.0.0.0 --slots 16
  tinyinfer serve smollm2-135m-instruct qwen2.5-coder-0.5b-instruct --models-bytes 3000000000
"""
SHARED_STEP = 128  # tokens in a step at most where models take turns: so long may one keep the others waiting


def serve_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `serve`."""
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help=f"{MODEL_HELP}; of several, requests name one")
    add("-m", "--model", dest="models_flag", action="append", default=[], metavar="MODEL", help="the same, as a flag")
    add("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, this machine alone)")
    add("--port", type=integer, default=8080, metavar="N", help="the port (default: 8080; 0 takes a free one)")
    alias_help = "the name that requests give (default: MODEL, or its last part); once for each MODEL, in their order"
    add("-a", "--alias", dest="aliases", action="append", default=[], metavar="NAME", help=alias_help)
    most_help = "what loaded models may take, with their keys and values: idle ones make room (default: no limit)"
    add("--models-bytes", type=integer, metavar="N", help=most_help)
    slots_help = "requests answered at once; others wait (default: 8)"
    add("-np", "--slots", "--parallel", type=integer, default=8, metavar="N", help=slots_help)
    add("--queue", type=integer, default=256, metavar="N", help="requests that may wait, else 429 (default: 256)")
    cache_help = "what keys and values may take (default: 1 GiB, or one whole context if that is more)"
    add("--kv-cache-bytes", type=integer, metavar="N", help=cache_help)
    slow_help = "times as long as else a step of running answers may take for the sake of a new prompt (default: 1.8)"
    add("--slowdown", type=number, default=1.8, metavar="X", help=slow_help)
    key_help = "what every request but those to /health must bring (default: TINYINFER_API_KEY, else none)"
    add("--api-key", metavar="KEY", help=key_help)
    cors_help = "a web origin whose pages may use the server, * for all; may be given several times (default: none)"
    add("--cors", action="append", default=[], metavar="ORIGIN", help=cors_help)
    time_help = "until an answer must be done (default: 600)"
    add("-to", "--timeout", type=number, default=600.0, metavar="SECONDS", help=time_help)
    add("--body-bytes", type=integer, default=8 * 2**20, metavar="N", help="of a request at most (default: 8 MiB)")
    drain_help = "what is given to running answers when the server ends (default: 30)"
    add("--drain", type=number, default=30.0, metavar="SECONDS", help=drain_help)
    add_loading(parser, "a line for each request")
    add_speculation(parser)
    parser.epilog = EPILOG
    return serve


def serve(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    limit_threads(args)
    args.models += args.models_flag
    _check_models(args)
    settings, args.wish = _settings(args), speculation_wish(args)
    try:
        from ..server import Service, Settings, create_app
        from ..server.guard import is_loopback
        from ..server.run import Server, listen
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "prometheus_client", "h11"):
            raise
        raise MissingExtra("serving over HTTP", "serve") from error
    loopback = is_loopback(args.host)
    with listen(args.host, args.port) as bound:
        address = _address(*bound.getsockname()[:2])
        if not loopback and settings["api_key"] is None:
            logging.basicConfig(format="tinyinfer: warning: %(message)s")
            logging.getLogger("tinyinfer").warning("%s can be used by anyone who reaches it: see --api-key", address)
        if args.verbose:
            _show_requests()

        def tell(model: ServedModel) -> None:
            if not args.quiet:
                note(f"{model.name} is ready: {address}" if model.engine else f"{model.name} made room")

        service = Service(_served(args), args.models_bytes, tell)
        app = create_app(service, Settings(loopback=loopback, **settings))
        Server(app, args.drain).serve_on(bound)
    return 0


def _check_models(args: argparse.Namespace) -> None:
    """Raises `BadRequest` for models that can't be served together, and `ModelNotFound` for one that is not there."""
    from ..checkpoint.places import find_model

    models, several = args.models, len(args.models) > 1
    if not models:
        raise no_model()
    if args.aliases and len(args.aliases) != len(models):
        found = f"found {len(args.aliases)} for {len(models)}"
        raise BadRequest(f"--alias should be given once for each model, in their order, {found}", "alias")
    args.aliases = args.aliases or [model_name(model) for model in models]
    if twice := next((name for name in args.aliases if args.aliases.count(name) > 1), None):
        raise BadRequest(f"two models would be called {twice!r}: name each by an --alias", "alias")
    drafts = args.speculate if args.speculate != "ngram" else None
    for flag, given in (("--lora", args.lora), ("--model-draft", args.model_draft), ("--speculate", drafts)):
        if several and given:
            raise BadRequest(f"{flag} is of one model alone, found {len(models)} models", flag)
    if args.models_bytes is not None and not (several and args.models_bytes > 0):
        raise BadRequest("--models-bytes should be a whole number from 1, for several models", "models-bytes")
    for model in models:
        find_model(model)


def _served(args: argparse.Namespace) -> list[ServedModel]:
    """Each model with its name and what loads it."""
    from ..server import ServedModel

    how = {
        "slots": args.slots, "queue": args.queue, "kv_cache_bytes": args.kv_cache_bytes, "slowdown": args.slowdown,
    }  # fmt: skip
    if len(args.models) > 1:
        how["step_tokens"] = max(SHARED_STEP, args.slots)

    def served(name: str, model: str) -> ServedModel:
        def load() -> LLM:
            return load_model(argparse.Namespace(**vars(args) | {"model": model}))

        def needed() -> int:
            from ..engine.memory import serving_bytes
            from ..llm import weights_as_asked

            asked = loading(args)
            checkpoint = weights_as_asked(model, asked["quantize"], asked["activations"])
            return serving_bytes(checkpoint, asked["context"], asked["kv_dtype"], args.kv_cache_bytes)

        return ServedModel(name, load, needed, **how)

    return [served(name, model) for name, model in zip(args.aliases, args.models, strict=True)]


def _settings(args: argparse.Namespace) -> dict:
    for name in ("timeout", "drain"):
        if not 0 < getattr(args, name) <= 1e9:
            raise BadRequest(f"--{name} should be seconds above 0, found {getattr(args, name):g}", name)
    if args.body_bytes < 1:
        raise BadRequest(f"--body-bytes should be a whole number from 1, found {args.body_bytes}", "body-bytes")
    key = os.environ.get("TINYINFER_API_KEY") if args.api_key is None else args.api_key
    if key is not None and not key.strip():
        raise BadRequest("the API key is empty; leave it out to need none", "api-key")
    limits = {"most_bytes": args.body_bytes, "seconds": args.timeout}
    return {"api_key": None if key is None else key.strip(), "cors": tuple(args.cors), **limits}


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _show_requests() -> None:
    log = logging.getLogger("tinyinfer.server")
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(shown)
    log.setLevel(logging.INFO)
    log.propagate = False

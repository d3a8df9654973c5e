"""`tinyinfer serve`: a model behind OpenAI's HTTP API."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import BadRequest, MissingExtra
from .options import (
    Parser,
    add_loading,
    add_model,
    integer,
    limit_threads,
    load_model,
    model_name,
    number,
    settle_model,
)
from .output import note
from .speculation import add_speculation, speculation_wish

if TYPE_CHECKING:
    from ..llm import LLM

EPILOG = """\
Any client of OpenAI's API works, with the base URL http://127.0.0.1:8080/v1 and any key where none is set. SIGTERM and
Ctrl-C let what runs come to its end; a second one does not.

  tinyinfer serve smollm2-135m-instruct
  TINYINFER_API_KEY=secret tinyinfer serve model.gguf --host 0.0.0.0 --slots 16
"""


def serve_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `serve`."""
    add_model(parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, this machine alone)")
    add("--port", type=integer, default=8080, metavar="N", help="the port (default: 8080; 0 takes a free one)")
    add("-a", "--alias", metavar="NAME", help="the name that requests give (default: MODEL, or its last part)")
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
    settle_model(args)
    settings, args.wish = _settings(args), speculation_wish(args)
    limit_threads(args)
    try:
        from ..server import Service, Settings, create_app
        from ..server.guard import is_loopback
        from ..server.run import Server, listen
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "prometheus_client", "h11"):
            raise
        raise MissingExtra("serving over HTTP", "serve") from error
    loopback = is_loopback(args.host)
    how = {
        "slots": args.slots, "queue": args.queue, "kv_cache_bytes": args.kv_cache_bytes, "slowdown": args.slowdown,
    }  # fmt: skip
    service = Service(args.alias or model_name(args.model), **how)
    with listen(args.host, args.port) as bound:
        address = _address(*bound.getsockname()[:2])
        if not loopback and settings["api_key"] is None:
            logging.basicConfig(format="tinyinfer: warning: %(message)s")
            logging.getLogger("tinyinfer").warning("%s can be used by anyone who reaches it: see --api-key", address)
        if args.verbose:
            _show_requests()

        def load() -> LLM:
            llm = load_model(args)
            for _ in llm.stream([0], max_tokens=2, ignore_eos=True):  # compiled now, not while somebody waits
                pass
            if not args.quiet:
                note(f"{service.name} is ready: {address}")
            return llm

        app = create_app(service, Settings(loopback=loopback, **settings))
        Server(app, load, args.drain).serve_on(bound)
    return 0


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

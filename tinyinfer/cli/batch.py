"""`tinyinfer batch`: a file of requests to a file of answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ..errors import BadRequest
from .options import Parser, add_loading, integer, limit_threads, load_model, model_name
from .output import note, progress_bars

EPILOG = """\
Each line of IN is a request in OpenAI's batch form,

  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

and becomes a line of OUT, in the order in which answers are ready. A line that can't be answered has a status of 400 or
so and says why. Each answer is written as soon as it is whole: whatever ends the job, the same command goes on where it
stopped, and does nothing twice. A request without a seed gets one that goes by its line.

Without MODEL it is the one that the first request names. With --ray the work is shared by the machines of a Ray
cluster, one engine on each; all need tinyinfer, the model and Ray, and IN is read on this one.

  tinyinfer batch smollm2-135m-instruct requests.jsonl answers.jsonl
"""


def batch_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `batch`."""
    add = parser.add_argument
    add("paths", nargs="+", metavar="[MODEL] IN OUT", help="a model, the file of requests, and that of the answers")
    add("-m", "--model", metavar="MODEL", help="the model, as a flag")
    add("-a", "--alias", metavar="NAME", help="the name that requests give (default: MODEL, or its last part)")
    slots_help = "requests answered at once (default: 8)"
    add("-np", "--slots", "--parallel", type=integer, default=8, metavar="N", help=slots_help)
    cache_help = "what keys and values may take (default: 1 GiB, or one whole context if that is more)"
    add("--kv-cache-bytes", type=integer, metavar="N", help=cache_help)
    add("--ray", metavar="ADDRESS", help='a Ray cluster, as host:6379, or "auto" for the one that runs here')
    add_loading(parser, "also say how the engine's cache did")
    parser.epilog = EPILOG
    return batch


def batch(args: argparse.Namespace) -> int:
    """Answer what is not answered yet, and say what became of all."""
    from ..batch import Answers, count_requests, read_requests, run_batch

    source, out = _settle(args)
    total = count_requests(source)
    args.model = args.model or _named_model(source)
    name = args.alias or model_name(args.model)
    with Answers(out) as answers:
        counts = _on_ray(args, source, answers, name) if args.ray else _here(args, source, answers, name)

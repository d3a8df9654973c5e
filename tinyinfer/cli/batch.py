"""`tinyinfer batch`: a file of requests to a file of answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadRequest
from .options import Parser, add_loading, integer, limit_threads, load_model, loading, model_name
from .output import note, progress_bars

if TYPE_CHECKING:
    from ..batch import Answers, Counts

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
    source, out = _settle(args)
    limit_threads(args)
    from ..batch.requests import count_requests

    total = count_requests(source)
    args.model = args.model or _named_model(source)
    args.alias = args.alias or model_name(args.model)
    from ..batch.answers import Answers

    with Answers(out) as answers:
        counts = (_on_ray if args.ray else _here)(args, source, answers)
        done = _shown(counts, total, args.quiet)
    if not args.quiet:
        before = f", {done.before:,} were there before" if done.before else ""
        note(f"{done.answered:,} answered, {done.refused:,} refused{before}")
    print(out)
    return 0


def _settle(args: argparse.Namespace) -> tuple[Path, Path]:
    """IN and OUT; what stands before them is the model."""
    paths = list(args.paths)
    if len(paths) == 3:
        if args.model is not None:
            raise BadRequest(f"two models were given, {paths[0]!r} and {args.model!r}", "model")
        args.model = paths.pop(0)
    if len(paths) != 2:
        raise BadRequest(f"expected [MODEL] IN OUT, found {' '.join(args.paths)}")
    source, out = map(Path, paths)
    if out.exists() and out.samefile(source):
        raise BadRequest(f"{out}: the answers can't be written into the file of requests")
    return source, out


def _named_model(source: Path) -> str:
    """What the first request that can be read names."""
    from ..batch.requests import read_requests

    for request in read_requests(source):
        name = request.body.get("model")
        if request.error is None and isinstance(name, str) and name:
            return name
        if request.error is None:
            break
    raise BadRequest(f"{source}: no model was given, and the first request names none", "model")


def _here(args: argparse.Namespace, source: Path, answers: Answers) -> Iterator[Counts]:
    llm = load_model(args)
    from ..batch.job import run_batch
    from ..batch.requests import read_requests
    from ..engine import Engine

    engine = Engine(llm, slots=args.slots, kv_cache_bytes=args.kv_cache_bytes)
    yield from run_batch(read_requests(source), answers, engine, args.alias)
    if args.verbose:
        load = engine.load
        note(
            f"{load.prompt_tokens:,} prompt tokens, {load.cached_tokens:,} of them cached; {load.new_tokens:,} new ones"
        )


def _on_ray(args: argparse.Namespace, source: Path, answers: Answers) -> Iterator[Counts]:
    from ..batch.on_ray import Recipe, run_on_ray

    model = Path(args.model)
    recipe = Recipe(
        str(model.resolve()) if model.exists() else args.model, args.alias, loading(args),
        {"slots": args.slots, "kv_cache_bytes": args.kv_cache_bytes},
    )  # fmt: skip
    return run_on_ray(source, answers, recipe, args.ray)


def _shown(counts: Iterator[Counts], total: int, quiet: bool) -> Counts:
    """The last counts, when all are done; nothing is drawn before the model is there."""
    found, shown = next(counts), 0
    with progress_bars(quiet)("requests", total, "") as bar:
        for found in counts:
            bar.update(found.done - shown)
            shown = found.done
    return found

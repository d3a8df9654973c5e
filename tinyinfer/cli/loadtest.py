"""`tinyinfer loadtest`: how a server answers when many ask."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .options import Parser, integer, number
from .output import progress_bars, show_json
from .tables import plain_table

if TYPE_CHECKING:
    from ..lab.load import Report

KEY = "TINYINFER_API_KEY"

EPILOG = f"""\
Chats are sent to any server that speaks OpenAI's /v1/chat/completions, streamed, whether or not those before them have
an answer: --rate a second on average, by chance (a Poisson process). Lengths are log-normal about their medians.
Times run from when a request was to be sent. TTFT is the time to the first text; TPOT what each further token took, the
mean of a request's; the percentiles are over requests. A key is read from {KEY}.

  tinyinfer loadtest http://127.0.0.1:8080 --rate 2 --requests 100 --plot load.png
"""


def loadtest_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `loadtest`."""
    add = parser.add_argument
    add("url", metavar="URL", help="where the server is: http://127.0.0.1:8080")
    add("--rate", type=number, default=1.0, metavar="R", help="requests a second on average (default: %(default)s)")
    add("--requests", type=integer, default=60, metavar="N", help="how many in all (default: %(default)s)")
    add("--seed", type=integer, default=0, metavar="N", help="of arrivals, lengths and words (default: %(default)s)")
    add("--prompt-words", type=integer, default=60, metavar="N", help="median of prompts (default: %(default)s)")
    add("--answer-tokens", type=integer, default=40, metavar="N", help="median of max_tokens (default: %(default)s)")
    add("--shared-words", type=integer, default=0, metavar="N", help="words of a system message that all have")
    add("--extra", default="{}", metavar="JSON", help="fields of every request: '{\"ignore_eos\": true}'")
    add("--model", metavar="NAME", help="the model to ask for (default: the server's first)")
    add("--timeout", type=number, default=300.0, metavar="S", help="seconds for a request (default: %(default)s)")
    add("--json", action="store_true", help="write a JSON object, with every request")
    add("--plot", type=Path, metavar="FILE", help="draw it: .png, .svg or .pdf; needs matplotlib")
    add("-q", "--quiet", action="store_true", help="no progress")
    parser.epilog = EPILOG
    return loadtest


def loadtest(args: argparse.Namespace) -> int:
    """Send the requests, and print what became of them."""
    from ..lab.http_client import target_of
    from ..lab.load import Mix, first_model, plan, report, run
    from ..lab.load_plot import check_plot, draw

    for name in ("prompt_words", "answer_tokens", "shared_words"):
        if getattr(args, name) < (name != "shared_words"):
            raise BadRequest(f"--{name.replace('_', '-')} is too small: {getattr(args, name)}", name)
    if not 0 < args.timeout < float("inf"):
        raise BadRequest(f"timeout should be a number of seconds above 0, found {args.timeout}", "timeout")
    if args.plot:
        check_plot(args.plot)
    target, headers = target_of(args.url), _key()
    mix = Mix(
        prompt_words=args.prompt_words, answer_tokens=args.answer_tokens, shared_words=args.shared_words,
        extra=_extra(args.extra),
    )  # fmt: skip
    model = args.model or asyncio.run(first_model(target, headers))
    arrivals = plan(mix, args.rate, args.requests, args.seed, model)
    with progress_bars(args.quiet)("requests", len(arrivals), "") as bar:
        found = report(asyncio.run(run(target, arrivals, args.timeout, headers, bar.update)))
    if args.plot:
        draw(found, args.plot, f"{model}: {len(arrivals)} requests, {args.rate:g} a second")
    if args.json:
        show_json({"model": model, "rate": args.rate, "seed": args.seed, "mix": asdict(mix)} | record(found))
    else:
        print(text(found))
    return 0


def text(report: Report) -> str:
    """The report for people."""
    names = {"TTFT": report.ttft, "TPOT": report.tpot, "whole answer": report.latency}
    rows = [(name, *(f"{1000 * value:,.0f}" for value in values)) for name, values in names.items() if values]
    good, seconds = len(report.answered), report.seconds
    lines = [plain_table(("milliseconds", "p50", "p95", "p99", "longest"), rows), ""] if rows else []
    lines.append(f"answered    {good:,} of {len(report.sent):,} in {seconds:.1f} s ({good / seconds:.2f} a second)")
    tokens = report.completion_tokens
    if tokens:
        cached = f", {report.cached_tokens:,} of them cached" if report.cached_tokens else ""
        lines.append(f"tokens      {tokens:,} ({tokens / seconds:.1f} a second) after {report.prompt_tokens:,}{cached}")
    lines += [f"error       {count:,} times: {error}" for error, count in report.errors.items()]
    return "\n".join(lines)


def record(report: Report) -> dict[str, Any]:
    """The report for scripts; times in seconds."""
    names = ("p50", "p95", "p99", "longest")
    spans = {name: getattr(report, name) for name in ("ttft", "tpot", "latency")}
    each = [asdict(one) | {"ttft": one.ttft, "tpot": one.tpot} for one in report.sent]
    for one in each:  # what was said is no measurement
        del one["text"], one["times"]
    return {
        **{name: dict(zip(names, values, strict=True)) if values else None for name, values in spans.items()},
        "seconds": report.seconds, "answered": len(report.answered), "errors": report.errors,
        "prompt_tokens": report.prompt_tokens, "cached_tokens": report.cached_tokens,
        "completion_tokens": report.completion_tokens, "requests": each,
    }  # fmt: skip


def _key() -> dict[str, str]:
    key = os.environ.get(KEY)
    if key and not all(0x20 < ord(letter) < 0x7F for letter in key):
        raise BadRequest(f"{KEY} holds what can't stand in a header")
    return {"authorization": f"Bearer {key}"} if key else {}


def _extra(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"--extra is not JSON: {error}", "extra") from None
    if not isinstance(found, dict) or found.keys() & {"messages", "stream", "stream_options"}:
        raise BadRequest("--extra should be a JSON object, without messages and stream", "extra")
    return found

"""`tinyinfer perplexity`: how surprised a model is by a text, and how far it is from another on it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ..errors import BadRequest
from .options import Parser, add_loading, add_model, integer, load_model, settle_model, text_argument
from .output import note, show_json

WINDOW = 512

EPILOG = f"""\
The text is read in windows of --context tokens (default {WINDOW}), each --stride tokens further (default: half a
window); a token is scored once, with what its window holds before it. Perplexity is exp of the mean surprise.

With --against, MODEL2 is the reference: it is loaded as it is stored and computed exactly (--activations f32,
--kv-dtype float32), and the mean Kullback-Leibler divergence from its distributions to MODEL's is given as well.

  tinyinfer perplexity smollm2-135m-instruct --text letter.txt
  tinyinfer perplexity smollm2-135m-instruct --quantize int4 --against smollm2-135m-instruct --text letter.txt
"""


def perplexity_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `perplexity`."""
    add_model(parser)
    parser.add_argument("--text", "-f", "--file", dest="text", metavar="FILE", help="the text; default: standard input")
    parser.add_argument("--stride", type=integer, metavar="N", help="tokens from one window to the next")
    parser.add_argument("--against", metavar="MODEL2", help="a model to measure the divergence from")
    parser.add_argument("--json", action="store_true", help="write a JSON object")
    add_loading(parser, "show how far it is")
    parser.epilog = EPILOG
    return perplexity


def perplexity(args: argparse.Namespace) -> int:
    """Print the perplexity."""
    settle_model(args)
    text = text_argument(None if args.text else "-", args.text, "the text")
    if not text:
        raise BadRequest("the text is empty", "text")
    llm = load_model(args)
    from ..lab.perplexity import measure
    from ..llm import load

    against = None
    if args.against is not None:
        against = load(args.against, activations="f32", kv_dtype="float32", threads=args.threads)
    window = args.context or min(WINDOW, llm.context)
    stride = max(window // 2, 1) if args.stride is None else args.stride
    step = (lambda done, total: note(f"window {done} of {total}")) if args.verbose else (lambda done, total: None)
    found, reference, divergence = measure(llm, text, window, stride, against, step)
    record: dict[str, Any] = {"window": window, "stride": stride, **_record(found)}
    if reference is not None:
        record |= {"against": _record(reference), "divergence": asdict(divergence)}
    if args.json:
        show_json(record)
    else:
        print("\n".join(_lines(record)))
    return 0


def _record(found: Any) -> dict[str, Any]:
    return {"perplexity": found.perplexity, "perplexity_error": found.perplexity_error, **asdict(found)}


def _lines(record: dict[str, Any]) -> list[str]:
    bits = "" if record["bits_per_byte"] is None else f", {record['bits_per_byte']:.4f} bits a byte"
    where = f"{record['tokens']:,} tokens in {record['windows']:,} windows of {record['window']:,}"
    lines = [
        f"perplexity     {_with_error(record['perplexity'], record['perplexity_error'])}",
        f"surprise       {record['mean_surprise']:.5f} nats a token{bits}",
        f"scored         {where}, stride {record['stride']:,}",
    ]
    if "against" in record:
        other, apart = record["against"], record["divergence"]
        spread = f"median {apart['median']:.6f}, 99 % within {apart['percentile_99']:.5f}"
        lines += [
            f"reference      perplexity {_with_error(other['perplexity'], other['perplexity_error'])}",
            f"divergence     {_with_error(apart['mean'], apart['standard_error'], 6)} nats a token, {spread}",
            f"same likeliest {100 * apart['same_likeliest']:.2f} %",
        ]
    return lines


def _with_error(value: float, error: float | None, digits: int = 4) -> str:
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")

"""`tinyinfer bench`: how fast a model is here, and what share of the machine's limits that is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .bench_speculation import bench_speculation, check_flags
from .options import Parser, add_loading, add_model, integer, load_model, settle_model
from .output import note, progress_bars, show_json, size
from .speculation import add_speculation, speculation_wish
from .tables import markdown_table, plain_table

if TYPE_CHECKING:
    from ..lab.bench import Measurement, Report
    from ..lab.timing import Samples

HEADINGS = ("", "tokens/s", "lowest to highest", "MB a token", "GB/s", "of memory", "of arithmetic")

LISTS = {"prefill": "16,128,512", "decode": "8,512,2048", "batch": "1,4,16"}

EPILOG = """\
  prefill N     a prompt of N tokens, from an empty cache
  decode at N   16 tokens one by one, the first with N held before it
  batch of N    the same for N sequences at once, all of them counted, with 8 tokens held

Passes of the model alone are timed, without text or sampling. Each value is the median of --repeats samples, taken in
rounds after one to warm up. MB a token is what must be read: the weights once a pass, and keys and values. What part
that is of the machine's limits is said beside it; both are measured in the same rounds, with the same threads: memory
by a sum over an array of up to 1 GiB, arithmetic by the multiply-adds of the kernels on what lies in the nearest cache.
A model that fits into the last cache may be read faster than memory. Attention's multiply-adds are not counted.

With --speculate or --model-draft something else is measured: answers to prompts, those of --file or three of our own,
without speculation and with it in turns, and the ratio. The tokens are the same, or an error says so.

What leaves a list empty ("") leaves it out. Anything else that runs meanwhile lowers all of it; see the load.

  tinyinfer bench smollm2-135m-instruct
  tinyinfer bench model.gguf --decode 8,512 --prefill "" --batch "" --md
  tinyinfer bench qwen2.5-coder-0.5b-instruct --quantize int4 --speculate ngram
"""


def bench_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `bench`."""
    add_model(parser)
    add = parser.add_argument
    add("--prefill", metavar="LIST", help=f"lengths of prompts (default: {LISTS['prefill']})")
    add("--decode", metavar="LIST", help=f"tokens held before decoding (default: {LISTS['decode']})")
    add("--batch", metavar="LIST", help=f"sequences decoded at once (default: {LISTS['batch']})")
    add("-r", "--repeats", type=integer, default=5, metavar="N", help="samples of each (default: %(default)s)")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="write a JSON object, with every sample")
    shape.add_argument("--md", action="store_true", help="write Markdown")
    add_loading(parser, "also show every sample")
    add_speculation(parser)
    add("-f", "--file", action="append", metavar="FILE", help="with speculation: a prompt; may be given several times")
    add("-n", "--predict", type=integer, metavar="N", help="with speculation: tokens of an answer (default: 200)")
    parser.epilog = EPILOG
    return bench


def bench(args: argparse.Namespace) -> int:
    """Measure, and print the table."""
    settle_model(args)
    args.wish = speculation_wish(args)
    check_flags(args, args.wish is not None)
    given = {name: usual if getattr(args, name) is None else getattr(args, name) for name, usual in LISTS.items()}
    lists = {name: numbers(text, f"--{name}") for name, text in given.items()}
    llm = load_model(args)
    if args.wish is not None:
        return bench_speculation(llm, args)
    from ..lab.bench import Plan, bench

    report = bench(llm, Plan(**lists, repeats=args.repeats), progress_bars(args.quiet))
    if args.verbose:
        note(*samples_lines(report))
    if args.json:
        show_json(record(report))
    else:
        print(markdown(report) if args.md else text(report))
    return 0


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """`16,128,512` as numbers; an empty text is none. Raises `BadRequest` for anything else."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise BadRequest(f"{flag} should be whole numbers with commas between, as 16,128,512, found {text!r}", flag)
    return tuple(int(part) for part in parts)


def text(report: Report) -> str:
    """The report for people."""
    facts = "\n".join(f"{name:12}{value}" for name, value in facts_of(report))
    return "\n\n".join(filter(None, [facts, plain_table(HEADINGS, rows(report)), "\n".join(skipped_lines(report))]))


def markdown(report: Report) -> str:
    """The report in Markdown."""
    facts = "\n".join(f"- {name}: {value}" for name, value in facts_of(report))
    return "\n\n".join([facts, markdown_table(HEADINGS, rows(report)), *skipped_lines(report)])


def skipped_lines(report: Report) -> list[str]:
    """What was asked for and not measured, a sentence each."""
    return [f"not measured: {reason}" for reason in report.skipped]


def facts_of(report: Report) -> list[tuple[str, str]]:
    """What was measured and by what means: (name, value)."""
    forms = ", ".join(f"{form} {size(count)}" for form, count in report.weights.items())
    threads = f"{report.threads} {'thread' if report.threads == 1 else 'threads'}" if report.threads else "NumPy's own"
    facts = [
        ("model", report.model),
        ("weights", f"{size(sum(report.weights.values()))} read a pass: {forms}"),
        ("threads", f"{threads}; kernels: {report.backend}; keys and values: {report.kv_dtype}"),
        ("machine", report.processor),
        ("load", " before, ".join("unknown" if load is None else f"{load:.2f}" for load in report.load) + " after"),
    ]
    limits = report.limits
    if limits is None:
        return [*facts, ("memory", "not measured: that takes compiled kernels")]
    read, multiplied = limits.bytes_per_second, limits.multiply_adds_per_second
    return [
        *facts,
        ("memory", f"{_giga(read)} GB/s: a sum over {size(limits.array_bytes)}"),
        ("arithmetic", f"{_giga(multiplied)} G multiply-adds a second: {limits.kind}"),
    ]


def _giga(samples: Samples) -> str:
    return f"{samples.median / 1e9:.1f} ({samples.low / 1e9:.1f} to {samples.high / 1e9:.1f})"


def rows(report: Report) -> list[list[str]]:
    """The table: one row a measurement, under HEADINGS."""
    return [_row(report, measurement) for measurement in report.measurements]


def _row(report: Report, measurement: Measurement) -> list[str]:
    rates = measurement.tokens_per_second
    return [
        measurement.name,
        f"{rates.median:,.1f}",
        f"{rates.low:,.1f} to {rates.high:,.1f}",
        f"{measurement.bytes_per_token / 1e6:,.2f}",
        f"{measurement.bytes_per_second / 1e9:.2f}",
        _percent(report.memory_share(measurement)),
        _percent(report.arithmetic_share(measurement)),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def samples_lines(report: Report) -> list[str]:
    """Every sample, for people."""
    found = [(one.name, one.tokens_per_second, 1.0) for one in report.measurements]
    if report.limits:
        found.append(("memory, GB/s", report.limits.bytes_per_second, 1e9))
        found.append(("G multiply-adds/s", report.limits.multiply_adds_per_second, 1e9))
    return [f"{name:20}" + " ".join(f"{value / unit:.4g}" for value in rates.values) for name, rates, unit in found]


def record(report: Report) -> dict[str, Any]:
    """The report as --json gives it."""
    limits = report.limits
    return {
        "model": report.model,
        "weight_bytes": report.weights,
        "threads": report.threads,
        "backend": report.backend,
        "kv_dtype": report.kv_dtype,
        "processor": report.processor,
        "load_average": {"before": report.load[0], "after": report.load[1]},
        "repeats": report.repeats,
        "memory_bytes_per_second": limits and _samples(limits.bytes_per_second),
        "memory_array_bytes": limits and limits.array_bytes,
        "multiply_adds_per_second": limits and _samples(limits.multiply_adds_per_second),
        "multiply_add_kind": limits and limits.kind,
        "measurements": [
            {
                "name": one.name,
                "phase": one.phase,
                "sequences": one.sequences,
                "tokens": one.tokens,
                "depth": one.depth,
                "tokens_per_second": _samples(one.tokens_per_second),
                "bytes_per_token": one.bytes_per_token,
                "bytes_per_second": one.bytes_per_second,
                "memory_share": report.memory_share(one),
                "multiply_adds_per_token": one.multiply_adds_per_token,
                "multiply_adds_per_second": one.multiply_adds_per_second,
                "arithmetic_share": report.arithmetic_share(one),
            }
            for one in report.measurements
        ],
        "skipped": list(report.skipped),
    }


def _samples(samples: Samples) -> dict[str, Any]:
    return {"median": samples.median, "low": samples.low, "high": samples.high, "samples": list(samples.values)}

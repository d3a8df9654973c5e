"""The part of `tinyinfer bench` that compares answers with and without speculation."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .options import text_argument
from .output import note, progress_bars, show_json, speculation_record
from .tables import markdown_table, plain_table

if TYPE_CHECKING:
    from ..lab.speculation import SpeculationReport
    from ..llm import LLM

HEADINGS = ("", "tokens", "plain tokens/s", "drafted tokens/s", "ratio", "lowest to highest", "right", "tokens a pass")


def bench_speculation(llm: LLM, args: argparse.Namespace) -> int:
    """Measure, and print the table."""
    from ..lab.speculation import compare

    tokens = 200 if args.predict is None else args.predict
    report = compare(llm, llm.drafter, _prompts(llm, args), tokens, args.repeats, progress_bars(args.quiet))
    if args.json:
        show_json(record(report))
        return 0
    table = markdown_table if args.md else plain_table
    load = " before, ".join("unknown" if load is None else f"{load:.2f}" for load in report.load) + " after"
    print(table(HEADINGS, rows(report)))
    note("", f"model       {report.model}", f"load        {load}")
    return 0


def _prompts(llm: LLM, args: argparse.Namespace) -> list[tuple[str, list[int]]]:
    """The files given, as they stand; else a few prompts of ours."""
    from ..lab.speculation import EDIT, PROMPTS

    if args.file:
        return [(file, llm.prompt_ids(text_argument(None, file, "the prompt"))) for file in args.file]
    found = [(name, llm.prompt_ids(text)) for name, text in PROMPTS.items() if text is not EDIT]
    if llm.checkpoint.chat_template is not None:
        found.insert(1, ("code to change", llm.chat_ids([{"role": "user", "content": EDIT}])))
    return found


def check_flags(args: argparse.Namespace, speculates: bool) -> None:
    """Raise `BadRequest` for flags of the other kind of measurement."""
    for name, flag in (("file", "--file"), ("predict", "--predict")):
        if getattr(args, name) is not None and not speculates:
            raise BadRequest(f"{flag} goes with --speculate or --model-draft, as what is to be compared", name)
    for name in ("prefill", "decode", "batch"):
        if getattr(args, name) is not None and speculates:
            raise BadRequest(f"--{name} does not go with --speculate or --model-draft, which compare answers", name)


def rows(report: SpeculationReport) -> list[list[str]]:
    """The table: a row for each prompt."""
    return [
        [
            one.name,
            f"{one.tokens:,}",
            f"{one.plain.median:.1f}",
            f"{one.drafted.median:.1f}",
            f"{one.ratios.median:.2f}",
            f"{one.ratios.low:.2f} to {one.ratios.high:.2f}",
            "-" if one.speculated.alpha is None else f"{100 * one.speculated.alpha:.0f} %",
            f"{one.speculated.tokens_per_step:.2f}",
        ]
        for one in report.comparisons
    ]


def record(report: SpeculationReport) -> dict[str, Any]:
    """The report as --json gives it."""
    return {
        "model": report.model,
        "load_average": {"before": report.load[0], "after": report.load[1]},
        "comparisons": [
            {
                "name": one.name,
                "tokens": one.tokens,
                "plain_tokens_per_second": list(one.plain.values),
                "drafted_tokens_per_second": list(one.drafted.values),
                "ratio": one.ratios.median,
                "ratios": list(one.ratios.values),
                "speculation": speculation_record(one.speculated),
            }
            for one in report.comparisons
        ],
    }

"""Flags that say what drafts the text."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import BadRequest
from .options import Parser, integer


def add_speculation(parser: Parser) -> None:
    """What drafts, and how far."""
    add = parser.add_argument_group("speculation").add_argument
    speculate_help = (
        "draft tokens and verify several at once, for the same answer sooner: ngram looks them up in what was said; "
        "int4, nf4, ... drafts with the model itself, rounded to that; anything else is a draft model"
    )
    add("--speculate", metavar="WHAT", help=speculate_help)
    add("-md", "--model-draft", "--draft-model", dest="model_draft", metavar="MODEL", help="the same, for a model")
    names = "--draft-max", "--draft", "--draft-n", "--num-draft-tokens"
    most_help = "draft at most N tokens at once (default: 10 for ngram, 5 for models)"
    add(*names, dest="draft_max", type=integer, metavar="N", help=most_help)
    add("--draft-branches", type=integer, metavar="N", help="draft trees of N branches (default: 1, no tree)")


def speculation_wish(args: argparse.Namespace) -> Any:
    """What the flags ask for, as `load` takes it; None where they say nothing."""
    if args.speculate is not None and args.model_draft is not None:
        raise BadRequest("--speculate and --model-draft were both given: one of them drafts", "speculate")
    what = args.speculate if args.model_draft is None else args.model_draft
    settings = {"num_speculative_tokens": args.draft_max, "branches": args.draft_branches}
    settings = {name: value for name, value in settings.items() if value is not None}
    if what is None:
        if settings:
            flag = "--draft-max" if args.draft_max is not None else "--draft-branches"
            raise BadRequest(f"{flag} says nothing by itself: give --speculate or --model-draft too", "speculate")
        return None
    if what == "off" or not what:
        raise BadRequest(f"--speculate should be ngram, a form like int4 or a model, found {what!r}", "speculate")
    for name, whose in (("num_beams", "a beam search"), ("context_shift", "a text that outgrows its context")):
        if getattr(args, name, None):
            flag = f"--{name.replace('_', '-')}"
            raise BadRequest(f"--speculate and {flag} don't go together: {whose} is not drafted", "speculate")
    named = args.speculate == "ngram"
    return {"method": "ngram"} | settings if named else {"model": what} | settings

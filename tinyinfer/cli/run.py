"""`tinyinfer run`: one prompt, one streamed answer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import BadRequest
from .options import (
    Parser,
    add_loading,
    add_model,
    checked_text,
    integer,
    load_model,
    number,
    settle_model,
    text_argument,
)
from .output import beam_record, completion_record, note, sampling_line, show, show_json, timing_lines
from .sampling import add_logprobs, add_sampling, sampling_params

EARLY = {"true": True, "false": False, "never": "never"}  # what --early-stopping says

EPILOG = """\
Where the model has a chat template, PROMPT is what a person says to it, and the model answers; with --raw, or without
a template, the model continues PROMPT as it stands.

  tinyinfer run smollm2-135m-instruct "Why is the sky blue?"
  tinyinfer run smollm2-135m-instruct --raw -n 20 "Once upon a time"
  cat letter.txt | tinyinfer run smollm2-135m-instruct --system "Summarise this." --json
"""


def run_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `run`."""
    add_model(parser, "prompt", "the prompt; - or nothing reads standard input")
    parser.add_argument("-p", "--prompt", dest="prompt_flag", metavar="PROMPT", help="the same, as a flag")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    parser.add_argument("--system", metavar="TEXT", help="a system message to stand before the prompt")
    parser.add_argument("--raw", "--no-chat", action="store_true", help="don't apply the chat template")
    parser.add_argument("--json", action="store_true", help="write one JSON object when all is done, and nothing else")
    add_loading(parser, "also show the prompt as the model reads it, and the sampling values in use")
    add_sampling(parser)
    add_logprobs(parser)
    samples_help = "give so many answers, with the seed, the seed + 1, and so on; the prompt is run once"
    parser.add_argument("--samples", type=integer, metavar="N", help=samples_help)
    add_beams(parser)
    parser.epilog = EPILOG
    return run


def add_beams(parser: Parser) -> None:
    """Beam search."""
    group = parser.add_argument_group(
        "beam search", "the likeliest of many texts, without chance; shown when all is done, since none is sure before"
    )
    add = group.add_argument
    add("--num-beams", type=integer, metavar="N", help="follow N texts side by side")
    penalty_help = "score a text by its sum of log-probabilities / length^X (default: 1; 0: the likeliest text)"
    add("--length-penalty", type=number, metavar="X", help=penalty_help)
    early_help = "stop at N texts that ended: true; when the rest look no better: false (default), or never, stricter"
    add("--early-stopping", choices=tuple(EARLY), help=early_help)
    add("--num-return-sequences", type=integer, metavar="N", help="give the N best (default: 1)")


def run(args: argparse.Namespace) -> int:
    """Stream an answer to standard output, then its timings to standard error."""
    settle_model(args)
    if args.prompt is not None and args.prompt_flag is not None:
        raise BadRequest("the prompt was given twice, as an argument and by --prompt", "prompt")
    params = sampling_params(args)
    prompt = text_argument(args.prompt_flag if args.prompt is None else args.prompt, args.file, "the prompt")
    if not args.json and (params.logprobs is not None or params.prompt_logprobs is not None):
        raise BadRequest("log-probabilities are written with --json only", "logprobs")
    search = _search(args)
    llm = load_model(args)
    ids = _prompt_ids(llm, prompt, args)
    if search or args.samples is not None:
        completions = llm.beams(ids, params=params, **search) if search else llm.samples(ids, args.samples, params)
    else:
        completions = [_read(llm.stream(ids, params), (lambda text: None) if args.json else show)]
    several = args.samples is not None or args.num_return_sequences is not None
    if args.json:
        records = [(beam_record if search else completion_record)(completion, llm) for completion in completions]
        show_json(records if several else records[0])
        return 0
    for i, completion in enumerate(completions):
        if several:
            which = f"score {completion.score:.4f}" if search else f"seed {completion.params.seed}"
            note(f"{'beam' if search else 'sample'} {i + 1} of {len(completions)}, {which}")
        if several or search:
            show(completion.text)
        show("" if completion.text.endswith("\n") else "\n")
        if args.verbose:
            note("", f"prompt      {llm.tokenizer.decode(completion.prompt_ids)!r}", sampling_line(completion.params))
        if not args.quiet:
            note("", *timing_lines(completion))
    return 0


def _search(args: argparse.Namespace) -> dict[str, Any]:
    """What was asked of a beam search; nothing where none is wanted. Raises `BadRequest` for flags without one."""
    names = "num_beams", "length_penalty", "early_stopping", "num_return_sequences"
    asked = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if asked and args.num_beams is None:
        first = next(iter(asked))
        raise BadRequest(f"--{first.replace('_', '-')} is about a beam search: give --num-beams as well", first)
    if asked and args.samples is not None:
        raise BadRequest("--samples draws and --num-beams does not: give one of the two", "samples")
    if "early_stopping" in asked:
        asked["early_stopping"] = EARLY[asked["early_stopping"]]
    return asked


def _prompt_ids(llm: Any, prompt: str, args: argparse.Namespace) -> list[int]:
    has_template = llm.checkpoint.chat_template is not None
    if args.raw or not has_template:
        if args.system is not None:
            reason = "--raw switches it off" if has_template else "this model has none"
            raise BadRequest(f"--system needs a chat template, and {reason}", "system")
        return llm.prompt_ids(prompt)
    if not prompt:
        raise BadRequest("the prompt is empty; give some text (with --raw, a model can begin from nothing)", "prompt")
    messages = [{"role": "user", "content": prompt}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": checked_text(args.system, "the system message")})
    return llm.chat_ids(messages)


def _read(pieces: Iterator[Any], show: Callable[[str], None]) -> Any:
    """Show every piece's text; gives the completion that the last piece holds."""
    for piece in pieces:
        show(piece.text)
    return piece.completion

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
    add_sampling,
    checked_text,
    load_model,
    sampling_params,
    settle_model,
    text_argument,
)
from .output import completion_record, note, sampling_line, show, show_json, timing_lines

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
    parser.epilog = EPILOG
    return run


def run(args: argparse.Namespace) -> int:
    """Stream an answer to standard output, then its timings to standard error."""
    settle_model(args)
    if args.prompt is not None and args.prompt_flag is not None:
        raise BadRequest("the prompt was given twice, as an argument and by --prompt", "prompt")
    params = sampling_params(args)
    prompt = text_argument(args.prompt_flag if args.prompt is None else args.prompt, args.file, "the prompt")
    llm = load_model(args)
    pieces = _pieces(llm, prompt, args, params)
    completion = _read(pieces, (lambda text: None) if args.json else show)
    if args.json:
        show_json(completion_record(completion))
    elif not completion.text.endswith("\n"):
        show("\n")
    if args.verbose:
        note("", f"prompt      {llm.tokenizer.decode(completion.prompt_ids)!r}", sampling_line(completion.params))
    if not args.quiet and not args.json:
        note("", *timing_lines(completion))
    return 0


def _pieces(llm: Any, prompt: str, args: argparse.Namespace, params: Any) -> Iterator[Any]:
    has_template = llm.checkpoint.chat_template is not None
    if args.raw or not has_template:
        if args.system is not None:
            reason = "--raw switches it off" if has_template else "this model has none"
            raise BadRequest(f"--system needs a chat template, and {reason}", "system")
        return llm.stream(prompt, params)
    if not prompt:
        raise BadRequest("the prompt is empty; give some text (with --raw, a model can begin from nothing)", "prompt")
    messages = [{"role": "user", "content": prompt}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": checked_text(args.system, "the system message")})
    return llm.chat_stream(messages, params)


def _read(pieces: Iterator[Any], show: Callable[[str], None]) -> Any:
    """Show every piece's text; gives the completion that the last piece holds."""
    for piece in pieces:
        show(piece.text)
    return piece.completion

"""`tinyinfer run`: one prompt, one streamed answer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .options import (
    Parser,
    add_loading,
    add_model,
    add_showing,
    checked_text,
    decoded,
    integer,
    load_model,
    settle_model,
    text_argument,
)
from .output import Screen, call_records, completion_record, note, sampling_line, show, show_json, timing_lines
from .sampling import add_logprobs, add_sampling, sampling_params

if TYPE_CHECKING:
    from ..text.chat import ChatPrompt

EPILOG = """\
Where the model has a chat template, PROMPT is what a person says to it, and the model answers; with --raw, or without
a template, the model continues PROMPT as it stands.

  tinyinfer run smollm2-135m-instruct "Why is the sky blue?"
  tinyinfer run smollm2-135m-instruct --raw -n 20 "Once upon a time"
  cat letter.txt | tinyinfer run smollm2-135m-instruct --system "Summarise this." --json
  tinyinfer run qwen2.5-coder-0.5b-instruct --tools tools.json "What is the weather in Paris?"

FILE for --tools holds a JSON list of descriptions as OpenAI's API has them. The calls that the model makes come after
its text, as a JSON list too; nothing is called.
"""


def run_command(parser: Parser) -> Callable[[argparse.Namespace], int]:
    """The flags of `run`."""
    add_model(parser, "prompt", "the prompt; - or nothing reads standard input")
    parser.add_argument("-p", "--prompt", dest="prompt_flag", metavar="PROMPT", help="the same, as a flag")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    parser.add_argument("--system", metavar="TEXT", help="a system message to stand before the prompt")
    parser.add_argument("--raw", "--no-chat", action="store_true", help="don't apply the chat template")
    parser.add_argument("--tools", metavar="FILE", help="a JSON list of tools that the model may ask to be called")
    format_help = "how the model writes calls, where its template does not show it: hermes, llama3, mistral, gemma, ..."
    parser.add_argument("--tool-format", metavar="NAME", help=format_help)
    parser.add_argument("--json", action="store_true", help="write one JSON object when all is done, and nothing else")
    add_loading(parser, "also show the prompt as the model reads it, and the sampling values in use")
    add_showing(parser)
    add_sampling(parser)
    add_logprobs(parser)
    samples_help = "give so many answers, with the seed, the seed + 1, and so on; the prompt is run once"
    parser.add_argument("--samples", type=integer, metavar="N", help=samples_help)
    parser.epilog = EPILOG
    return run


def run(args: argparse.Namespace) -> int:
    """Stream an answer to standard output, then its timings to standard error."""
    settle_model(args)
    if args.prompt is not None and args.prompt_flag is not None:
        raise BadRequest("the prompt was given twice, as an argument and by --prompt", "prompt")
    params = sampling_params(args)
    prompt = text_argument(args.prompt_flag if args.prompt is None else args.prompt, args.file, "the prompt")
    if not args.json and (params.logprobs is not None or params.prompt_logprobs is not None):
        raise BadRequest("log-probabilities are written with --json only", "logprobs")
    tools = _tools(args.tools)
    llm = load_model(args)
    asked = _prompt(llm, prompt, tools, args)
    screen = Screen(reasoning=not args.hide_reasoning and not args.quiet)
    if args.samples is None:
        pieces = llm.stream(asked, params, graphemes=args.graphemes)
        completions = [_read(pieces, (lambda piece: None) if args.json else screen.show)]
    else:
        completions = llm.samples(asked, args.samples, params)
    if args.json:
        records = [completion_record(completion, llm) for completion in completions]
        show_json(records[0] if args.samples is None else records)
        return 0
    for i, completion in enumerate(completions):
        if args.samples is not None:
            note(f"sample {i + 1} of {len(completions)}, seed {completion.params.seed}")
            screen.show(completion)
        screen.end_reasoning()
        if completion.text or not completion.tool_calls:
            show("" if completion.text.endswith("\n") else "\n")
        if completion.tool_calls:
            show_json(call_records(completion))
        if args.verbose:
            note("", f"prompt      {llm.tokenizer.decode(completion.prompt_ids)!r}", sampling_line(completion.params))
        if not args.quiet:
            note("", *timing_lines(completion))
    return 0


def _tools(file: str | None) -> Any:
    """What a file of tools holds, not yet checked. Raises `BadRequest` where it is not JSON."""
    if file is None:
        return None
    try:
        return json.loads(decoded(Path(file).read_bytes(), file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadRequest):
            raise
        raise BadRequest(f"--tools {file}: not JSON: {error}", "tools") from None


def _prompt(llm: Any, prompt: str, tools: Any, args: argparse.Namespace) -> list[int] | ChatPrompt:
    has_template = llm.checkpoint.chat_template is not None
    if args.raw or not has_template:
        for flag in ("system", "tools", "tool_format"):
            if getattr(args, flag) is not None:
                reason = "--raw switches it off" if has_template else "this model has none"
                raise BadRequest(f"--{flag.replace('_', '-')} needs a chat template, and {reason}", flag)
        return llm.prompt_ids(prompt)
    if not prompt:
        raise BadRequest("the prompt is empty; give some text (with --raw, a model can begin from nothing)", "prompt")
    messages = [{"role": "user", "content": prompt}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": checked_text(args.system, "the system message")})
    return llm.chat_prompt(messages, tools, args.tool_format)


def _read(pieces: Iterator[Any], show: Callable[[Any], None]) -> Any:
    """Show every piece; gives the completion that the last one holds."""
    for piece in pieces:
        show(piece)
    return piece.completion

"""`tinyinfer run`: one prompt, one streamed answer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from ..sampling import SamplingParams
from .options import (
    Parser,
    add_loading,
    add_model,
    add_showing,
    checked_text,
    decoded,
    integer,
    load_model,
    number,
    settle_model,
    text_argument,
)
from .output import (
    Screen,
    beam_record,
    call_records,
    completion_record,
    dropped_line,
    note,
    sampling_line,
    show,
    show_json,
    timing_lines,
)
from .prompt_cache import add_prompt_cache, keep_session, open_session
from .sampling import add_logprobs, add_sampling, sampling_params
from .speculation import add_speculation, speculation_wish

if TYPE_CHECKING:
    from ..text.chat import ChatPrompt

EARLY = {"true": True, "false": False, "never": "never"}  # what --early-stopping says

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
    add_prompt_cache(parser)
    add_speculation(parser)
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
    params, args.wish = sampling_params(args), speculation_wish(args)
    prompt = text_argument(args.prompt_flag if args.prompt is None else args.prompt, args.file, "the prompt")
    if not args.json and (params.logprobs is not None or params.prompt_logprobs is not None):
        raise BadRequest("log-probabilities are written with --json only", "logprobs")
    search = _search(args)
    if args.prompt_cache is not None and (search or args.samples is not None):
        other = "--num-beams" if search else "--samples"
        raise BadRequest(f"--prompt-cache keeps one text, and {other} makes several", "prompt_cache")
    tools = _tools(args.tools)
    llm = load_model(args)
    session = open_session(llm, args)
    asked = _prompt(llm, prompt, tools, params, args)
    screen = Screen(reasoning=not args.hide_reasoning and not args.quiet)
    if search or args.samples is not None:
        completions = llm.beams(asked, params=params, **search) if search else llm.samples(asked, args.samples, params)
    else:
        pieces = session.stream(asked, params, graphemes=args.graphemes)
        completions = [_read(pieces, (lambda piece: None) if args.json else screen.show)]
    keep_session(llm, session, args)
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
            screen.show(completion)
        screen.end_reasoning()
        if completion.text or not completion.tool_calls:
            show("" if completion.text.endswith("\n") else "\n")
        if completion.tool_calls:
            show_json(call_records(completion))
        if args.verbose:
            note("", f"prompt      {llm.tokenizer.decode(completion.prompt_ids)!r}", sampling_line(completion.params))
        note(*dropped_line(completion))
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


def _tools(file: str | None) -> Any:
    """What a file of tools holds, not yet checked. Raises `BadRequest` where it is not JSON."""
    if file is None:
        return None
    try:
        tools = json.loads(decoded(Path(file).read_bytes(), file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadRequest):
            raise
        raise BadRequest(f"--tools {file}: not JSON: {error}", "tools") from None
    if tools is None:  # which to `LLM.chat` means that there are none
        raise BadRequest(f"--tools {file}: expected a list of tools, found null", "tools")
    return tools


def _prompt(
    llm: Any, prompt: str, tools: Any, params: SamplingParams, args: argparse.Namespace
) -> list[int] | ChatPrompt:
    has_template = llm.checkpoint.chat_template is not None
    if args.raw or not has_template:
        for flag in ("system", "tools", "tool_format"):
            if getattr(args, flag) is not None:
                reason = "--raw switches it off" if has_template else "this model has none"
                raise BadRequest(f"--{flag.replace('_', '-')} needs a chat template, and {reason}", flag)
        return llm.prompt_ids(prompt, params)
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

"""What commands show: timings and sampling values, JSON, sizes, progress bars."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..progress import Bar, Progress, silent
from ..sampling import SamplingParams
from ..sampling.params import GREEDY_STEPS, STEPS

if TYPE_CHECKING:
    from ..answer import Completion, Piece
    from ..beams import Beam
    from ..llm import LLM
    from ..sampling.logprobs import TokenLogprob
    from ..speculative.speculation import Speculated

TIMINGS = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "prefill_seconds", "decode_seconds",
    "prefill_tokens_per_second", "decode_tokens_per_second", "time_to_first_token", "time_to_first_text",
    "time_per_token_p50", "time_per_token_p95",
)  # fmt: skip


SPECULATED = (
    "steps", "drafts", "tokens", "proposed", "accepted", "tried", "alpha", "tokens_per_step", "speedup", "seconds",
    "plain_seconds",
)  # fmt: skip


def note(*lines: str) -> None:
    """Say something on standard error; nothing where that is closed, as print would then take standard output."""
    if lines and sys.stderr is not None:
        print(*lines, sep="\n", file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Write a piece of an answer on standard output, at once."""
    print(text, end="", flush=True)


class Screen:
    """Shows an answer as it comes: text on standard output; reasoning on standard error, dim on a terminal."""

    def __init__(self, reasoning: bool):
        """`reasoning` says whether it is shown at all."""
        self._reasoning, self._thinking = reasoning and sys.stderr is not None, False

    def show(self, piece: Piece | Completion) -> None:
        """Show what a piece adds, or a whole answer."""
        if piece.reasoning and self._reasoning:
            dim = sys.stderr.isatty() and "NO_COLOR" not in os.environ
            print(f"\x1b[2m{piece.reasoning}\x1b[0m" if dim else piece.reasoning, end="", file=sys.stderr, flush=True)
            self._thinking = True
        if piece.text:
            self.end_reasoning()
            show(piece.text)

    def end_reasoning(self) -> None:
        """Leave a line free between reasoning and what follows it."""
        if self._thinking:
            note("", "")
        self._thinking = False


def show_json(value: Any) -> None:
    """Write one JSON value on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def timing_lines(completion: Completion) -> list[str]:
    """How long the parts of a completion took, for people."""
    timings = completion.timings
    fresh = timings.prompt_tokens - timings.cached_tokens
    cached = f", {timings.cached_tokens:,} more were cached" if timings.cached_tokens else ""
    ended = "cut at the limit" if completion.finish_reason == "length" else "ended by the model"
    prefill = f"{fresh:,} tokens in {timings.prefill_seconds:.2f} s{_rate(timings.prefill_tokens_per_second)}{cached}"
    decode = f"{timings.completion_tokens:,} tokens"
    if timings.decode_tokens_per_second:
        decode += f", after the first in {timings.decode_seconds:.2f} s{_rate(timings.decode_tokens_per_second)}"
    lines = [f"prefill     {prefill}"] if timings.prefill_seconds else []
    lines.append(f"decode      {decode}, {ended}")
    if completion.speculation is not None:
        lines.append(speculation_line(completion.speculation))
    if timings.time_to_first_text is not None:
        lines.append(f"first text  after {timings.time_to_first_text:.2f} s")
    return lines


def dropped_line(completion: Completion) -> list[str]:
    """That the context was full and the text went on without a part of it, where that is so."""
    if not completion.dropped_tokens:
        return []
    total = len(completion.prompt_ids) + len(completion.ids)
    gone = f"{completion.dropped_tokens:,} of {total:,} tokens, those after the first {completion.params.context_keep}"
    return [f"(the context was full: the model no longer sees {gone})"]


def _rate(per_second: float | None) -> str:
    return f" ({per_second:.1f} tokens/s)" if per_second else ""


def speculation_line(done: Speculated) -> str:
    """What came of the drafts, for people."""
    if not done.drafts:
        return f"drafts      none in {done.steps:,} passes: nothing to draft that would have paid"
    line = f"drafts      {done.accepted:,} of {done.proposed:,} tokens right"
    line += f" (of those looked at {100 * done.alpha:.0f} %)" if done.alpha is not None else ""
    line += f", {done.tokens_per_step:.2f} tokens a pass"
    return line + (f", about {done.speedup:.2f} times as fast as without" if done.speedup else "")


def speculation_record(done: Speculated) -> dict[str, Any]:
    """The same as --json gives it."""
    return {name: getattr(done, name) for name in SPECULATED}


def sampling_line(params: SamplingParams) -> str:
    """The values that a completion was sampled with, for people: temperature and seed, and what is not neutral."""
    shown = {} if params.greedy else {"temperature": params.temperature}
    for step, neutral in STEPS.items():
        if step not in (GREEDY_STEPS if params.greedy else STEPS):
            continue
        shown |= {name: getattr(params, name) for name, off in neutral.items() if getattr(params, name) != off}
    fixed = {"banned_ids": (), "allowed_ids": None, "min_tokens": 0, "logit_bias": {}}
    fixed |= {"json": False, "json_schema": None, "regex": None, "grammar": None, "choice": ()}
    shown |= {name: getattr(params, name) for name, off in fixed.items() if getattr(params, name) != off}
    values = ", ".join(f"{name} {value}" for name, value in shown.items())
    if params.greedy:
        return f"sampling    greedy{', ' if values else ''}{values}"
    return f"sampling    {values}, seed {params.seed}"


def completion_record(completion: Completion, llm: LLM) -> dict[str, Any]:
    """A completion as --json gives it, with all that it takes to repeat it."""
    record = {
        "text": completion.text,
        "ids": completion.ids,
        "prompt_ids": completion.prompt_ids,
        "reasoning": completion.reasoning,
        "tool_calls": call_records(completion),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "dropped_tokens": completion.dropped_tokens,
        "sampling": completion.sampling,
        "timings": {name: getattr(completion.timings, name) for name in TIMINGS},
    }
    if completion.speculation is not None:
        record["speculation"] = speculation_record(completion.speculation)
    for name in ("logprobs", "prompt_logprobs"):
        tokens = getattr(completion, name)
        if tokens is not None:
            record[name] = [token and _logprob_record(token, llm) for token in tokens]
    return record


def beam_record(beam: Beam, llm: LLM) -> dict[str, Any]:
    """The same of a beam search, with its score and what was searched."""
    return completion_record(beam, llm) | {"score": beam.score, "beam_search": asdict(beam.search)}


def call_records(completion: Completion) -> list[dict[str, Any]]:
    """The calls of tools, arguments as the object that they are."""
    calls = completion.tool_calls
    return [{"id": call.id, "name": call.name, "arguments": json.loads(call.arguments)} for call in calls]


def _logprob_record(token: TokenLogprob, llm: LLM) -> dict[str, Any]:
    top = [{"id": id, **_token_text(id, llm), "logprob": logprob} for id, logprob in token.top]
    own = {"id": token.id, **_token_text(token.id, llm), "logprob": token.logprob, "rank": token.rank}
    return own | {"top": top} if top else own


def _token_text(id: int, llm: LLM) -> dict[str, Any]:
    """A token's text, with U+FFFD where it holds half a character, and its bytes, which say what that is."""
    said = llm.tokenizer.token_bytes(id)
    return {"text": said.decode("utf-8", "replace"), "bytes": list(said)}


def size(count: float) -> str:
    """Bytes for people, in powers of a thousand: `538 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def progress_bars(quiet: bool = False) -> Progress:
    """Progress drawn on standard error: bars on a terminal, else one line for each piece of work."""
    if quiet:
        return silent
    return _bar if sys.stderr is not None and sys.stderr.isatty() else _line


def _bar(description: str, total: int, unit: str) -> AbstractContextManager[Bar]:
    from tqdm import tqdm

    # tqdm by itself shows nothing on a terminal that doesn't know its size
    columns, lines = shutil.get_terminal_size()
    return tqdm(total=total, desc=description, unit=unit, unit_scale=True, file=sys.stderr, ncols=columns, nrows=lines)


def _line(description: str, total: int, unit: str) -> AbstractContextManager[Bar]:
    amount = f" ({size(total)})" if unit == "B" and total else ""
    note(f"{description}{amount}")
    return silent(description, total, unit)

"""One answer as it comes: its ids, its text, where it stops, and how long it took.

Nothing here runs a model: whoever does, for one sequence (`generate.py`) or for many (`engine`), hands over the logits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from .rolling import Rolling
from .sampling import SamplingParams
from .sampling.logprobs import Scores, TokenLogprob
from .sampling.sampler import Sampler
from .text.markup import Said, joined
from .text.tool_call import ToolCall

if TYPE_CHECKING:
    from .speculative.speculation import Speculated

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class Timings:
    """How long a completion took, in seconds from when its first piece was asked for; tokenizing is not in them."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, found in the cache
    completion_tokens: int
    prefill_seconds: float  # the prompt's forward passes
    decode_seconds: float  # forward passes and sampling of all tokens after the first
    time_to_first_token: float | None  # None where no token was generated
    time_to_first_text: (
        float | None
    )  # until the first character that can be seen, of reasoning too; None where none can
    time_per_token_p50: float | None = None  # of the tokens after the first; None where there was only one
    time_per_token_p95: float | None = None

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Prompt tokens run, not those found in the cache, by the time they took."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first, which prefill paid for, by the time they took; None where there was only one."""
        return _rate(self.completion_tokens - 1, self.decode_seconds)


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    `ids` are all ids generated, with the end-of-sequence token where there was one; `text` is what they say without
    special tokens, cut before a stop string. `finish_reason` is "stop" for an end-of-sequence token (also as the last
    one that max_tokens allows), a stop string, or where a constraint allows nothing more, and "length" where max_tokens
    or the context ran out. `dropped_tokens` are those of prompt and answer that the last token could not see, because
    the context was full. `stop_reason` is the stop string that cut the text, else the end-of-sequence id, and None
    where there was neither. `params` are the complete sampling values in use,
    the seed among them; `sampling` is the same as a record that JSON can hold, with the version of the engine, and
    `SamplingParams.from_dict` makes of it what gives the same ids again.

    In a chat, `reasoning` and `tool_calls` are what the answer holds of these, taken out of `text` with their marks;
    `finish_reason` is then "tool_calls" where it would be "stop" and calls were made. A call that max_tokens or a stop
    string cuts is not among them, and not in the text either.

    `logprobs`, where asked for, has one entry for each of `ids`, `prompt_logprobs` one for each of `prompt_ids` with
    None for the first, which nothing stands before. The prompt's are always the model's, of its logits as they are;
    the answer's too, unless `logprobs_of="sampled"` asks for what was drawn from. Temperature 0 changes no meaning.

    `speculation` says what drafts did for it, where there were any to be.
    """

    text: str
    ids: list[int]
    prompt_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    params: SamplingParams
    timings: Timings
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    dropped_tokens: int = 0
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    speculation: Speculated | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message to go on from, in the form of OpenAI's API: append it to those that were sent."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return message

    @property
    def sampling(self) -> dict[str, Any]:
        """The complete sampling values in use, as `SamplingParams.to_dict` gives them."""
        return self.params.to_dict()


@dataclass(frozen=True)
class Piece:
    """A part of an answer as it comes; the last one has `finish_reason` and the whole `completion`.

    Joined, texts, reasoning and calls are those of the completion. A call comes in one piece: whether it is one is
    known when it is whole.
    """

    text: str
    ids: list[int]
    finish_reason: FinishReason | None = None
    completion: Completion | None = None
    logprobs: list[TokenLogprob] | None = None  # of `ids`, where asked for
    dropped_tokens: int = 0  # of prompt and answer before it, which it could not see
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class TextDecoder(Protocol):
    """Ids to what they say while they come: `MarkupDecoder`, or nothing for a model without a tokenizer."""

    stop: str | None

    def push(self, id: int, /) -> Said:
        """Take an id, give what is now certain."""

    def finish(self, cut: bool, /) -> Said:
        """Give what was held back; `cut` says that the model had not come to an end by itself."""


class Answer:
    """What is being said after one prompt. `take` draws one token after another, `finish` ends it.

    Its clock runs from when it is made, or from `begin`, and a token's time from the one before it; `resume` leaves out
    what passed in between, as where the caller was away.
    """

    def __init__(
        self, prompt_ids: list[int], sampler: Sampler, stop_ids: frozenset[int], decoder: TextDecoder, context: int
    ):
        """`prompt_ids` are valid and, unless the text rolls, no longer than `context`, which prompt and answer share.

        `sampler` begins after the prompt.
        """
        self.prompt_ids, self.sampler, self.ids = prompt_ids, sampler, []
        self.cached_tokens = 0  # of the prompt
        self.dropped_tokens = 0  # told by whoever runs the model
        params = sampler.params
        self.rolling = Rolling(context, params.context_keep) if params.context_full == "roll" else None
        room = math.inf if self.rolling else context - len(prompt_ids)
        self.left = room if params.max_tokens is None else min(params.max_tokens, room)  # tokens that may yet come
        self._stop_ids = frozenset() if params.ignore_eos else stop_ids
        self._decoder = decoder
        self._scores = Scores(params, prompt_ids)
        self._stop_reason: str | int | None = None
        self._said: list[Said] = []
        self._complete = False  # a constraint allows nothing more
        self._silent: list[int] = []  # the end-of-sequence id, which no text goes with
        self.begin()
        self._prefill_seconds = 0.0
        self._first_token: float | None = None
        self._first_text: float | None = None
        self._token_seconds: list[float] = []  # of each token after the first

    @property
    def going(self) -> bool:
        """Whether another token is to come."""
        return self.left > 0 and self._stop_reason is None and not self._complete

    @property
    def read_prompt(self) -> Callable[[np.ndarray], None] | None:
        """Takes the logits after each token of the prompt, some rows at a time; None where they are not wanted."""
        return self._scores.read_prompt

    def begin(self) -> None:
        """The answer was asked for now."""
        self._start = self._resumed = time.perf_counter()

    def resume(self) -> None:
        """The next token's time counts from now."""
        self._resumed = time.perf_counter()

    def prefilled(self, cached_tokens: int) -> None:
        """The prompt has been run, but for so many tokens of it that were in the cache."""
        self.cached_tokens = cached_tokens
        self._prefill_seconds = time.perf_counter() - self._start

    def take(self, logits: np.ndarray) -> Piece | None:
        """Draw the next token from logits float32 [vocab]; an end-of-sequence token shows nothing.

        Raises `SamplingError` for logits that can't be sampled from.
        """
        tokens = self.sampler.distribution(logits)
        id = self.sampler.take(tokens)
        self.ids.append(id)
        self.left -= 1
        self._scores.add(id, logits, tokens)
        self._note_time()
        if id in self._stop_ids:
            self._stop_reason, self._silent = id, [id]
            return None
        said = self._decoder.push(id)
        self._stop_reason = self._decoder.stop
        self._complete = self.sampler.done
        return self._piece(said, [id])

    def finish(self, speculation: Speculated | None = None) -> Piece:
        """The last piece: the text held back, and the whole."""
        rest = self._piece(self._decoder.finish(self._stop_reason is None and not self._complete), self._silent)
        stop_reason = self._stop_reason if self._decoder.stop is None else self._decoder.stop
        cut = stop_reason is None and not self._complete
        said = joined(self._said)
        finish_reason: FinishReason = "length" if cut else "tool_calls" if said.tool_calls else "stop"
        completion = Completion(
            said.text, self.ids, self.prompt_ids, finish_reason, stop_reason, self.sampler.params, self._timings(),
            self._scores.output, self._scores.prompt, self.dropped_tokens, said.reasoning, said.tool_calls, speculation,
        )  # fmt: skip
        return replace(rest, finish_reason=finish_reason, completion=completion)

    def _note_time(self) -> None:
        now = time.perf_counter()
        if self._first_token is None:
            self._first_token = now - self._start
        else:
            self._token_seconds.append(now - self._resumed)
        self._resumed = now

    def _piece(self, said: Said, ids: list[int]) -> Piece:
        self._said.append(said)
        if self._first_text is None and (said.text + said.reasoning).strip():
            self._first_text = time.perf_counter() - self._start
        logprobs = self._scores.last(len(ids))
        return Piece(
            said.text, ids, logprobs=logprobs, dropped_tokens=self.dropped_tokens, reasoning=said.reasoning,
            tool_calls=said.tool_calls,
        )  # fmt: skip

    def _timings(self) -> Timings:
        spans = self._token_seconds
        p50, p95 = np.percentile(spans, (50, 95)).tolist() if spans else (None, None)
        counts = len(self.prompt_ids), self.cached_tokens, len(self.ids)
        return Timings(*counts, self._prefill_seconds, sum(spans), self._first_token, self._first_text, p50, p95)

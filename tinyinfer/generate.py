"""One sequence from prompt to text: prefill, the decode loop, stopping, timings.

Here, and in the engine for many sequences, the rooms are joined: the tokenizer's ids go into the model, its logits into
the sampler, the sampled id into the stream decoder, and back into the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from . import cache as kv
from .errors import BadRequest
from .model.adapters import Adapter
from .model.forward import MOST_ROWS, Chunk, Model
from .model.rope import keys_fit
from .sampling import SamplingParams
from .sampling.logprobs import Scores, TokenLogprob
from .sampling.sampler import Sampler

PREFILL_CHUNK = MOST_ROWS  # tokens of a prompt run at once
LOGITS_AT_ONCE = 2**24  # 64 MB, where the logits after every token of a prompt are wanted

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Timings:
    """How long a completion took, in seconds from when its first piece was asked for; tokenizing is not in them."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, found in the cache
    completion_tokens: int
    prefill_seconds: float  # the prompt's forward passes
    decode_seconds: float  # forward passes and sampling of all tokens after the first
    time_to_first_token: float | None  # None where no token was generated
    time_to_first_text: float | None  # until the first character that can be seen; None where there was none

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
    one that max_tokens allows) or a stop string, and "length" where max_tokens or the context ran out. `stop_reason` is
    the stop string that cut the text, else the end-of-sequence id. `params` are the complete sampling values in use,
    the seed among them; `sampling` is the same as a record that JSON can hold, with the version of the engine, and
    `SamplingParams.from_dict` makes of it what gives the same ids again.

    `logprobs`, where asked for, has one entry for each of `ids`, `prompt_logprobs` one for each of `prompt_ids` with
    None for the first, which nothing stands before. The prompt's are always the model's, of its logits as they are;
    the answer's too, unless `logprobs_of="sampled"` asks for what was drawn from. Temperature 0 changes no meaning.
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

    @property
    def sampling(self) -> dict[str, Any]:
        """The complete sampling values in use, as `SamplingParams.to_dict` gives them."""
        return self.params.to_dict()


@dataclass(frozen=True)
class Piece:
    """A part of an answer as it comes; the last one has `finish_reason` and the whole `completion`."""

    text: str
    ids: list[int]
    finish_reason: FinishReason | None = None
    completion: Completion | None = None
    logprobs: list[TokenLogprob] | None = None  # of `ids`, where asked for


class TextDecoder(Protocol):
    """Ids to text while they come: `text.stream.StreamDecoder`, or nothing for a model without a tokenizer."""

    stop: str | None

    def push(self, id: int, /) -> str:
        """Take an id, give the text that is now certain."""

    def finish(self) -> str:
        """Give the text that was held back."""


class CachedSequence:
    """The ids of one sequence and their keys and values, kept in step. It serves one answer at a time."""

    def __init__(self, model: Model, sequence: kv.Sequence | None = None):
        """`sequence` is what it holds, by default nothing, in a cache of its own."""
        self.model = model
        self.ids: list[int] = []  # those whose keys and values are held
        self.adapters: Sequence[tuple[Adapter, float]] = ()  # that they went through
        self.sequence = sequence or model.new_cache().sequence()
        self._ropes = {layer.rope for layer in model.config.layers if layer.rope}
        # lengths of the text for which the held keys were rotated: at the last prefill, and now
        self._prefill_length = self._text_length = 0
        self.answer: object = None  # whoever feeds it: an answer that finds another here has lost its place

    def fork(self) -> CachedSequence:
        """A second sequence that holds the same; the memory is shared until either goes on.

        Sequences that share memory take their steps one at a time, in one thread.
        """
        twin = CachedSequence(self.model, self.sequence.fork())
        twin.ids, twin.adapters = list(self.ids), self.adapters
        twin._prefill_length, twin._text_length = self._prefill_length, self._text_length
        return twin

    def prefill(
        self,
        ids: Sequence[int],
        adapters: Sequence[tuple[Adapter, float]] = (),
        read: Callable[[np.ndarray], None] | None = None,
    ) -> tuple[np.ndarray, int]:
        """Hold exactly `ids` (at least one) by way of some adapters; give the logits float32 [vocab] after the last.

        What is held already of their beginning is kept, except the last token, whose logits are wanted, and except
        where it would differ from a cold run, as with other adapters; the second value says how many tokens that saved.
        With `read` nothing is kept, and it is called with the logits after every token, float32 [n, vocab], some rows
        at a time.
        """
        if read:
            for rows in self.rows(ids, adapters):
                read(rows)
            return rows[-1], 0
        kept = self._reusable(ids) if adapters == self.adapters else 0
        if kept:
            self.sequence.rewind(kept)
        else:
            self.sequence.release()
        del self.ids[kept:]
        self.adapters = adapters
        self._prefill_length = len(ids)
        for begin in range(kept, len(ids), PREFILL_CHUNK):
            logits = self._feed(ids[begin : begin + PREFILL_CHUNK], len(ids))
        return logits[0], kept

    def rows(self, ids: Sequence[int], adapters: Sequence[tuple[Adapter, float]] = ()) -> Iterator[np.ndarray]:
        """Hold exactly `ids`, run anew; yields the logits after every one, float32 [n, vocab], some rows at a time."""
        self.sequence.release()
        del self.ids[:]
        self.adapters = adapters
        self._prefill_length = len(ids)
        count = min(max(LOGITS_AT_ONCE // self.model.config.vocab_size, 1), PREFILL_CHUNK)
        for begin in range(0, len(ids), count):
            yield self._feed(ids[begin : begin + count], len(ids), slice(None))

    def step(self, id: int) -> np.ndarray:
        """One more id; logits float32 [vocab] after it, see `step_together`."""
        return step_together([self], [id])[0]

    def _feed(self, ids: Sequence[int], text_length: int, wanted: slice = slice(-1, None)) -> np.ndarray:
        logits = self.model.forward([self._chunk(ids, text_length, wanted)])
        self._hold(ids, text_length)
        return logits

    def _chunk(self, ids: Sequence[int], text_length: int, wanted: slice = slice(-1, None)) -> Chunk:
        return Chunk(self.sequence, np.asarray(ids), text_length, wanted, self.adapters)

    def _hold(self, ids: Sequence[int], text_length: int) -> None:
        self.ids += ids
        self._text_length = text_length

    def _outgrown(self) -> bool:
        switching = [rope for rope in self._ropes if rope.kind == "longrope"]
        return not keys_fit(switching, self._text_length, len(self.ids) + 1)

    def _reusable(self, ids: Sequence[int]) -> int:
        common = 0
        for held, wanted in zip(self.ids, ids[:-1], strict=False):
            if held != wanted:
                break
            common += 1
        lengths = self._prefill_length, self._text_length
        fits = all(keys_fit(self._ropes, length, len(ids)) for length in lengths)
        return common if fits and self.sequence.can_rewind(common) else 0


def step_together(held: Sequence[CachedSequence], ids: Sequence[int]) -> np.ndarray:
    """One more id for each of several sequences of a model, in one pass: the logits after them, float32 [n, vocab].

    Dynamically scaled keys stay as they were rotated, and LongRoPE's are all computed anew when the text outgrows the
    original context: both as transformers does.
    """
    grown = list(zip(held, ids, strict=True))
    if any(one._outgrown() for one in held):
        return np.stack([one.prefill([*one.ids, id], one.adapters)[0] for one, id in grown])
    logits = held[0].model.forward([one._chunk([id], len(one.ids) + 1) for one, id in grown])
    for one, id in grown:
        one._hold([id], len(one.ids) + 1)
    return logits


def generate(
    held: CachedSequence,
    prompt_ids: list[int],
    sampler: Sampler,
    stop_ids: frozenset[int],
    decoder: TextDecoder,
    context: int,
    adapters: Sequence[tuple[Adapter, float]] = (),
) -> Iterator[Piece]:
    """Yield the answer piece by piece, a token each; the last piece holds the whole.

    `prompt_ids` are valid and no longer than `context`, which prompt and answer share; both go through `adapters`.
    `sampler` begins after the prompt.
    Raises `SamplingError` for logits that can't be sampled from, and `BadRequest` where another answer was begun from
    `held` before this one was done.
    """
    start = time.perf_counter()
    params = sampler.params
    room = context - len(prompt_ids)
    budget = room if params.max_tokens is None else min(params.max_tokens, room)
    ids: list[int] = []
    silent: list[int] = []  # the end-of-sequence id, which no text goes with
    texts: list[str] = []
    scores = Scores(params, prompt_ids)
    first_token = first_text = stop_reason = None
    prefill_seconds = decode_seconds = 0.0
    cached = 0

    def piece(text: str, new_ids: list[int]) -> Piece:
        nonlocal first_text
        texts.append(text)
        if first_text is None and text.strip():
            first_text = time.perf_counter() - start
        return Piece(text, new_ids, logprobs=scores.last(len(new_ids)))

    if budget or scores.read_prompt:
        held.answer = ids
        logits, cached = held.prefill(prompt_ids, adapters, scores.read_prompt)
        prefill_seconds = time.perf_counter() - start
    while len(ids) < budget and stop_reason is None:
        began = time.perf_counter()
        if ids:
            if held.answer is not ids:
                raise BadRequest("this answer can't go on: its session has begun another one since")
            logits = held.step(ids[-1])
        tokens = sampler.distribution(logits)
        ids.append(sampler.take(tokens))
        scores.add(ids[-1], logits, tokens)
        if len(ids) == 1:
            first_token = time.perf_counter() - start
        else:
            decode_seconds += time.perf_counter() - began
        if ids[-1] in stop_ids and not params.ignore_eos:
            stop_reason, silent = ids[-1], ids[-1:]
            break
        text = decoder.push(ids[-1])
        stop_reason = decoder.stop
        yield piece(text, ids[-1:])
    rest = piece(decoder.finish(), silent)
    stop_reason = stop_reason if decoder.stop is None else decoder.stop
    finish_reason: FinishReason = "length" if stop_reason is None else "stop"
    timings = Timings(len(prompt_ids), cached, len(ids), prefill_seconds, decode_seconds, first_token, first_text)
    completion = Completion(
        "".join(texts), ids, prompt_ids, finish_reason, stop_reason, params, timings, scores.output, scores.prompt
    )
    yield Piece(rest.text, rest.ids, finish_reason, completion, rest.logprobs)

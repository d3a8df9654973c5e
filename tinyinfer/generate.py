"""One sequence from prompt to text: prefill, then the decode loop.

Here, and in the engine for many sequences, the rooms are joined: the tokenizer's ids go into the model, its logits into
the sampler, the sampled id into the stream decoder, and back into the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from .answer import Answer, Piece
from .cached_sequence import Adapters, CachedSequence
from .errors import BadRequest
from .speculative.speculation import Speculation


def generate(
    held: CachedSequence, answer: Answer, adapters: Adapters = (), speculation: Speculation | None = None
) -> Iterator[Piece]:
    """Yield the answer piece by piece, a token each; the last piece holds the whole.

    With `speculation`, of this answer, one step may give several tokens; which ones is all the same.
    Prompt and answer go through `adapters`. Raises `SamplingError` for logits that can't be sampled from, and
    `BadRequest` where another answer was begun from `held` before this one was done.
    """
    answer.begin()
    if answer.going or answer.read_prompt:
        held.answer = answer
        logits, cached = held.prefill(answer.prompt_ids, adapters, answer.read_prompt, answer.rolling)
        answer.prefilled(cached)
        answer.dropped_tokens = held.dropped
    while answer.going:
        if answer.ids:
            if held.answer is not answer:
                raise BadRequest("this answer can't go on: its session has begun another one since")
            answer.resume()
            if speculation:
                yield from speculation.step(held)
                continue
            logits = held.step(answer.ids[-1])
            answer.dropped_tokens = held.dropped
        if piece := answer.take(logits):
            yield piece
    yield answer.finish(speculation and speculation.report())

"""Chats that go on for some turns, a number of them at once: what a server of several people has to do.

Closed loop: who has an answer asks the next question at once. All chats have a system message in common, each has its
own questions, and each turn brings all that was said before, so a server that keeps what it has read has little to
read again. Every answer has the same number of tokens, on any server that takes `ignore_eos`, or `min_tokens`: an end
that is said and not shown would make the next turn's prompt another one than what was computed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .http_client import Target
from .load import Arrival, Sent, random_text, send

PATIENCE = 600.0  # seconds for an answer


@dataclass(frozen=True)
class Talk:
    """What is said. `system_words` are common English words, about as many tokens."""

    chats: int = 8
    turns: int = 3
    system_words: int = 590
    question_words: int = 12
    tokens: int = 64  # of each answer


@dataclass(frozen=True)
class Heard:
    """One round of it: what became of each request, turn by turn of all chats; times in seconds from its start."""

    turns: list[list[Sent]]

    @property
    def sent(self) -> list[Sent]:
        """All of them."""
        return [one for turn in self.turns for one in turn]

    @property
    def errors(self) -> list[str]:
        """What went wrong."""
        return [one.error for one in self.sent if one.error is not None]

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(one.completion_tokens or 0 for one in self.sent)

    @property
    def tokens_per_second(self) -> float:
        """Of all answers, from the first question to the end of the last answer."""
        return self.tokens / max(one.end for one in self.sent)


async def converse(target: Target, model: str, talk: Talk, seed: int, system_seed: int | None = None) -> Heard:
    """Hold all chats once, at temperature 0. The seed decides the words, `system_seed` those of the system message,
    which else are other ones for each seed."""
    start, rng = time.perf_counter(), random.Random(seed)
    system = random_text(random.Random(seed if system_seed is None else system_seed), talk.system_words)
    questions = [[random_text(rng, talk.question_words) for _ in range(talk.turns)] for _ in range(talk.chats)]

    async def one(asked: Sequence[str]) -> list[Sent]:
        messages, heard = [{"role": "system", "content": system}], []
        for question in asked:
            messages.append({"role": "user", "content": question})
            body = {
                "model": model, "messages": messages, "max_tokens": talk.tokens, "temperature": 0,
                "ignore_eos": True, "min_tokens": talk.tokens,
                "stream": True, "stream_options": {"include_usage": True},
            }  # fmt: skip
            now = time.perf_counter() - start
            sent = await send(target, Arrival(now, body), PATIENCE, None, lambda: time.perf_counter() - start)
            heard.append(sent)
            if sent.error is not None:
                break
            messages.append({"role": "assistant", "content": sent.text})
        return heard

    chats = await asyncio.gather(*(one(asked) for asked in questions))
    return Heard([[chat[turn] for chat in chats if turn < len(chat)] for turn in range(talk.turns)])


def percentile(values: Sequence[float | None], share: float) -> float:
    """The percentile of those that are numbers; NaN where none is."""
    found = [value for value in values if value is not None]
    return float(np.percentile(found, share)) if found else float("nan")

"""How a server answers under load: requests that arrive by chance, whatever has become of those before them.

Open loop: each is sent when its time has come, and its clock runs from then, so a server that falls behind is seen to
(a client that waits for answers before it asks again would slow down with it). Arrivals are a Poisson process; lengths
of prompts and answers are log-normal, many short ones and a few long ones.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import BadRequest
from .http_client import Answer, BadAnswer, Target, request

WORDS = """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother
    area money story fact month lot right study book eye job word business issue side kind head house service friend
""".split()  # noqa: SIM905
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Mix:
    """What is asked. Lengths are log-normal: a median, the standard deviation of the logarithm, and a limit."""

    prompt_words: int = 60
    prompt_spread: float = 1.0
    most_prompt_words: int = 800
    answer_tokens: int = 40
    answer_spread: float = 0.8
    most_answer_tokens: int = 256
    shared_words: int = 0  # a system message that all have in common
    extra: dict[str, Any] = field(default_factory=dict)  # fields of every body


@dataclass(frozen=True)
class Arrival:
    """A request to come: when, in seconds from the start, and what."""

    at: float
    body: dict[str, Any]


@dataclass
class Sent:
    """What became of a request; times are seconds from the start, counts what the server says."""

    at: float  # when it was to be sent
    status: int | None = None
    error: str | None = None
    first: float | None = None  # the first text
    last: float | None = None  # the last text
    end: float | None = None
    pieces: int = 0  # events with text
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    text: str = field(default="", repr=False)
    times: list[float] = field(default_factory=list, repr=False)  # of each event with text

    @property
    def ttft(self) -> float | None:
        """Time to first token."""
        return None if self.first is None else self.first - self.at

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None where there was no other."""
        tokens = self.completion_tokens or self.pieces
        return None if self.first is None or tokens < 2 else (self.last - self.first) / (tokens - 1)

    @property
    def latency(self) -> float:
        """From when it was to be sent to its end."""
        return self.end - self.at


def plan(mix: Mix, rate: float, count: int, seed: int, model: str) -> list[Arrival]:
    """`count` arrivals at `rate` a second on average; the same seed gives the same. Raises `BadRequest`."""
    if not 0 < rate < float("inf"):
        raise BadRequest(f"rate should be a number above 0, found {rate}", "rate")
    if count < 1:
        raise BadRequest(f"requests should be a whole number from 1, found {count}", "requests")
    rng, at, arrivals = random.Random(seed), 0.0, []
    shared = random_text(rng, mix.shared_words)
    for _ in range(count):
        at += rng.expovariate(rate)
        words = _length(rng, mix.prompt_words, mix.prompt_spread, mix.most_prompt_words)
        tokens = _length(rng, mix.answer_tokens, mix.answer_spread, mix.most_answer_tokens)
        messages = [{"role": "user", "content": random_text(rng, words)}]
        if shared:
            messages.insert(0, {"role": "system", "content": shared})
        asked = {"model": model, "messages": messages, "max_tokens": tokens, "seed": rng.randrange(2**31)}
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        arrivals.append(Arrival(at, asked | streamed | mix.extra))
    return arrivals


def _length(rng: random.Random, median: int, spread: float, most: int) -> int:
    return min(max(round(median * np.exp(rng.gauss(0, spread))), 1), most)


def random_text(rng: random.Random, words: int) -> str:
    """So many common words, each by chance; most are a token with the space before them."""
    return " ".join(rng.choice(WORDS) for _ in range(words))


async def run(
    target: Target,
    arrivals: Sequence[Arrival],
    timeout: float,
    headers: dict[str, str] | None = None,
    done: Callable[[int], object] = lambda count: None,
) -> list[Sent]:
    """Send every request at its time; what became of them, in that order. `done` is called with 1 after each."""
    start = time.perf_counter()

    async def one(arrival: Arrival) -> Sent:
        await asyncio.sleep(arrival.at - (time.perf_counter() - start))
        sent = await send(target, arrival, timeout, headers, lambda: time.perf_counter() - start)
        done(1)
        return sent

    return await asyncio.gather(*(one(arrival) for arrival in arrivals))


async def send(
    target: Target,
    arrival: Arrival,
    timeout: float,
    headers: dict[str, str] | None,
    now: Callable[[], float],
    sent: Sent | None = None,
) -> Sent:
    """Send one request now, by the clock `now` in seconds, and read its answer to the end; errors are told in `sent`,
    which grows meanwhile."""
    sent = sent or Sent(arrival.at)

    async def exchange() -> None:
        async with request(target, "POST", "/v1/chat/completions", arrival.body, headers) as answer:
            sent.status = answer.status
            if answer.status == 200:
                await _read(answer, sent, now)
            else:
                sent.error = f"status {answer.status}"

    try:
        await asyncio.wait_for(exchange(), timeout)
    except (TimeoutError, asyncio.TimeoutError):
        sent.error = f"no end after {timeout:g} s"
    except BadAnswer as error:
        sent.error = str(error)
    except OSError as error:
        sent.error = f"no connection: {error.strerror or type(error).__name__}"
    sent.end = now()
    return sent


async def _read(answer: Answer, sent: Sent, now: Callable[[], float]) -> None:
    async for data in answer.events():
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
            if "error" in event:
                raise BadAnswer(f"an error in the stream: {event['error']}"[:200])
            said = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            usage = event.get("usage")
            if usage:
                sent.prompt_tokens, sent.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
                sent.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadAnswer(f"an event that is no chunk of a chat: {data[:80]!r}") from None
        if said:
            sent.last = now()
            sent.first = sent.last if sent.first is None else sent.first
            sent.pieces += 1
            sent.text += said
            sent.times.append(sent.last)
    raise BadAnswer("the stream ended without [DONE]")


async def first_model(target: Target, headers: dict[str, str] | None = None) -> str:
    """The name of the model that a server has. Raises `BadRequest` where there is no such server."""
    try:
        async with request(target, "GET", "/v1/models", None, headers) as answer:
            found = await asyncio.wait_for(answer.json(), 30)
            if answer.status != 200:
                raise BadAnswer(f"status {answer.status}")
            return found["data"][0]["id"]
    except OSError as error:
        told = error.strerror or error
        raise BadRequest(f"no server at {target.host}:{target.port}: {told}", "url") from None
    except (BadAnswer, LookupError, TypeError, asyncio.TimeoutError) as error:
        told = f"{target.host}:{target.port} does not say which models it has"
        raise BadRequest(f"{told} ({error or type(error).__name__}); name one", "url") from None


@dataclass(frozen=True)
class Report:
    """A run. Times are in seconds, for each of PERCENTILES and the longest; None where nothing was measured."""

    sent: list[Sent]
    seconds: float  # from the first arrival to the last end
    ttft: list[float] | None
    tpot: list[float] | None
    latency: list[float] | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    errors: dict[str, int]

    @property
    def answered(self) -> list[Sent]:
        """Those that had a whole answer."""
        return [one for one in self.sent if one.error is None]


def report(sent: list[Sent]) -> Report:
    """Sums and percentiles; what ended in an error has no part in them, but as an error."""
    good = [one for one in sent if one.error is None]
    seconds = max(one.end for one in sent) - min(one.at for one in sent)
    return Report(
        sent, seconds,
        *(_percentiles([getattr(one, name) for one in good]) for name in ("ttft", "tpot", "latency")),
        *(sum(getattr(one, name) or 0 for one in good)
          for name in ("prompt_tokens", "cached_tokens", "completion_tokens")),
        dict(Counter(one.error for one in sent if one.error is not None)),
    )  # fmt: skip


def _percentiles(values: list[float | None]) -> list[float] | None:
    found = [value for value in values if value is not None]
    return [*np.percentile(found, PERCENTILES).tolist(), max(found)] if found else None

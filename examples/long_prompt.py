"""How much a long prompt holds up those who are being answered: python examples/long_prompt.py smollm2-135m-instruct

Starts `tinyinfer serve MODEL` (or takes `--url` of a server that runs) and has four chats answered at once, streamed.
In every second round a prompt of 2,000 tokens arrives. What counts is the time between one piece of a chat and the next
(a piece is mostly a token), its median and 95th percentile: from when the long prompt arrives to when its first token
comes, and in the same part of the answers with nobody else there. Rounds with and without take turns, so that a noisy
moment falls on both. Every text is new, so that no cache has any of it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from tinyinfer import TinyinferError
from tinyinfer.cli.tables import plain_table
from tinyinfer.lab.chats import PATIENCE, percentile
from tinyinfer.lab.http_client import Target, target_of
from tinyinfer.lab.load import Arrival, Sent, first_model, random_text, send
from tinyinfer.lab.machine import load_average
from tinyinfer.lab.servers import end_on_sigterm, our_server, running
from tinyinfer.lab.timing import Samples


@dataclass(frozen=True)
class Scene:
    """Who is there. Words are common English ones, about as many tokens."""

    chats: int = 4
    question_words: int = 30
    tokens: int = 1900  # of each answer at most: the long prompt must be done before
    long_words: int = 1970
    begun: int = 40  # tokens after which the long prompt arrives


@dataclass(frozen=True)
class Round:
    """Seconds between pieces of the chats, in the time that counts; and until the long prompt's first token.

    `last` is how many pieces a chat had when that time ended, at most.
    """

    gaps: list[float]
    last: int
    ttft: float | None = None
    prompt_tokens: int | None = None


async def play(target: Target, model: str, scene: Scene, seed: int, most: int | None = None) -> Round:
    """One round with the long prompt, or without it, of `most` pieces of a chat; the chats are then left.

    Raises `TinyinferError` where an answer fails, or ends before the long prompt's does.
    """
    rng, start = random.Random(seed), time.perf_counter()

    def ask(words: int, tokens: int) -> tuple[Sent, asyncio.Task[Sent]]:
        body = {
            "model": model, "messages": [{"role": "user", "content": random_text(rng, words)}], "max_tokens": tokens,
            "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        sent = Sent(time.perf_counter() - start)
        arrival = Arrival(sent.at, body)
        work = send(target, arrival, PATIENCE, None, lambda: time.perf_counter() - start, sent)
        return sent, asyncio.create_task(work)

    async def until(pieces: int) -> None:
        while min(sent.pieces for sent in chats) < pieces and not any(task.done() for task in tasks):
            await asyncio.sleep(0.005)

    chats, tasks = zip(*(ask(scene.question_words, scene.tokens) for _ in range(scene.chats)), strict=True)
    late = None
    if most is None:
        await until(scene.begun)
        late, task = ask(scene.long_words, 1)
        await task
        await until(max(sent.pieces for sent in chats) + 1)  # what was under way when it came
    else:
        await until(most)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return measured(chats, late, scene.begun, most)


def measured(chats: Sequence[Sent], late: Sent | None, begun: int = 0, most: int | None = None) -> Round:
    """What counts of a round's chats: beside the long prompt where one came, else from piece `begun` to `most`."""
    for sent in [*chats, *filter(None, [late])]:
        if sent.error is not None:
            raise TinyinferError(f"a request failed: {sent.error}")
    if late is None:
        return Round([b - a for sent in chats for a, b in pairwise(sent.times[begun:most])], most or 0)
    if min(sent.last for sent in chats) < late.first:
        raise TinyinferError("the chats ended before the long prompt had its first token: give more --tokens")
    inside = [[time for time in sent.times if late.at <= time <= late.first] for sent in chats]
    gaps = [b - a for times in inside for a, b in pairwise(times)]
    last = max(sum(time <= late.first for time in sent.times) for sent in chats)
    return Round(gaps, last, late.ttft, late.prompt_tokens)


def table(alone: list[Round], beside: list[Round]) -> str:
    """Medians of the rounds, and how many times as long it took beside the long prompt."""
    rows = []
    for share in (50, 95):
        ways = [Samples(tuple(percentile(one.gaps, share) for one in rounds)) for rounds in (alone, beside)]
        ratio = ways[1].median / ways[0].median
        rows.append([f"between two pieces, p{share}", *(shown(samples, 1000) for samples in ways), f"{ratio:.2f}x"])
    return plain_table(("milliseconds", "nobody else", "beside the long prompt", "times"), rows)


def shown(samples: Samples, times: float) -> str:
    """The median, the lowest and the highest."""
    low, middle, high = (f"{times * value:.1f}" for value in (samples.low, samples.median, samples.high))
    return f"{middle} ({low} to {high})"


@contextmanager
def server(args: argparse.Namespace) -> Iterator[str]:
    """The address of one."""
    if args.url:
        yield args.url
        return
    with running(our_server(args.model, "--slots", args.chats + 1, "-q")) as started:
        yield started.url


def main() -> None:
    """Play the rounds, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", nargs="?", default="smollm2-135m-instruct", help="(default: %(default)s)")
    add("--url", metavar="URL", help="a server that runs already")
    add("--rounds", type=int, default=5, help="of each kind that count (default: %(default)s)")
    for name, value in Scene().__dict__.items():
        add(f"--{name.replace('_', '-')}", type=int, default=value, help="(default: %(default)s)")
    args = parser.parse_args()
    scene = Scene(**{name: getattr(args, name) for name in Scene().__dict__})
    if min(args.rounds, *scene.__dict__.values()) < 1:
        parser.error("expected whole numbers from 1")
    alone: list[Round] = []
    beside: list[Round] = []
    with server(args) as url:
        target = target_of(url)
        model = asyncio.run(first_model(target))
        print(f"{model}: {scene.chats} chats; load {load_average()} before", flush=True)
        for number in range(args.rounds + 1):
            beside.append(asyncio.run(play(target, model, scene, 2 * number)))
            alone.append(asyncio.run(play(target, model, scene, 2 * number + 1, beside[-1].last)))
    alone, beside = alone[1:], beside[1:]  # the first of each warms up
    print(f"\n{table(alone, beside)}\n")
    first = Samples(tuple(one.ttft for one in beside))
    print(f"the long prompt, of {beside[0].prompt_tokens:,} tokens, had its first after {shown(first, 1)} seconds")
    print(f"load {load_average()} after")


if __name__ == "__main__":
    end_on_sigterm()
    try:
        main()
    except TinyinferError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)

"""Mixed load on a real server for minutes: does it leak, hang, or say anything wrong?

    python examples/soak.py [MODEL] [--minutes 20] [--slots 8] [--queue 8]

Starts `tinyinfer serve MODEL` as a process of its own and sends it what a public server gets: chats and completions of
all lengths, streamed and not, greedy and drawn, some with drafts, some in a form (JSON, a schema, a regular
expression), with log-probabilities, stop strings and shared beginnings; embeddings; clients that go away while they
wait, in the prompt or in the answer; requests that are no good, and bytes that are no HTTP; quiet moments, and bursts
that fill the queue. The cache is small, so that beginnings are evicted and requests preempted. Each answer must be what
the same request gave alone, before anything else ran, to the last digit of its log-probabilities; what a client that
went away had heard must be how that begins. In between the load stops, and what is left is counted: memory, threads,
open files, blocks in use.

Exits with 1 where an answer was wrong, a request hung, something is left over at the end, or something that was to be
tried (a full queue, an eviction, a preemption, an accepted draft) never came to pass.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tinyinfer.lab.http_client import BadAnswer, Target, request, target_of
from tinyinfer.lab.load import random_text
from tinyinfer.lab.servers import end_on_sigterm, our_server, running

PATIENCE = 120.0  # seconds after which a request hangs, or so many times what the slowest took alone:
PATIENT = 100
RATES = (0.5, 4, 8, 16)  # clients a second, for some seconds each
CROWD = 12  # clients at once, after which none come but in a burst: most are to be answered, however slow the machine
CHAT, TEXT, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
TRIED = ("429", "evicted_blocks", "preemptions", "accepted_tokens")  # what has to come to pass
BAD = [
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "temperature": -1}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "no_such_field": 1}),
    (CHAT, {"messages": "a"}),
    (TEXT, {"prompt": [10**9]}),
    (TEXT, {"prompt": "word " * 20_000}),
    (TEXT, {"prompt": "a", "n": 0}),
    (TEXT, {"prompt": "a", "model": "another"}),
    (TEXT, {"prompt": "a", "regex": "("}),
    (TEXT, {"prompt": "a", "speculate": "magic"}),
    (TEXT, []),
    (VECTORS, {"input": 3}),
]
RAW = [b"", b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\ncontent-length: 999\r\n\r\n{"]


class Said(NamedTuple):
    """An answer: its text, why it ends, and its log-probabilities."""

    text: str = ""
    reason: str | None = None
    logprobs: tuple[float, ...] = ()

    def then(self, part: dict) -> Said:
        """With what a choice, or a part of one, adds."""
        said = part.get("message") or part.get("delta") or part
        found = part.get("logprobs") or {}
        logprobs = found.get("token_logprobs") or [token["logprob"] for token in found.get("content") or ()]
        text = self.text + (said.get("content") or said.get("text") or "")
        return Said(text, part.get("finish_reason") or self.reason, (*self.logprobs, *logprobs))

    def begins(self, whole: Said) -> bool:
        """Whether `whole` goes on from here."""
        count = len(self.logprobs)
        ends = self.reason in (None, whole.reason)
        return ends and whole.text.startswith(self.text) and whole.logprobs[:count] == self.logprobs


class Question(NamedTuple):
    """What is asked."""

    path: str
    body: dict[str, Any]


@dataclass
class Tally:
    """What happened."""

    counts: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    patience: float = PATIENCE

    def fault(self, what: str) -> None:
        self.faults.append(what)
        print("FAULT:", what[:500], flush=True)


def questions(rng: random.Random, count: int) -> list[Question]:
    """Requests whose answers are known by what they give alone."""
    shared, found = random_text(rng, 80), []
    for _ in range(count):
        text = random_text(rng, rng.choice([1, 5, 20, 60, 200]))
        if rng.random() < 0.1:
            found.append(Question(VECTORS, {"input": [text, text[:20]]}))
        elif rng.random() < 0.5:
            messages = [{"role": "user", "content": text}]
            if rng.random() < 0.5:
                messages.insert(0, {"role": "system", "content": shared})
            logprobs = {"logprobs": True, "top_logprobs": 2} if rng.random() < 0.3 else {}
            found.append(Question(CHAT, {"messages": messages} | logprobs | _how(rng)))
        else:
            logprobs = {"logprobs": 2} if rng.random() < 0.3 else {}
            found.append(Question(TEXT, {"prompt": text, "n": rng.choice([1, 1, 1, 3])} | logprobs | _how(rng)))
    return found


def _how(rng: random.Random) -> dict[str, Any]:
    how = {"max_tokens": rng.choice([1, 3, 8, 20, 40, 80]), "seed": rng.randrange(1000)}
    how |= rng.choice([{"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.9, "min_p": 0.02}])
    forms = [{"json": True}, {"json_schema": SCHEMA}, {"regex": "(yes|no), [a-z ]{5,40}!"}, {"stop": ["the", "\n"]}]
    how |= rng.choice([*forms, {"repetition_penalty": 1.2}, {}, {}, {}, {}])
    return how | ({"speculate": "ngram"} if rng.random() < 0.4 else {})


async def whole(target: Target, question: Question) -> tuple[int, list[Any]]:
    """The status, and the answers."""
    async with request(target, "POST", *question) as answer:
        found = await answer.json()
        if answer.status != 200:
            return answer.status, []
        if question.path == VECTORS:
            return 200, [entry["embedding"] for entry in found["data"]]
        return 200, [Said().then(choice) for choice in found["choices"]]


async def streamed(target: Target, question: Question, most: int | None = None) -> tuple[int, list[Said]]:
    """The same from a stream; after `most` events the client goes away, with what it has heard and status 499."""
    said: dict[int, Said] = {}
    status, left = 200, most
    async with request(target, "POST", question.path, question.body | {"stream": True}) as answer:
        if answer.status != 200:
            return answer.status, []
        async for data in answer.events():
            if data == "[DONE]":
                break
            for choice in json.loads(data)["choices"]:
                said[choice["index"]] = said.get(choice["index"], Said()).then(choice)
            left = None if left is None else left - 1
            if left == 0:
                status = 499
                break
    answers = question.body.get("n", 1)
    return status, [said.get(index, Said()) for index in range(answers)]


async def visit(target: Target, rng: random.Random, known: list, tally: Tally) -> None:
    """One client."""
    kind = rng.choices(["whole", "streamed", "leaves", "gives up", "bad", "raw"], [30, 40, 10, 10, 7, 3])[0]
    question, expected = rng.choice(known)
    if kind in ("streamed", "leaves") and question.path == VECTORS:
        kind = "whole"
    try:
        await asyncio.wait_for(VISITS[kind](target, rng, question, expected, tally), tally.patience)
    except (TimeoutError, asyncio.TimeoutError):
        tally.fault(f"{kind} {question}: no answer after {tally.patience:.0f} s")
    except (OSError, BadAnswer) as error:
        tally.fault(f"{kind} {question.path}: {type(error).__name__}: {error}")


async def _reads(
    target: Target, rng: random.Random, question: Question, expected: list, tally: Tally, stream: bool = False
) -> None:
    status, found = await (streamed if stream else whole)(target, question)
    if status == 200 and found != expected:
        tally.fault(f"{question}: expected {expected!r}, found {found!r}")
    elif status not in (200, 429):
        tally.fault(f"{question}: status {status}")
    tally.counts[f"{'streamed' if stream else 'whole'} {status}"] += 1


async def _leaves(target: Target, rng: random.Random, question: Question, expected: list, tally: Tally) -> None:
    status, found = await streamed(target, question, rng.randint(1, 12))
    if status not in (200, 429, 499):
        tally.fault(f"{question}: status {status}")
    if status != 429 and not all(heard.begins(full) for heard, full in zip(found, expected, strict=True)):
        tally.fault(f"{question}: expected the beginning of {expected!r}, found {found!r}")
    tally.counts[f"left in the answer {status}"] += 1


async def _gives_up(target: Target, rng: random.Random, question: Question, expected: list, tally: Tally) -> None:
    try:
        await asyncio.wait_for(whole(target, question), rng.choice([0.01, 0.1, 0.5]))
    except (TimeoutError, asyncio.TimeoutError):
        tally.counts["gave up"] += 1


async def _asks_badly(target: Target, rng: random.Random, question: Question, expected: list, tally: Tally) -> None:
    path, body = rng.choice(BAD)
    status, _ = await whole(target, Question(path, body))
    if not 400 <= status < 429:
        tally.fault(f"bad {path} {str(body)[:100]}: status {status}")
    tally.counts[f"bad {status}"] += 1


async def _babbles(target: Target, rng: random.Random, question: Question, expected: list, tally: Tally) -> None:
    _, writer = await asyncio.open_connection(target.host, target.port)
    writer.write(rng.choice(RAW))
    await asyncio.sleep(rng.uniform(0, 0.2))
    writer.close()
    tally.counts["raw"] += 1


VISITS = {
    "whole": _reads, "streamed": partial(_reads, stream=True), "leaves": _leaves, "gives up": _gives_up,
    "bad": _asks_badly, "raw": _babbles,
}  # fmt: skip


async def load(target: Target, rng: random.Random, known: list, tally: Tally, seconds: float) -> None:
    """Clients by chance for so long, now and then many at once; returns when the last is gone."""
    end, visits, rate, until = time.monotonic() + seconds, set(), 0, 0.0
    while (now := time.monotonic()) < end:
        if now > until:
            rate, until = rng.choice(RATES), now + rng.uniform(2, 10)
        visits = {task for task in visits if not task.done()}
        burst = rate > 1 and rng.random() < 0.02
        for _ in range(30 if burst else len(visits) < CROWD):
            visits.add(asyncio.create_task(visit(target, rng, known, tally)))
        await asyncio.sleep(min(rng.expovariate(rate), 5))
    await asyncio.gather(*visits)


async def left_over(target: Target, server: int) -> dict[str, float]:
    """What the server holds when nobody asks for anything."""
    for _ in range(100):
        found = await _metrics(target)
        if not any(found[name] for name in found if name.endswith(("running", "waiting", "blocks_used"))):
            break
        await asyncio.sleep(0.1)
    facts = Path(f"/proc/{server}/status").read_text()
    size = {name: int(re.search(rf"{name}:\s+(\d+)", facts)[1]) for name in ("VmRSS", "Threads")}
    kept = ("running", "waiting", "blocks_used", "cache_bytes")
    busy = {name.removeprefix("tinyinfer_"): value for name, value in found.items() if name.endswith(kept)}
    files = len(os.listdir(f"/proc/{server}/fd"))
    return {"MB": size["VmRSS"] / 1000, "threads": size["Threads"], "files": files} | busy


async def _metrics(target: Target) -> dict[str, float]:
    """Figures by name: those of all models together."""
    async with request(target, "GET", "/metrics") as answer:
        text = b"".join([part async for part in answer.parts()]).decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    found: dict[str, float] = defaultdict(float)
    for name, _, value in lines:
        found[name.partition("{")[0]] += float(value)
    return found


async def soak(target: Target, server: subprocess.Popen, minutes: float, seed: int) -> bool:
    """Whether all was well."""
    rng, tally = random.Random(seed), Tally()
    known = []
    for question in questions(rng, 60):
        start = time.monotonic()
        status, said = await whole(target, question)
        tally.patience = max(tally.patience, PATIENT * (time.monotonic() - start))
        if status != 200:
            tally.fault(f"alone {question}: status {status}")
            return False
        known.append((question, said))
    await load(target, rng, known, tally, 20)  # caches fill, pools grow
    seen = [await left_over(target, server.pid)]
    print("at first ", seen[0], flush=True)
    rounds = max(round(minutes), 1)
    for number in range(rounds):
        await load(target, rng, known, tally, 60 * minutes / rounds)
        seen.append(await left_over(target, server.pid))
        print(f"round {number + 1:3}", {name: round(value, 1) for name, value in seen[-1].items()}, flush=True)
    print(dict(sorted(tally.counts.items())))
    end = await _metrics(target)
    if server.poll() is not None:
        tally.fault(f"the server has ended with {server.returncode}")
    first, warm, last = seen[0], seen[len(seen) // 4], seen[-1]  # the allocator takes minutes to have its pools
    for name, value in last.items():
        allowed = warm[name] * 1.05 + 10 if name == "MB" else first[name] + (2 if name == "files" else 0)
        if value > allowed:
            tally.fault(f"{name}: {first[name]:g} at first, {warm[name]:g} after a quarter, {value:g} at the end")
    tried = {name.removeprefix("tinyinfer_").removesuffix("_total"): value for name, value in end.items()}
    tried["429"] = sum(count for name, count in tally.counts.items() if name.endswith("429"))
    print("tried", {name: tried[name] for name in TRIED}, flush=True)
    for name in TRIED:
        if not tried[name]:
            tally.fault(f"{name}: none, so that was not tried")
    return not tally.faults


def main() -> int:
    parser = argparse.ArgumentParser(description="Mixed load on a server for minutes.")
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--slots", default="8")
    parser.add_argument("--queue", default="8")
    parser.add_argument("--kv-cache-bytes", default=str(2**25), help="small, so that it is full at once")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    flags = ["--slots", args.slots, "--queue", args.queue, "--kv-cache-bytes", args.kv_cache_bytes, "-q"]
    with running(our_server(args.model, "--kv-dtype", "float32", *flags)) as server:
        well = asyncio.run(soak(target_of(server.url), server.process, args.minutes, args.seed))
    said, ended = server.said.splitlines(), server.process.returncode
    if said:
        print(f"the server said {len(said)} lines:", "\n".join(said[:40]))
    well = well and ended == 0 and not any("Traceback" in line for line in said)
    print("all was well" if well else "see the faults above")
    return not well


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())

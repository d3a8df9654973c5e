"""Mixed load on a real server for minutes: does it leak, hang, or say anything wrong?

    python examples/soak.py [MODEL] [--minutes 20] [--slots 8] [--queue 8]

Starts `tinyinfer serve MODEL` as a process of its own and sends it what a public server gets: chats and completions of
all lengths, streamed and not, greedy and drawn, with shared beginnings; clients that go away while they wait, in the
prompt or in the answer; requests that are no good, and bytes that are no HTTP; bursts that fill the queue. Each whole
answer must be what the same request gave alone, before anything else ran (keys and values in float32, so that it can).
In between the load stops, and what is left is counted: memory, threads, open files, blocks in use.

Exits with 1 where an answer was wrong, a request hung, or something is left over at the end.
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
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tinyinfer.lab.http_client import BadAnswer, Target, request, target_of
from tinyinfer.lab.load import WORDS

PATIENCE = 120  # seconds after which a request hangs
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BAD = [
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "temperature": -1}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "no_such_field": 1}),
    (CHAT, {"messages": "a"}),
    (TEXT, {"prompt": [10**9]}),
    (TEXT, {"prompt": "word " * 20_000}),
    (TEXT, {"prompt": "a", "n": 0}),
    (TEXT, {"prompt": "a", "model": "another"}),
    (TEXT, []),
]
RAW = [b"", b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\ncontent-length: 999\r\n\r\n{"]


@dataclass
class Tally:
    """What happened."""

    counts: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def fault(self, what: str) -> None:
        self.faults.append(what)
        print("FAULT:", what[:500], flush=True)


def questions(rng: random.Random, count: int) -> list[tuple[str, dict]]:
    """Requests whose answers are known by what they give alone."""
    shared, found = _text(rng, 80), []
    for _ in range(count):
        how = {"max_tokens": rng.choice([1, 3, 8, 20, 40]), "seed": rng.randrange(1000)}
        how |= rng.choice([{"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.9, "min_p": 0.02}])
        text = _text(rng, rng.choice([1, 5, 20, 60, 200]))
        if rng.random() < 0.5:
            messages = [{"role": "user", "content": text}]
            if rng.random() < 0.5:
                messages.insert(0, {"role": "system", "content": shared})
            found.append((CHAT, how | {"messages": messages}))
        else:
            found.append((TEXT, how | {"prompt": text, "n": rng.choice([1, 1, 1, 3])}))
    return found


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


async def whole(target: Target, path: str, body: dict) -> tuple[int, list[str]]:
    """The status, and the texts of the answers."""
    async with request(target, "POST", path, body) as answer:
        found = await answer.json()
        if answer.status != 200:
            return answer.status, []
        return 200, [_said(choice.get("message") or choice) for choice in found["choices"]]


async def streamed(target: Target, path: str, body: dict, leave_after: int | None = None) -> tuple[int, list[str]]:
    """The same from a stream; `leave_after` so many events the client goes away."""
    texts: dict[int, str] = {}
    async with request(target, "POST", path, body | {"stream": True}) as answer:
        if answer.status != 200:
            return answer.status, []
        count = 0
        async for data in answer.events():
            if data == "[DONE]":
                break
            for choice in json.loads(data)["choices"]:
                said = _said(choice.get("delta") or choice)
                texts[choice["index"]] = texts.get(choice["index"], "") + said
            count += 1
            if leave_after is not None and count > leave_after:
                return 499, []
    return 200, [texts[index] for index in sorted(texts)]


def _said(part: dict) -> str:
    return part.get("content") or part.get("text") or ""


async def visit(target: Target, rng: random.Random, known: list, tally: Tally) -> None:
    """One client."""
    kind = rng.choices(["whole", "streamed", "leaves", "gives up", "bad", "raw"], [30, 40, 10, 10, 7, 3])[0]
    (path, body), expected = rng.choice(known)
    try:
        if kind in ("whole", "streamed"):
            ask = whole if kind == "whole" else streamed
            status, texts = await asyncio.wait_for(ask(target, path, body), PATIENCE)
            if status == 200 and texts != expected:
                tally.fault(f"{kind} {path} {body}: expected {expected!r}, found {texts!r}")
            elif status not in (200, 429):
                tally.fault(f"{kind} {path} {body}: status {status}")
            tally.counts[f"{kind} {status}"] += 1
        elif kind == "leaves":
            await asyncio.wait_for(streamed(target, path, body, rng.randint(0, 5)), PATIENCE)
            tally.counts["left in the answer"] += 1
        elif kind == "gives up":
            try:
                await asyncio.wait_for(whole(target, path, body), rng.choice([0.01, 0.1, 0.5]))
            except (TimeoutError, asyncio.TimeoutError):
                tally.counts["gave up"] += 1
        elif kind == "bad":
            path, body = rng.choice(BAD)
            status, _ = await asyncio.wait_for(whole(target, path, body), PATIENCE)
            if not 400 <= status < 429:
                tally.fault(f"bad {path} {str(body)[:100]}: status {status}")
            tally.counts[f"bad {status}"] += 1
        else:
            _, writer = await asyncio.open_connection(target.host, target.port)
            writer.write(rng.choice(RAW))
            await asyncio.sleep(rng.uniform(0, 0.2))
            writer.close()
            tally.counts["raw"] += 1
    except (TimeoutError, asyncio.TimeoutError):
        tally.fault(f"{kind} {path} {body}: no answer after {PATIENCE} s")
    except (OSError, BadAnswer) as error:
        tally.fault(f"{kind} {path}: {type(error).__name__}: {error}")


async def load(target: Target, rng: random.Random, known: list, tally: Tally, seconds: float) -> None:
    """Clients by chance for so long, now and then many at once; returns when the last is gone."""
    end, visits = time.monotonic() + seconds, set()
    while time.monotonic() < end:
        for _ in range(30 if rng.random() < 0.02 else 1):
            visits.add(asyncio.create_task(visit(target, rng, known, tally)))
        visits = {task for task in visits if not task.done()}
        await asyncio.sleep(rng.expovariate(8) if len(visits) < 100 else 1)
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
    async with request(target, "GET", "/metrics") as answer:
        text = b"".join([part async for part in answer.parts()]).decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


async def soak(target: Target, server: subprocess.Popen, minutes: float, seed: int) -> bool:
    """Whether all was well."""
    rng, tally = random.Random(seed), Tally()
    known = []
    for path, body in questions(rng, 40):
        status, texts = await whole(target, path, body)
        assert status == 200, (status, path, body)
        known.append(((path, body), texts))
    await load(target, rng, known, Tally(), 20)  # caches fill, pools grow
    first = await left_over(target, server.pid)
    print("at first ", first, flush=True)
    rounds = max(round(minutes), 1)
    for number in range(rounds):
        await load(target, rng, known, tally, 60 * minutes / rounds)
        last = await left_over(target, server.pid)
        print(f"round {number + 1:3}", {name: round(value, 1) for name, value in last.items()}, flush=True)
    print(dict(sorted(tally.counts.items())))
    if server.poll() is not None:
        tally.fault(f"the server has ended with {server.returncode}")
    for name, value in last.items():
        allowed = first[name] * 1.1 + 20 if name == "MB" else first[name] + (2 if name == "files" else 0)
        if value > allowed:
            tally.fault(f"{name}: {first[name]:g} at first, {value:g} at the end")
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
    command = [sys.executable, "-m", "tinyinfer", "serve", args.model, "--port", "0", "--kv-dtype", "float32"]
    command += ["--slots", args.slots, "--queue", args.queue, "--kv-cache-bytes", args.kv_cache_bytes]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = next(found for line in server.stderr if (found := re.search(r"is ready: (http\S+)", line)))[1]
            said: list[str] = []
            reading = threading.Thread(target=said.extend, args=[server.stderr])  # a full pipe would hold the server up
            reading.start()
            well = asyncio.run(soak(target_of(address), server, args.minutes, args.seed))
        finally:
            server.terminate()
            server.wait(timeout=60)
        reading.join()
    if said:
        print(f"the server said {len(said)} lines:", "".join(said[:40]))
    well = well and server.returncode == 0 and not any("Traceback" in line for line in said)
    print("all was well" if well else "see the faults above")
    return not well


if __name__ == "__main__":
    sys.exit(main())

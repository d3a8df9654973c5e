"""Memory for keys and values: reserved in one piece or taken in blocks; and beginnings of prompts that are shared.

The cache and the tree of prefixes are the engine's own; no model has to run for what they count.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence

from ...cache import DEFAULT_BLOCK_SIZE, KVCache, PrefixTree
from .finding import Drawing, Finding, Table
from .setting import Setting
from .workload import LONGEST, REQUESTS, answer_lengths, prompt_lengths

SLOTS = 8
BLOCKS = (8, 16, 32, 64, 128)  # tokens a block
COURSE_WASTE = "60 to 80 %"
PROMPTS = 24

TOOLS = {
    name: {
        "description": f"{verb} and report what came of it, with the time and the place, as one line of plain text.",
        "parameters": {"path": {"type": "string"}, "limit": {"type": "integer"}, "recursive": {"type": "boolean"}},
        "required": ["path"],
    }
    for name, verb in (
        ("read_file", "Read a file"),
        ("write_file", "Write a file"),
        ("search", "Search files for words"),
        ("run_tests", "Run the tests of a folder"),
    )
}
ROLE = "You are a careful assistant that works on a code base. Think first, call one tool, then say what you did."


def measure(setting: Setting) -> Finding:
    """Waste on the course's 64 requests, and hit rates on an agent's prompts."""
    waste = [("one piece for the longest", longest(), wasted_contiguous(), COURSE_WASTE)]
    waste += [(f"blocks of {size}", size, wasted_in_blocks(setting, size), None) for size in BLOCKS]
    encode, unit = _encoder(setting)
    hits = [(name, *hit_rate(setting, [encode(make(i)) for i in range(PROMPTS)])) for name, make in AGENTS.items()]
    return Finding(
        [
            Table(
                f"{REQUESTS} requests, {SLOTS} at a time", ("keys and values", "tokens", "part wasted", "course"),
                [(name, size, round(part, 4), course) for name, size, part, course in waste],
            ),
            Table(
                f"{PROMPTS} prompts of an agent, one after the other",
                ("prompt", unit, "found in the cache", "hit rate"),
                hits,
            ),
        ],
        _says(waste, hits),
        [_drawing(waste), _hits_drawing(hits)],
    )  # fmt: skip


def _says(waste: Sequence[tuple], hits: Sequence[tuple]) -> str:
    (_, _, whole, _), *blocks = waste
    size, part = next((size, part) for _, size, part, _ in blocks if size == DEFAULT_BLOCK_SIZE)
    first, _, after, unstable = (hit[3] for hit in hits)
    return (
        f"Reserved in one piece for the longest text that may come, {whole:.0%} of the memory is never filled "
        f"({COURSE_WASTE} in the course), as most texts are short; in this engine's blocks of {size} tokens it is "
        f"{part:.0%}, since only the last one of a text is not full. A prompt is found again up to the first token "
        f"that differs, so what varies belongs at the end: {after:.0%} is found with the time after the tools, and "
        f"{first:.0%} with it at the beginning. Keys of JSON that come in another order each time bring that "
        f"{after:.0%} down to {unstable:.0%}, and no error shows it."
    )


def longest() -> int:
    """Tokens that each request must have room for, when nobody knows how long its answer will be."""
    return max(prompt_lengths()) + LONGEST


def running(size: int = SLOTS) -> Iterator[list[tuple[int, int]]]:
    """The requests in each step, as numbers and their texts' lengths: `size` at most, the next when one is done."""
    lengths, prompts = answer_lengths(), prompt_lengths()
    waiting, now = list(range(REQUESTS)), {}
    while waiting or now:
        now = {i: length + 1 for i, length in now.items() if length < prompts[i] + lengths[i]}
        while waiting and len(now) < size:
            i = waiting.pop(0)
            now[i] = prompts[i] + 1
        if now:
            yield list(now.items())


def wasted_contiguous() -> float:
    """The part of the memory reserved that no token fills, over all steps, with room for the longest for each."""
    steps = [[length for _, length in step] for step in running()]
    return 1 - sum(map(sum, steps)) / (longest() * sum(map(len, steps)))


def wasted_in_blocks(setting: Setting, block_size: int) -> float:
    """The same of the engine's cache, as its tables have it."""
    cache = KVCache(setting.config, block_size, "float16")
    pool = cache.pools.index(next((pool for pool in cache.pools if pool.window is None), cache.pools[0]))
    held, filled, reserved = {}, 0, 0
    for step in running():
        lengths = dict(step)
        for i in [i for i in held if i not in lengths]:
            held.pop(i).release()
        for i, length in step:
            sequence = held.setdefault(i, cache.sequence())
            new = length - sequence.length
            sequence.reserve(new)
            sequence.advance(new)
            table = sequence.tables[pool]
            filled += sequence.length - table.first_position
            reserved += len(table.blocks) * block_size
    return 1 - filled / reserved


def _agent(number: int, tools: str, before: str = "", between: str = "", after: str = "") -> str:
    return f"{before}{ROLE}\n{between}Tools:\n{tools}\n{after}Task: look at file number {number} and tidy it.\n"


def _shuffled(number: int) -> str:
    """The tools with the keys of every object in another order each time, as a program without a fixed one writes."""
    rng = random.Random(number)

    def mixed(value):
        if not isinstance(value, dict):
            return value
        keys = list(value)
        rng.shuffle(keys)
        return {key: mixed(value[key]) for key in keys}

    return json.dumps(mixed(TOOLS))


def _now(number: int) -> str:
    return f"It is 2025-03-01 {number % 24:02}:{(7 * number) % 60:02}:{(13 * number) % 60:02}.\n"


SORTED = json.dumps(TOOLS, sort_keys=True)
AGENTS: dict[str, Callable[[int], str]] = {
    "the time at the beginning": lambda i: _agent(i, SORTED, before=_now(i)),
    "the time before the tools": lambda i: _agent(i, SORTED, between=_now(i)),
    "the time after the tools": lambda i: _agent(i, SORTED, after=_now(i)),
    "the time after the tools, keys in no fixed order": lambda i: _agent(i, _shuffled(i), after=_now(i)),
}


def hit_rate(setting: Setting, prompts: Sequence[Sequence[int]]) -> tuple[int, int, float]:
    """Tokens asked for and found, and the second as part of the first, when prompts come one after the other."""
    cache = KVCache(setting.config, dtype="float16")
    tree = PrefixTree(cache)
    for ids in prompts:
        sequence = cache.sequence()
        found, trail = tree.begin(sequence, None, ids)
        sequence.reserve(len(ids) - found)
        sequence.advance(len(ids) - found)
        tree.extend(trail, sequence, ids)
        sequence.release()
    return tree.counts.asked_tokens, tree.counts.found_tokens, tree.counts.hit_rate or 0.0


def _encoder(setting: Setting) -> tuple[Callable[[str], list[int]], str]:
    """Text to ids, and what they are called: bytes where the model came without a tokenizer."""
    if setting.llm.checkpoint.tokenizer_json is None:
        return lambda text: list(text.encode()), "bytes"
    return setting.llm.tokenizer.encode, "tokens"


def _drawing(waste: Sequence[tuple]) -> Drawing:
    lines = {"wasted": [(name.replace(" for", "\nfor"), 100 * part) for name, _, part, _ in waste]}
    return Drawing(
        "Blocks waste only the rest of the last one", "keys and values in", "percent wasted", lines, bars=True
    )


def _hits_drawing(hits: Sequence[tuple]) -> Drawing:
    short = ("time first", "before tools", "after tools", "after tools,\nkeys in no order")
    lines = {"found": [(name, 100 * hit[3]) for name, hit in zip(short, hits, strict=True)]}
    return Drawing("A prompt is found up to what varies", "where the time stands", "percent found", lines, bars=True)

"""What the key-value cache saves: the same tokens, once with it and once with the whole text run at every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from ...cached_sequence import CachedSequence
from ...sampling.candidates import likeliest
from .finding import Drawing, Finding, Table, shown
from .setting import Setting
from .workload import random_ids

PROMPT, NEW = 40, 48
COURSE_TIMES, COURSE_PREFILL, COURSE_STEP = 9, 25.6, 166  # about; milliseconds a token, and a step


def measure(setting: Setting) -> Finding:
    """A prompt of 40 tokens, 48 more by the likeliest token, both ways in turn; the median of each step."""
    prompt = random_ids(setting, PROMPT, NEW)
    ways: list[Callable[[], tuple[list[int], list[float]]]] = [
        lambda: with_cache(setting, prompt),
        lambda: without_cache(setting, prompt),
    ]
    ways[0]()  # what compiles, or is first read from the disk, is not what is asked
    rounds = []
    for number in range(3 if setting.full else 1):
        setting.say(f"round {number + 1}")
        rounds.append([way() for way in ways])
    (kept_ids, _), (anew_ids, _) = rounds[0]
    kept, anew = ([median(times) for times in zip(*(found[way][1] for found in rounds), strict=True)] for way in (0, 1))
    same = sum(a == b for a, b in zip(kept_ids, anew_ids, strict=True))
    return Finding(
        [_ways(kept, anew), _against_course(kept, anew, same)],
        _says(kept, anew, same),
        [_drawing(kept, anew)],
    )


def with_cache(setting: Setting, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The new ids, and the seconds of each: the prompt once, then a token at a time."""
    held = CachedSequence(setting.llm.model)
    return _generate(prompt, lambda ids: held.step(ids[-1]) if held.ids else held.prefill(ids)[0])


def without_cache(setting: Setting, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The same with the whole text run anew for each token."""
    return _generate(prompt, lambda ids: CachedSequence(setting.llm.model).prefill(ids)[0])


def _generate(prompt: list[int], logits_after: Callable[[list[int]], np.ndarray]) -> tuple[list[int], list[float]]:
    ids, times = list(prompt), []
    for _ in range(NEW):
        start = time.perf_counter()
        ids.append(likeliest(logits_after(ids)))
        times.append(time.perf_counter() - start)
    return ids[len(prompt) :], times


def _says(kept: list[float], anew: list[float], same: int) -> str:
    step, token = median(kept[1:]), kept[0] / PROMPT
    tokens = (
        f"All {NEW} tokens are the same both ways, since a token's keys and values depend on what stands before it "
        "alone"
        if same == NEW
        else f"{same} of {NEW} tokens are the same both ways: two that are nearly as likely changed places"
    )
    return (
        f"{tokens}. With the cache a step takes {shown(1000 * step)} ms however long the text is; without it each runs "
        f"the whole text again, and the last takes {shown(1000 * anew[-1])} ms. In all that is "
        f"{sum(anew) / sum(kept):.3g} times as long, where the course has about {COURSE_TIMES}: it goes by what a "
        f"prompt's token costs beside a step, {token / step:.2f} of one here and {COURSE_PREFILL / COURSE_STEP:.2f} "
        "there."
    )


def _ways(kept: list[float], anew: list[float]) -> Table:
    rows = [
        (name, sum(times), 1000 * times[0], 1000 * median(times[1:]), 1000 * times[-1])
        for name, times in (("with the cache", kept), ("without", anew))
    ]
    columns = ("", "seconds in all", "first step, ms", "median of the others, ms", "last, ms")
    return Table(f"a prompt of {PROMPT} tokens and {NEW} more", columns, rows)


def _against_course(kept: list[float], anew: list[float], same: int) -> Table:
    rows = [
        ("tokens that are the same both ways", same, NEW),
        ("times faster with the cache", sum(anew) / sum(kept), COURSE_TIMES),
        ("prefill, ms a token", 1000 * kept[0] / PROMPT, COURSE_PREFILL),
        ("a step of decoding, ms", 1000 * median(kept[1:]), COURSE_STEP),
    ]
    return Table("beside the course", ("", "here", "course"), rows)


def _drawing(kept: list[float], anew: list[float]) -> Drawing:
    lines = {
        name: [(step, 1000 * seconds) for step, seconds in enumerate(times, 1)]
        for name, times in (("with the cache", kept), ("without", anew))
    }
    return Drawing("Without a cache every token costs a whole prompt", "token", "milliseconds", lines)

"""What memory a text takes while it is generated, with the key-value cache and without: the process's own peak.

Each way is run in a process of its own, since memory that one has freed may be handed to the next.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...cached_sequence import CachedSequence
from ...model.tensors import float_rows
from ...reference import forward
from .finding import Drawing, Finding, Table
from .setting import Setting
from .workload import random_ids

if TYPE_CHECKING:
    from ...llm import LLM

MB = 2**20
LENGTHS = (64, 128, 256)
COURSE_TOKENS, COURSE_RATIO = 256, 8.3
# glibc keeps memory that was freed for what comes next, which then would not be seen; other systems don't know these
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
Way = Callable[["LLM", list[int]], int]  # runs ids, gives the bytes that the cache held at the end
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure(setting: Setting) -> Finding:
    """The peak of 64, 128 and 256 tokens above that of one, for the three ways."""
    random_ids(setting, max(LENGTHS))  # says so where the context is too short
    found = {}
    for name, way in WAYS.items():
        setting.say(name)
        found[name] = in_own_process(setting, way)
    rows = [
        (name, *(peak and peak / MB for peak in peaks["peaks"]), peaks["cache"] / MB) for name, peaks in found.items()
    ]
    columns = ("", *(f"{n} tokens, MiB" for n in LENGTHS), "of which keys and values, by the cache's own count")
    cached, _, reference = (peaks["peaks"][-1] for peaks in found.values())
    ratio = reference / cached if cached and reference else None
    lines = {
        name: [(n, max(peak, 2**12) / MB) for n, peak in zip(LENGTHS, peaks["peaks"], strict=True) if peak is not None]
        for name, peaks in found.items()
    }
    drawing = Drawing("What a text takes beside the weights", "tokens", "MiB at the peak", lines, True, True)
    return Finding(
        [
            Table("peak memory, above that of a single token", columns, rows),
            Table(
                f"{COURSE_TOKENS} tokens", ("", "here", "course"),
                [("times the memory without the cache, as the reference does it", ratio, COURSE_RATIO)],
            ),
        ],
        _says(*(peaks["peaks"][-1] for peaks in found.values()), found["with the cache"]["cache"]),
        [drawing] if any(lines.values()) else [],
    )  # fmt: skip


def _says(cached: int | None, engine: int | None, reference: int | None, held: int) -> str:
    if not (cached and engine and reference):
        return (
            "This system does not tell a process the most memory it had (it is Linux that does), so cells are empty. "
            f"The cache's own count is there: {held / MB:.3g} MiB for {max(LENGTHS)} tokens."
        )
    return (
        f"The cache is memory that is kept, {held / MB:.3g} MiB by its own count, and the way without it takes "
        f"{reference / cached:.3g} times as much at its peak as the reference has it: vectors, scores and a row of "
        f"logits of all {max(LENGTHS)} tokens at once. This engine, run without its cache, takes {engine / cached:.3g} "
        "times as much, as it makes one row of logits and never holds the square of scores. So the ratio, "
        f"{COURSE_RATIO} in the course, goes by what is held beside and by the vocabulary, and less by the cache."
    )


def with_cache(llm: LLM, ids: list[int]) -> int:
    """One token after the other; gives the bytes that the cache held at the end."""
    held = CachedSequence(llm.model)
    for id in ids:
        held.step(id)
    return held.sequence.cache.nbytes


def without_cache(llm: LLM, ids: list[int]) -> int:
    """The last and largest of the passes that run the whole text; what it keeps is thrown away."""
    held = CachedSequence(llm.model)
    held.prefill(ids)
    return held.sequence.cache.nbytes


def by_reference(llm: LLM, ids: list[int]) -> int:
    """The same by the transformer that has no cache, all scores and all logits at once."""
    forward(llm.config, llm.model.tensors, np.array(ids))
    return 0


WAYS = {
    "with the cache": with_cache,
    "without, by this engine": without_cache,
    "without, as reference.py has it": by_reference,
}


def in_own_process(setting: Setting, way: Way) -> dict:
    """`peaks_of` a way, by a new Python: {"peaks": [bytes or None, ...], "cache": bytes}."""
    command = [sys.executable, "-m", __name__, str(setting.llm.path), way.__name__]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, **GIVEN_BACK})
    return json.loads(done.stdout)


def peaks_of(llm: LLM, way: Way) -> dict:
    """What each of LENGTHS takes at its peak, in bytes above the peak of one token; and the cache of the last."""
    setting = Setting(str(llm.path))
    setting.llm = llm
    ids = random_ids(setting, max(LENGTHS))
    float_rows(llm.model.tensors.embedding, np.array(ids))  # mapped: counted as memory once it is read
    way(llm, ids[:1])  # compiles, and reads the weights
    (one, _), peaks = _peak_of(lambda: way(llm, ids[:1])), []
    for n in LENGTHS:
        peak, cache = _peak_of(lambda: way(llm, ids[:n]))  # noqa: B023
        peaks.append(None if peak is None or one is None else max(peak - one, 0))
    return {"peaks": peaks, "cache": cache}


def _peak_of(work: Callable[[], int]) -> tuple[int | None, int]:
    """The most memory that this process had at once meanwhile, in bytes, and what the work gives.

    The first is None where the system doesn't say.
    """
    gc.collect()  # what compiling and loading have left
    peak = None
    with suppress(OSError):
        CLEAR.write_text("5")  # the peak begins anew: man 5 proc
    result = work()
    with suppress(OSError, StopIteration):
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        peak = int(line.split()[1]) * 1024 if CLEAR.exists() else None
    return peak, result


if __name__ == "__main__":
    from ...llm import load

    sys.stdout.write(
        json.dumps(peaks_of(load(sys.argv[1]), next(w for w in WAYS.values() if w.__name__ == sys.argv[2])))
    )

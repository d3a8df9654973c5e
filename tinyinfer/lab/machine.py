"""This machine: what it is, how busy it is, and how fast it reads memory and multiplies at best."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .timing import seconds

if TYPE_CHECKING:
    from ..kernels.threads import Team

MOST_BYTES = 1 << 30  # that reading is measured with
PIECE_BYTES = 1 << 20  # of them, that a thread reads at a time
PIECES = 64  # of multiplications, for each thread
TABLE = 4096  # bytes that are multiplied, over and over: they stay in the nearest cache
ROUNDS = 2000  # through the table, for each piece: some 20 milliseconds
CALLS = 3  # of which the fastest counts


class ReadProbe:
    """How fast a team of threads reads memory: they sum an array of int64 that is larger than the caches."""

    def __init__(self, team: Team, nbytes: int = MOST_BYTES):
        """`nbytes` is rounded to whole pieces, at least one; see `probe_bytes`."""
        self.team = team
        # written, since pages that never were would all be read from the same zeros
        self.numbers = np.ones((max(nbytes // PIECE_BYTES, 1), PIECE_BYTES // 8), np.int64)
        self.sums = np.zeros(len(self.numbers), np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.numbers.nbytes

    def rate(self) -> float:
        """Bytes a second."""
        from ..kernels.probe import sum_pieces

        return self.nbytes / _team_seconds(self.team, sum_pieces, self.numbers, self.numbers.view(np.uint8), self.sums)


class MultiplyProbe:
    """How fast a team of threads multiplies and adds what lies in the nearest cache, by the kernels' own instructions.

    kind    "int8", by the instructions for 4-bit weights and 8-bit activations, or "float32"
    """

    def __init__(self, team: Team, kind: str):
        from ..kernels.probe import ROWS

        self.team, self.kind = team, kind
        self.pieces = PIECES * team.size
        if kind == "int8":
            self.table, self.x = np.full((TABLE // (4 * ROWS), ROWS, 4), 15, np.uint8), np.ones((12, 4), np.int8)
        else:
            self.table, self.x = np.ones((TABLE // (4 * ROWS), ROWS), np.float32), np.ones(12, np.float32)
        self.sums = np.zeros((self.pieces, len(self.x), ROWS), np.float32)

    @property
    def count(self) -> int:
        """Multiply-adds of one call."""
        return self.pieces * ROUNDS * self.table.size * len(self.x)

    def rate(self) -> float:
        """Multiply-adds a second."""
        from ..kernels.probe import multiply_floats, multiply_integers

        kernel = multiply_integers if self.kind == "int8" else multiply_floats
        return self.count / _team_seconds(self.team, kernel, self.table, self.x, ROUNDS, self.sums)


def _team_seconds(team: Team, kernel: Callable, *arguments: object) -> float:
    """The fastest of some calls: the first after a while is slower, until pages are found again and threads awake."""
    from ..kernels.probe import COUNTERS

    def call() -> None:
        counters = np.zeros(COUNTERS, np.int64)
        team.run(lambda thread: kernel(*arguments, counters))

    kernel(*arguments, np.full(COUNTERS, 1 << 40))  # nothing is left to do: compiles it, which a team can't
    return min(seconds(call) for _ in range(CALLS))


def probe_bytes() -> int:
    """How much memory to measure reading with: a GiB, or a quarter of what is free where that is less."""
    free = free_memory()
    return MOST_BYTES if free is None else min(MOST_BYTES, free // 4)


def load_average() -> float | None:
    """How many processes wanted to run during the last minute; None where the system doesn't say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # not on Windows
        return None


def processor_name() -> str:
    """What the processor calls itself."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def free_memory() -> int | None:
    """Bytes that can be taken without swapping, None where the system doesn't say; a container's limit counts."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return _physical_memory()
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no such limit, or the word "max"
        return available
    return min(available, max(limit - used, 0))


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None


def last_cache_bytes(cpu: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int | None:
    """Bytes of the largest cache, None where the system doesn't say. A virtual machine may have but a share of it."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = []
    for path in cpu.glob("index*/size"):
        with suppress(OSError, ValueError, KeyError):
            text = path.read_text().strip()
            found.append(int(text[:-1]) * units[text[-1]])
    return max(found, default=None)

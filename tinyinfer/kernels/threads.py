"""A team of threads that share pieces of work.

The caller offers a job and sets to work on it at once; the others join in as they can, and whoever is late finds
nothing left to do. A thread that has just worked looks out for the next job for a moment, without the GIL, since a
text is many steps in a row, and then sleeps: an idle team costs nothing.

Where another program keeps a core busy, the system takes it from one of the team's threads for milliseconds at a time,
and whatever piece that thread has holds up all: worse than to do without it. So when a small step had to wait long for
a piece, the team works with a thread less for a while, and then tries again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import numpy as np

from ..errors import BadRequest
from .cores import usable_cores
from .memory import count_up, read_ticks, wait_for

MOST_THREADS = 1024
LOOKOUT_SECONDS = 500e-6  # for the next job, before a thread goes to sleep
PATIENCE_SECONDS = 60e-6  # for others' pieces, some microseconds each, before the core is given to whoever needs it
SMALL_STEP = 16  # rows: with more, pieces take long by themselves
HELD_UP = 0.35  # of a step's time spent in waits beyond that: with one thread less it would have been shorter
FIRST_PAUSE, LAST_PAUSE = 0.01, 0.32  # seconds for which a team that was held up does with a thread less


class Team:
    """`size` threads: the caller, and `size - 1` of the team's own, started when first needed.

    Any number of callers may use a team at once. After a fork, the child's team starts threads of its own.
    What is run must be compiled beforehand: a Ctrl-C while one thread waits for another's compilation can leave a lock
    of Numba's held for good.
    waited   int64 [1]: ticks for which threads had to wait for others beyond their patience
    """

    def __init__(self, size: int):
        self.size = size
        self.waited = np.zeros(1, np.int64)
        some = np.zeros(1, np.int64)
        for kernel, arguments in ((read_ticks, ()), (count_up, (some, 0)), (wait_for, (some, 0, 1, 0))):
            kernel(*arguments)  # compiles it, or finds it compiled
        self._created, self._rate = (time.perf_counter(), read_ticks()), 0.0
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._started = False
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._asleep = 0
        self._offers = np.zeros(1, np.int64)  # how many jobs were ever offered; read without the GIL
        self._job: tuple[Callable[[int], None], int] | None = None
        self._missing = 0  # threads that the team does without
        self._pause, self._until = FIRST_PAUSE, 0.0  # how long, and until when

    def ticks(self, seconds: float) -> int:
        """How many ticks of the processor's clock that is."""
        if not self._rate:
            elapsed = time.perf_counter() - self._created[0]
            rate = (read_ticks() - self._created[1]) / elapsed
            if elapsed < 0.01:  # not yet to be relied on
                return int(rate * seconds)
            self._rate = rate
        return int(self._rate * seconds)

    def size_for(self, rows: int) -> int:
        """How many threads to take for a step of so many rows: fewer while small steps are held up."""
        if self._missing and time.perf_counter() >= self._until:
            self._missing -= 1
            self._until = time.perf_counter() + self._pause
        return self.size - self._missing if rows <= SMALL_STEP else self.size

    def note(self, rows: int, waited: int, seconds: float) -> None:
        """After a step: what it added to `waited`, and how long it took."""
        if rows > SMALL_STEP:
            return
        if waited < HELD_UP * self.ticks(seconds):
            self._pause = max(FIRST_PAUSE, 0.95 * self._pause)
        elif self._missing < self.size - 1:
            self._missing += 1
            self._until = time.perf_counter() + self._pause
            self._pause = min(LAST_PAUSE, 2 * self._pause)

    def run(self, work: Callable[[int], None], size: int | None = None) -> None:
        """Have `work` called by this thread and, as they come, `size - 1` others; return when this thread's call does.

        By default all join in. `work` is given the number of the thread: 0 for the caller, and always the same for each
        of the team's own, whatever the job.

        `work` claims pieces until none is left, waits for those that others have claimed, and does not raise.
        """
        size = size or self.size
        try:
            if size > 1:
                self._offer(work, size)
            work(0)
        except BaseException:
            work(0)  # Ctrl-C, just before it began: others may be at work, and what was offered must end here
            raise
        if self._job is not None and self._job[0] is work:
            self._job = None  # it holds arrays

    def _offer(self, work: Callable[[int], None], size: int) -> None:
        if not self._started:
            self._start()
        self._job = work, size
        count_up(self._offers, 0)
        if self._asleep:
            with self._lock:
                self._wake.notify_all()

    def _start(self) -> None:
        with self._lock:
            if self._started:
                return
            self._started = True
            with suppress(RuntimeError):  # where the system gives no more threads, those that there are will do
                for index in range(1, self.size):
                    name = f"tinyinfer-{index}"
                    threading.Thread(target=self._serve, args=(index,), name=name, daemon=True).start()

    def _serve(self, index: int) -> None:
        seen = 0
        while True:
            if not wait_for(self._offers, 0, seen + 1, self.ticks(LOOKOUT_SECONDS)):
                self._sleep_until_offered(seen)
            seen = int(self._offers[0])
            job = self._job
            if job is not None and index < job[1]:
                with suppress(Exception):  # whatever it is, the caller's own call tells
                    job[0](index)
            job = None  # it holds arrays, and this thread may sleep for long

    def _sleep_until_offered(self, seen: int) -> None:
        with self._lock:
            self._asleep += 1
            self._wake.wait_for(lambda: self._offers[0] > seen)
            self._asleep -= 1


def team_of(size: int | None = None) -> Team:
    """The team of so many threads, which all that ask for it share; None: as many as TINYINFER_THREADS says, else one
    for each physical core that the process may use.

    Raises `BadRequest` for what is no number of threads.
    """
    if size is not None:
        if type(size) is not int or not 1 <= size <= MOST_THREADS:
            raise BadRequest(f"threads should be {_EXPECTED}, found {repr(size)[:80]}", "threads")
        return _team(size)
    wanted = os.environ.get("TINYINFER_THREADS")
    if wanted is None:
        return _team(min(usable_cores(), MOST_THREADS))
    if not (wanted.isascii() and wanted.isdecimal() and len(wanted) < 5 and 1 <= int(wanted) <= MOST_THREADS):
        raise BadRequest(f"TINYINFER_THREADS should be {_EXPECTED}, found {wanted[:80]!r}", "TINYINFER_THREADS")
    return _team(int(wanted))


_EXPECTED = f"a whole number from 1 to {MOST_THREADS}"


@cache
def _team(size: int) -> Team:
    return Team(size)

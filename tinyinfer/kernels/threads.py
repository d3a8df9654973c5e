"""A team of threads that share pieces of work.

The caller offers a job and sets to work on it at once; the others join in as they can, and whoever is late finds
nothing left to do. A thread that has just worked looks out for the next job for a moment, without the GIL, since a
decode step has hundreds of them in a row, and then sleeps: an idle team costs nothing, and a busy neighbour on the
machine slows it by no more than the core it takes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import numpy as np

from ..errors import BadRequest
from .memory import count_up, wait_for

MOST_THREADS = 1024
LOOKOUT_SPINS = 20_000  # about half a millisecond


class Team:
    """`size` threads: the caller, and `size - 1` of the team's own, started when first needed.

    Any number of callers may use a team at once. After a fork, the child's team starts threads of its own.
    """

    def __init__(self, size: int):
        self.size = size
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._started = False
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._asleep = 0
        self._offers = np.zeros(1, np.int64)  # how many jobs were ever offered; read without the GIL
        self._job: Callable[[], None] | None = None

    def run(self, work: Callable[[], None]) -> None:
        """Have `work` called by this thread and, as they come, the others; return when this thread's call does.

        `work` claims pieces until none is left, waits for those that others have claimed, and does not raise.
        """
        try:
            if self.size > 1:
                self._offer(work)
            work()
        except BaseException:
            work()  # Ctrl-C, just before it began: others may be at work, and what was offered must end here
            raise
        if self._job is work:
            self._job = None  # it holds arrays

    def _offer(self, work: Callable[[], None]) -> None:
        if not self._started:
            self._start()
        self._job = work
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
                    threading.Thread(target=self._serve, name=f"tinyinfer-{index}", daemon=True).start()

    def _serve(self) -> None:
        seen = 0
        while True:
            if not wait_for(self._offers, 0, seen + 1, LOOKOUT_SPINS):
                self._sleep_until_offered(seen)
            seen = int(self._offers[0])
            job = self._job
            if job is not None:
                with suppress(Exception):  # whatever it is, the caller's own call tells
                    job()
            job = None  # it holds arrays, and this thread may sleep for long

    def _sleep_until_offered(self, seen: int) -> None:
        with self._lock:
            self._asleep += 1
            self._wake.wait_for(lambda: self._offers[0] > seen)
            self._asleep -= 1


@lru_cache(maxsize=1)
def default_team() -> Team:
    """The team that the model's products use: TINYINFER_THREADS threads, else a thread for each core allowed."""
    wanted = os.environ.get("TINYINFER_THREADS")
    if wanted is None:
        return Team(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if not (wanted.isdecimal() and len(wanted) < 5 and 1 <= int(wanted) <= MOST_THREADS):
        expected = f"a whole number from 1 to {MOST_THREADS}"
        raise BadRequest(f"TINYINFER_THREADS should be {expected}, found {wanted[:80]!r}", "TINYINFER_THREADS")
    return Team(int(wanted))

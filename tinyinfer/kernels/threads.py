"""A team of threads that share the rows of a product.

Each works in code that has released the GIL. A thread without work sleeps; nothing spins, so a busy neighbour on the
machine slows the team down by no more than the core it takes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import lru_cache
from queue import SimpleQueue

from ..errors import BadRequest


class Team:
    """`size` threads: the caller, and `size - 1` of the team's own, started when first needed.

    Any number of callers may use a team at once. After a fork, the child's team starts threads of its own.
    """

    def __init__(self, size: int):
        self.size = size
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started_in = 0  # the process that the threads belong to
        self._starting = threading.Lock()

    def run(self, work: Callable[[int], None]) -> None:
        """Do work(0) to work(size - 1), the first in this thread; return when all are done.

        What any of them raises is raised here, once all have ended.
        """
        if self._started_in != os.getpid():
            self._start()
        shares = [_Share(work, index) for index in range(1, self.size)]
        for share in shares:
            self._tasks.put(share.run)
        try:
            work(0)
        finally:
            for share in shares:
                share.done.acquire()
        for share in shares:
            if share.error is not None:
                raise share.error

    def _start(self) -> None:
        with self._starting:
            if self._started_in == os.getpid():
                return
            self._tasks = SimpleQueue()
            for index in range(1, self.size):
                threading.Thread(target=_serve, args=(self._tasks,), name=f"tinyinfer-{index}", daemon=True).start()
            self._started_in = os.getpid()


class _Share:
    def __init__(self, work: Callable[[int], None], index: int):
        self.work, self.index = work, index
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self.work(self.index)
        except BaseException as error:  # raised again in the caller's thread
            self.error = error
        finally:
            self.done.release()


def _serve(tasks: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        tasks.get()()


@lru_cache(maxsize=1)
def default_team() -> Team:
    """The team that the model's products use: TINYINFER_THREADS threads, else a thread for each core allowed."""
    wanted = os.environ.get("TINYINFER_THREADS")
    if wanted is None:
        return Team(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if not wanted.isdecimal() or int(wanted) < 1:
        raise BadRequest(f"TINYINFER_THREADS should be a whole number from 1, found {wanted!r}", "TINYINFER_THREADS")
    return Team(int(wanted))

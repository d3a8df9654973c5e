"""Whose step is next, where several threads, or several models on the same cores, want to run one."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

GRACE = 0.005  # seconds in which whoever was last may come back, as one who decodes does: what lies between two steps


@dataclass(eq=False)
class _Share:
    """What one of them has had."""

    used: float = 0.0  # seconds
    left: float | None = None  # when its last turn ended


@dataclass(eq=False)
class _Place:
    """In the line of those that wait: what its share had used by then, and when it came."""

    used: float
    arrival: int
    share: _Share


class Turns:
    """One step at a time: whoever has used the least time goes first, among equals whoever came first.

    So two models that are both busy have half of the cores each, however long their steps are: the one with the short
    steps makes several while the other waits. It draws tokens between them, and must not lose its turn by that: the
    other waits for a moment before it goes ahead of one that has used less. Who was away has no claim to what it left
    unused. The idea is that of fair queueing (start-time fair queueing, https://doi.org/10.1109/90.649569).
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, grace: float = GRACE):
        """`clock` says how long a turn took."""
        self._clock, self._grace = clock, grace
        self._reset()
        if hasattr(os, "register_at_fork"):  # a thread may have its turn just then; the child has no such thread
            me = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: (turns := me()) and turns._reset())

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._shares: weakref.WeakKeyDictionary[object, _Share] = weakref.WeakKeyDictionary()
        self._waiting: list[_Place] = []
        self._arrivals = count()
        self._turn: _Place | None = None  # that of whoever has it
        self._time = 0.0  # what whoever had the last one had used when it began

    @contextmanager
    def turn(self, who: object) -> Iterator[None]:
        """Wait until it is the turn of `who`, which may be several threads, and keep others waiting in the block."""
        place = None
        try:
            with self._changed:
                place = self._place_of(who)
                self._waiting.append(place)
                while not self._may_begin(place):
                    self._changed.wait(self._grace if self._is_next(place) else None)
                self._waiting.remove(place)
                self._turn, self._time = place, place.used
            start = self._clock()
            yield
            place.share.used += max(self._clock() - start, 0.0)
        finally:  # whatever interrupts it, the place is given up
            with self._changed:
                self._give_up(place)

    def _place_of(self, who: object) -> _Place:
        share = self._shares.setdefault(who, _Share())
        share.used = max(share.used, self._time)
        return _Place(share.used, next(self._arrivals), share)

    def _give_up(self, place: _Place | None) -> None:
        if place in self._waiting:
            self._waiting.remove(place)
        if place is not None and self._turn is place:
            self._turn, place.share.left = None, time.monotonic()
        self._changed.notify_all()

    def _is_next(self, place: _Place) -> bool:
        return self._turn is None and min(self._waiting, key=lambda other: (other.used, other.arrival)) is place

    def _may_begin(self, place: _Place) -> bool:
        """Whether nobody else has a turn, waits with more right to it, or is likely to come back and have it."""
        since = time.monotonic() - self._grace
        return self._is_next(place) and not any(
            share is not place.share and share.used < place.used and share.left is not None and share.left > since
            for share in self._shares.values()
        )

"""What things cost here and now: running medians of measured times, by size, with straight lines between.

A size is not thought dearer than a larger one, and what was measured once or twice counts at its least, and not for
long: otherwise one moment in which the machine did something else could rule a size out for good.
"""

from __future__ import annotations

import statistics
from bisect import bisect
from collections import deque

RECENT = 15  # measurements of a size that count
FEW = 3  # fewer than that are forgotten after LONG measurements of other sizes
LONG = 64
GROWTH = 0.25  # of the first, for each more, as long as nothing but sizes of 1 were measured: a first guess alone


class Costs:
    """Seconds by size, 1 and more."""

    def __init__(self):
        """Nothing is known."""
        self._recent: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._sizes: list[int] = []
        self._last: dict[int, int] = {}  # when it was measured, in measurements of any size
        self._count = 0

    def note(self, size: int, seconds: float) -> None:
        """One measurement."""
        recent = self._recent.setdefault(size, deque(maxlen=RECENT))
        recent.append(seconds)
        self._count += 1
        self._last[size] = self._count
        old = [at for at, last in self._last.items() if self._count - last > LONG and len(self._recent[at]) < FEW]
        for at in old:
            del self._recent[at], self._last[at]
        if old or len(recent) == 1:
            self._sizes = sorted(self._recent)
        least = float("inf")
        for at in reversed(self._sizes):
            found = self._recent[at]
            least = min(least, min(found) if len(found) < FEW else statistics.median(found))
            self._medians[at] = least
        for at in old:
            del self._medians[at]

    def known(self, size: int) -> bool:
        """Whether that size was measured."""
        return size in self._medians

    def of(self, size: int) -> float:
        """Seconds: measured, or on the line through the nearest sizes that were; 0 where nothing was."""
        if size in self._medians or not self._sizes:
            return self._medians.get(size, 0.0)
        after = bisect(self._sizes, size)
        if len(self._sizes) == 1:
            only = self._sizes[0]
            return self._medians[only] * (1 + GROWTH * (size - 1)) / (1 + GROWTH * (only - 1))
        low, high = self._sizes[after - 1 : after + 1] if 0 < after < len(self._sizes) else self._ends(after)
        slope = (self._medians[high] - self._medians[low]) / (high - low)
        return max(self._medians[low] + slope * (size - low), 0.0)

    def _ends(self, after: int) -> list[int]:
        return self._sizes[:2] if after == 0 else self._sizes[-2:]

"""What things cost here and now: running quartiles of measured times, by size, with straight lines between.

The lower quartile of the last measurements, as whatever else the machine does only ever adds to them. A size is not
thought dearer than a larger one, and what has not been measured for long is forgotten: otherwise a moment in which the
machine did something else could rule a size out for good.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, deque

RECENT = 15  # measurements of a size that count
LONG = 64  # measurements of others after which a size above 1 is forgotten
GROWTH = 0.25  # of the first, for each more, as long as nothing but sizes of 1 were measured: a first guess alone


class Costs:
    """Seconds by size, 1 and more."""

    def __init__(self):
        """Nothing is known."""
        self._recent: dict[int, deque[float]] = {}
        self._typical: dict[int, float] = {}  # of each size by itself
        self._known: dict[int, float] = {}  # no dearer than larger ones
        self._sizes: list[int] = []
        self._last: dict[int, int] = {}  # when it was measured, in measurements of any size
        self._count = 0
        self._counts: Counter[int] = Counter()

    def note(self, size: int, seconds: float) -> None:
        """One measurement."""
        recent = self._recent.setdefault(size, deque(maxlen=RECENT))
        recent.append(seconds)
        self._count += 1
        self._counts[size] += 1
        self._last[size] = self._count
        self._typical[size] = sorted(recent)[len(recent) // 4]
        for at in [at for at, last in self._last.items() if at > 1 and self._count - last > LONG]:
            del self._recent[at], self._last[at], self._typical[at]
        self._sizes = sorted(self._recent)
        self._known, least = {}, float("inf")
        for at in reversed(self._sizes):
            self._known[at] = least = min(least, self._typical[at])

    def count(self, size: int) -> int:
        """How many measurements there were of that size."""
        return self._counts[size]

    def of(self, size: int) -> float:
        """Seconds: measured, or on the line through the nearest sizes that were; 0 where nothing was."""
        if size in self._known or not self._sizes:
            return self._known.get(size, 0.0)
        after = bisect(self._sizes, size)
        if len(self._sizes) == 1:
            only = self._sizes[0]
            return self._known[only] * (1 + GROWTH * (size - 1)) / (1 + GROWTH * (only - 1))
        low, high = self._sizes[after - 1 : after + 1] if 0 < after < len(self._sizes) else self._ends(after)
        slope = (self._known[high] - self._known[low]) / (high - low)
        return max(self._known[low] + slope * (size - low), 0.0)

    def _ends(self, after: int) -> list[int]:
        return self._sizes[:2] if after == 0 else self._sizes[-2:]

"""How often drafts were right."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

FADE = 0.95  # what a draft counts for, with each one after it
PRIOR = 0.5  # of a kind never tried, an id is taken to be right as often as not; it counts as one try


class Acceptance:
    """How often the ids of one kind of draft were right, place by place."""

    def __init__(self):
        """Nothing was tried."""
        self._right: list[float] = []
        self._tried: list[float] = []

    def note(self, accepted: int, rejected: bool) -> None:
        """Of one draft so many were right, and the next one, if any was looked at, was wrong."""
        places = accepted + rejected
        right = [n * FADE for n in self._right] + [0.0] * (places - len(self._right))
        tried = [n * FADE for n in self._tried] + [0.0] * (places - len(self._tried))
        for place in range(places):
            tried[place] += 1
            right[place] += place < accepted
        self._right, self._tried = right, tried

    def chances(self, depth: int) -> list[float]:
        """That the id at each place is right, if those before are: from what the places have in common, and its own."""
        common = (sum(self._right) + PRIOR) / (sum(self._tried) + 1)
        found = [(right + 2 * common) / (tried + 2) for right, tried in zip(self._right, self._tried, strict=True)]
        return found[:depth] + [common] * (depth - len(found))

    def tokens(self, depth: int) -> list[float]:
        """How many tokens to expect of a step, for drafts of a depth of 0, 1, ... `depth`."""
        return list(accumulate(accumulate([1.0, *self.chances(depth)], mul)))

"""Measuring on a machine that others use too: samples, their median and spread, and several things in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Samples:
    """Measured values of one thing, in the order in which they came; at least one."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """What is reported: a few disturbed samples do not move it far."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.values)


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes by the clock on the wall, in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turn(
    measures: Sequence[Callable[[], float]],
    repeats: int,
    warmups: int = 1,
    tick: Callable[[], object] = lambda: None,
) -> list[Samples]:
    """`repeats` samples of each measure, taken in rounds, so that a noisy moment falls on all and not on one.

    A measure gives one sample, in whatever unit. Each is first called `warmups` times for nothing: compilation, page
    faults and cold caches are not what is asked. `tick` is called after every call, (warmups + repeats) * measures.
    """
    rounds = []
    for _ in range(warmups + repeats):
        found = []
        for measure in measures:
            found.append(measure())
            tick()
        rounds.append(found)
    return [Samples(values) for values in zip(*rounds[warmups:], strict=True)]

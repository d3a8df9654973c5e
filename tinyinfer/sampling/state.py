"""What the steps of one sequence may go by: what was said, how often, and what mirostat has learnt."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from copy import copy

import numpy as np

from .params import SamplingParams


class State:
    """The past of one sequence. Steps read it; only `accept` and mirostat's own `learn` change it."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int] = ()):
        """Begin after `prompt_ids`; `params` are resolved."""
        self.seed = params.seed
        self.ids = list(prompt_ids)  # of prompt and output
        self.prompt_length = len(self.ids)
        self.repeated = Window(params.repetition_window if params.repetition_penalty != 1 else 0, self.ids)
        self.frequent = Window(params.frequency_window if params.frequency_penalty else 0)
        self.present = Window(params.presence_window if params.presence_penalty else 0)
        self.surprise_limit = 2 * params.mirostat_tau  # bits; mirostat's mu

    @property
    def output_length(self) -> int:
        """How many tokens were chosen."""
        return len(self.ids) - self.prompt_length

    def counted(self) -> np.ndarray:
        """The ids that penalties are about, int64 [n], ascending."""
        found = [window.counts()[0] for window in (self.repeated, self.frequent, self.present)]
        return np.unique(np.concatenate(found))

    def fork(self) -> State:
        """A second state with the same past."""
        twin = copy(self)
        twin.ids = list(self.ids)
        twin.repeated, twin.frequent, twin.present = self.repeated.fork(), self.frequent.fork(), self.present.fork()
        return twin

    def accept(self, id: int) -> None:
        """A token was chosen."""
        self.ids.append(id)
        for window in (self.repeated, self.frequent, self.present):
            window.push(id)

    def coin(self) -> float:
        """A random number from [0, 1) that goes by seed and position alone, for steps that leave things to chance.

        It is no part of the stream that tokens are drawn with, and can be asked for any number of times.
        """
        return np.random.Generator(np.random.PCG64([self.seed, 1]).advance(len(self.ids))).random()


class Window:
    """How often each id stands among the last `size` ones; -1 is all, 0 none."""

    def __init__(self, size: int, ids: Sequence[int] = ()):
        recent = ids if size < 0 else ids[max(len(ids) - size, 0) :]
        self._counts = Counter(recent)
        self._recent = None if size < 0 else deque(recent, size)

    def fork(self) -> Window:
        """A second window with the same past."""
        twin = copy(self)
        twin._counts, twin._recent = copy(self._counts), copy(self._recent)
        return twin

    def push(self, id: int) -> None:
        """One more id; the first one leaves where there are too many."""
        if self._recent is not None:
            if self._recent.maxlen == 0:
                return
            if len(self._recent) == self._recent.maxlen:
                self._drop(self._recent[0])
            self._recent.append(id)
        self._counts[id] += 1

    def _drop(self, id: int) -> None:
        self._counts[id] -= 1
        if not self._counts[id]:
            del self._counts[id]

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct ids, int64 [n], and how often each is there, int64 [n]."""
        size = len(self._counts)
        ids = np.fromiter(self._counts.keys(), np.int64, size)
        return ids, np.fromiter(self._counts.values(), np.int64, size)

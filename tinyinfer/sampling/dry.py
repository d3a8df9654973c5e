"""DRY, "don't repeat yourself": against going on with a sequence as it went on before.

The last tokens of the text are looked for earlier in it. Where n of them stand there as well, n at least the allowed
length, the token that followed them there loses multiplier * base^(n - allowed length) of its logit; of several such n
for a token, the longest counts. A breaker (a newline, a colon, ...) ends what is compared: no repeat reaches across
the last one, and a token that is a breaker loses nothing.

By p-e-w, https://github.com/oobabooga/text-generation-webui/pull/5677; as llama.cpp has it, over prompt and output.
There a breaker of several tokens also counts where it begins inside a token; here, where a token holds the whole of its
text, or where its own tokens stand in a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .candidates import Candidates, places, replaced
from .params import SamplingParams

LARGEST_PENALTY = 3e38  # no more than float32 holds, as in llama.cpp


@dataclass(frozen=True)
class Dry:
    """The settings of DRY; breakers are sequences of ids."""

    multiplier: float
    base: float
    allowed_length: int
    window: int
    breakers: Sequence[tuple[int, ...]] = ()

    @classmethod
    def of(cls, params: SamplingParams, breakers: Sequence[tuple[int, ...]]) -> Dry:
        """From the fields of `params`, and the ids of its `dry_breakers`."""
        values = params.dry_multiplier, params.dry_base, params.dry_allowed_length, params.dry_window
        return cls(*values, breakers)

    def __call__(self, tokens: Candidates, history: Sequence[int]) -> Candidates:
        """Penalize what would go on with a repeat in `history`, the ids of prompt and output."""
        recent = history if self.window < 0 else history[max(len(history) - self.window, 0) :]
        repeats = repeat_lengths(np.array(recent, np.int64), self.breakers, self.longest)
        single = {breaker[0] for breaker in self.breakers if len(breaker) == 1}
        lengths = {id: n for id, n in repeats.items() if n >= self.allowed_length and id not in single}
        ids = np.fromiter(lengths.keys(), np.int64, len(lengths))
        at, found = places(tokens, ids)
        over = np.fromiter(lengths.values(), np.float64, len(lengths))[found] - self.allowed_length
        return replaced(tokens, at, tokens.logits[at] - self.multiplier * self.base**over)

    @property
    def longest(self) -> int:
        """The length from which on the penalty grows no more."""
        room = math.log(LARGEST_PENALTY)
        return self.allowed_length + (int(room / math.log(self.base)) if self.base > 1.000001 else 0)


def repeat_lengths(history: np.ndarray, breakers: Sequence[tuple[int, ...]], longest: int) -> dict[int, int]:
    """For each id, how many tokens of a repeat its coming next would go on with; ids with none are left out.

    history is int64 [n]. Lengths count up to `longest`, and up to what stands behind the last breaker.
    """
    count = len(history)
    limit = min(longest, _behind_breaker(history, breakers))
    lengths: dict[int, int] = {}
    ends = np.arange(count - 1)  # where a repeat may end: something follows there
    for length in range(1, limit + 1):
        ends = ends[ends >= length - 1]
        ends = ends[history[ends - length + 1] == history[count - length]]
        if not len(ends):
            break
        lengths |= dict.fromkeys(history[ends + 1].tolist(), length)
    return lengths


def _behind_breaker(history: np.ndarray, breakers: Sequence[tuple[int, ...]]) -> int:
    """How many tokens stand behind the last breaker; all where there is none."""
    single = [breaker[0] for breaker in breakers if len(breaker) == 1]
    found = np.flatnonzero(np.isin(history, single)) + 1
    last = int(found[-1]) if len(found) else 0
    for breaker in breakers:
        if 1 < len(breaker) <= len(history):
            rows = np.lib.stride_tricks.sliding_window_view(history, len(breaker))
            found = np.flatnonzero((rows == breaker).all(1)) + len(breaker)
            last = max(last, int(found[-1]) if len(found) else 0)
    return len(history) - last

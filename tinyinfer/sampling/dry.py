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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .candidates import Candidates, places, replaced
from .params import SamplingParams

LARGEST_PENALTY = 3e38  # no more than float32 holds, as in llama.cpp


class Breakers:
    """What no repeat reaches across: single ids, and phrases of several in a row."""

    def __init__(self, sequences: Iterable[tuple[int, ...]] = ()):
        """Take sequences of ids, each of at least one."""
        sequences = list(sequences)
        self.ids = frozenset(sequence[0] for sequence in sequences if len(sequence) == 1)
        self.phrases = [sequence for sequence in sequences if len(sequence) > 1]

    def behind_last(self, history: np.ndarray) -> int:
        """How many tokens of int64 [n] stand behind the last breaker; all where there is none."""
        backwards = enumerate(reversed(history.tolist()))
        behind = next((count for count, id in backwards if id in self.ids), len(history))
        for phrase in self.phrases:
            if len(phrase) <= len(history):
                rows = np.lib.stride_tricks.sliding_window_view(history, len(phrase))
                found = np.flatnonzero((rows == phrase).all(1))
                behind = min([behind, *(len(history) - len(phrase) - found[-1:])])
        return int(behind)


@dataclass(frozen=True)
class Dry:
    """The settings of DRY."""

    multiplier: float
    base: float
    allowed_length: int
    window: int
    breakers: Breakers = field(default_factory=Breakers)

    @classmethod
    def of(cls, params: SamplingParams, breakers: Iterable[tuple[int, ...]]) -> Dry:
        """From the fields of `params`, and the ids of its `dry_breakers`."""
        values = params.dry_multiplier, params.dry_base, params.dry_allowed_length, params.dry_window
        return cls(*values, Breakers(breakers))

    def __call__(self, tokens: Candidates, history: Sequence[int]) -> Candidates:
        """Penalize what would go on with a repeat in `history`, the ids of prompt and output."""
        recent = np.array(history if self.window < 0 else history[max(len(history) - self.window, 0) :], np.int64)
        repeats = repeat_lengths(recent, min(self.longest, self.breakers.behind_last(recent)))
        lengths = {id: n for id, n in repeats.items() if n >= self.allowed_length and id not in self.breakers.ids}
        ids = np.fromiter(lengths.keys(), np.int64, len(lengths))
        at, found = places(tokens, ids)
        over = np.fromiter(lengths.values(), np.float64, len(lengths))[found] - self.allowed_length
        penalty = np.minimum(self.multiplier * self.base**over, LARGEST_PENALTY)
        return replaced(tokens, at, tokens.logits[at] - penalty)

    @property
    def longest(self) -> int:
        """The length from which on the penalty grows no more."""
        room = math.log(LARGEST_PENALTY)
        return self.allowed_length + (int(room / math.log(self.base)) if self.base > 1.000001 else 0)


def repeat_lengths(history: np.ndarray, longest: int) -> dict[int, int]:
    """For each id, how many tokens of a repeat its coming next would go on with; ids with none are left out.

    history is int64 [n]; lengths count up to `longest`.
    """
    count = len(history)
    lengths: dict[int, int] = {}
    ends = np.arange(count - 1)  # where a repeat may end: something follows there
    for length in range(1, min(longest, count - 1) + 1):
        ends = ends[ends >= length - 1]
        ends = ends[history[ends - length + 1] == history[count - length]]
        if not len(ends):
            break
        lengths |= dict.fromkeys(history[ends + 1].tolist(), length)
    return lengths

"""Which of a vocabulary's logits are worth reading: a draw is among tens of tokens, and a vocabulary has 150,000.

Where the first truncation comes early, what it can't leave is told apart in the model's own float32, and only the rest
becomes float64. The same tokens are kept as by the steps alone, but for top-p where they have `p` together to within
float32's rounding, and they have the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from .candidates import Candidates, candidates, largest, likeliest, places
from .params import SamplingParams
from .state import State
from .steps import fewest

COLDEST = 1e-6  # temperatures below it divide beyond float32's range
SURE = 1e-5  # more than float32 is ever off by here


class Reading(NamedTuple):
    """Read all; or what `truncation` may leave: "top_k" after changes to a few ids, "top_p" or "min_p" before any.

    value         of that truncation's parameter
    temperature   by which logits will be divided before it
    changed       int64: ids whose logits are going to change, beside those that penalties are about
    """

    truncation: str = ""
    value: float = 0.0
    temperature: float = 1.0
    changed: np.ndarray = np.empty(0, np.int64)

    @classmethod
    def before(cls, names: Sequence[str], params: SamplingParams, changed: Collection[int] | None) -> Reading:
        """For these steps, in order, after masks and a bias that change the logits of some ids, or of any: None."""
        first = next((name for name in names if name in ("top_k", "top_p", "min_p")), "")
        earlier = set(names[: names.index(first)]) if first else set()
        warmth = params.temperature if "temperature" in earlier else 1.0
        if first == "top_k":
            possible = changed is not None and earlier <= {"temperature", "penalties"}
        else:
            possible = changed == () and earlier <= {"temperature"} and warmth >= COLDEST
        if not first or not possible:
            return cls()
        return cls(first, getattr(params, first), warmth, np.array(sorted(changed), np.int64))

    def __call__(self, logits: np.ndarray, state: State, ids: np.ndarray | None = None) -> Candidates:
        """The tokens of logits float32 [vocab] that may be left, those masked with -inf never; in float64.

        With `ids`, int64 [n] and ascending, no others. Raises `SamplingError` for logits that can't be sampled, see
        `candidates.likeliest`, and where all are masked.
        """
        likeliest(logits)
        values = logits if ids is None else logits[ids]
        kept = self._kept(values, state, ids) if ids is None or (values > -math.inf).any() else None
        if kept is None:
            return candidates(values, ids)
        return candidates(values[kept], kept if ids is None else ids[kept])

    def _kept(self, values: np.ndarray, state: State, ids: np.ndarray | None) -> np.ndarray | None:
        """Places in `values`, ascending; None: all."""
        if self.truncation == "top_k":
            return self._likeliest(values, state, ids)
        if self.truncation == "top_p":
            return _nucleus(values, self.value, self.temperature)
        if self.truncation == "min_p":
            top = float(values.max())
            return np.flatnonzero(values >= top + self.temperature * math.log(self.value) - SURE * (1 + abs(top)))
        return None

    def _likeliest(self, values: np.ndarray, state: State, ids: np.ndarray | None) -> np.ndarray | None:
        """The k likeliest, and those that may become so: whatever changes, and as many more as may sink."""
        changed = np.union1d(self.changed, state.counted())
        if not len(changed):
            return largest(values, int(self.value))
        count = int(self.value) + len(changed)
        if count >= len(values) // 2:
            return None
        at = changed if ids is None else places(Candidates(ids, values), changed)[0]
        return np.union1d(largest(values, count), at)


def _nucleus(values: np.ndarray, p: float, temperature: float) -> np.ndarray:
    """Places of what top-p keeps, ascending.

    Tokens of no more than (1 - p) / n of all mass have no more than 1 - p of it together: the others hold p.
    """
    top = values.max()
    mass = values - top
    mass /= np.float32(temperature)
    np.exp(mass, out=mass)
    total = mass.sum(dtype=np.float64)
    few = np.flatnonzero(mass > (1 - p) * total / len(mass) * (1 - SURE))
    logits = values[few].astype(np.float64)
    return few[fewest(logits, np.exp((logits - top) / temperature), p * total)]

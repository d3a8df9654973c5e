"""The tokens in play, from a whole vocabulary down to the few that one is drawn from."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..errors import SamplingError


class Candidates(NamedTuple):
    """Tokens still in play: ids int64 [k], ascending, each once, and their logits [k].

    The logits are float64, or, of a vocabulary of which only the likeliest token is wanted, the model's own float32.
    """

    ids: np.ndarray
    logits: np.ndarray


class AllMasked(SamplingError):
    """No token is left to choose from."""

    def __init__(self, count: int):
        super().__init__(f"all {count} tokens are masked: every logit is -inf")


def likeliest(logits: np.ndarray) -> int:
    """The id of the highest of logits [vocab], the lowest id among equals; checks them for all that can't be sampled.

    Raises `SamplingError` for NaN anywhere, for +inf (no model means to say it; it comes from an overflow), and where
    every token is masked with -inf.
    """
    if not len(logits):
        raise AllMasked(0)
    best = int(np.argmax(logits))  # a NaN, where there is one, is what argmax finds
    if math.isfinite(logits[best]):
        return best
    if logits[best] == -math.inf:
        raise AllMasked(len(logits))
    raise SamplingError(f"logits should be finite or -inf, found {logits[best]} at id {best}")


def candidates(logits: np.ndarray, ids: np.ndarray | None = None) -> Candidates:
    """The tokens of logits float [n] that are not masked with -inf, in float64; `ids` int64 [n], or their places.

    Raises `SamplingError` where all are masked.
    """
    tokens = unmasked(Candidates(_first_ids(len(logits)) if ids is None else ids, logits))
    return Candidates(tokens.ids, tokens.logits.astype(np.float64))


@lru_cache(maxsize=4)
def _first_ids(count: int) -> np.ndarray:
    """0, 1, ..., not to be written to."""
    ids = np.arange(count)
    ids.flags.writeable = False
    return ids


def unmasked(tokens: Candidates) -> Candidates:
    """Those whose logit is not -inf. Raises `SamplingError` where that leaves none."""
    masked = tokens.logits == -math.inf
    if masked.all():  # as where there is none
        raise AllMasked(len(masked))
    if not masked.any():
        return tokens
    return only(tokens, ~masked)


def only(tokens: Candidates, kept: np.ndarray) -> Candidates:
    """Those at the places `kept`, bool [k] or ascending int."""
    return Candidates(tokens.ids[kept], tokens.logits[kept])


def places(tokens: Candidates, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each of ids int [n] stands among the tokens, int [m <= n], and which of them do, bool [n].

    The cost goes by `ids` and not by the vocabulary.
    """
    count = len(tokens.ids)
    if tokens.ids[-1] == count - 1:  # no id is missing
        found = (ids >= 0) & (ids < count)
        return ids[found], found
    at = np.minimum(np.searchsorted(tokens.ids, ids), count - 1)
    found = tokens.ids[at] == ids
    return at[found], found


def replaced(tokens: Candidates, at: np.ndarray, logits: np.ndarray | float) -> Candidates:
    """A copy with other logits at the places `at`. Raises `SamplingError` where one is NaN or +inf."""
    changed = tokens.logits.copy()
    changed[at] = logits
    wrong = at[~(changed[at] < math.inf)]
    if len(wrong):
        found = f"{changed[wrong[0]]} at id {tokens.ids[wrong[0]]}"
        raise SamplingError(f"a penalty or bias should leave logits finite or -inf, found {found}")
    return Candidates(tokens.ids, changed)


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """Where the `k` > 0 largest of values [n] are, ascending; the first ones among equals. All where k >= n."""
    if k >= len(values):
        return np.arange(len(values))
    if len(values) >= 32 * k:
        # the k-th largest of the maxima of columns is no larger than that of all, and few others reach it
        maxima = values[: len(values) // 16 * 16].reshape(16, -1).max(0)
        few = np.flatnonzero(values >= np.partition(maxima, -k)[-k])
        if len(few) < len(values) // 2:
            return few[largest(values[few], k)]
    smallest = np.partition(values, -k)[-k]
    kept = values > smallest
    equals = np.flatnonzero(values == smallest)
    kept[equals[: k - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def weights(tokens: Candidates) -> np.ndarray:
    """Probabilities before they are divided by their sum, float64 [k]; the likeliest token's is 1."""
    below = tokens.logits - tokens.logits.max()
    return np.exp(below, out=below)  # a new array would be as much memory to be cleared


def probabilities(tokens: Candidates) -> np.ndarray:
    """The probability of each token among those in play, float64 [k]."""
    mass = weights(tokens)
    return mass / mass.sum()

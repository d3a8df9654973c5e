"""The steps from logits to the few tokens that one is drawn from, each a small pure function.

The order, which decides what is kept:

    1. temperature    divide the logits
    2. top-k          keep the k likeliest
    3. top-p          keep the fewest likeliest whose probabilities, among what top-k left, reach p
    4. min-p          keep those at least min_p times as likely as the likeliest

A colder temperature thus leaves top-p and min-p fewer tokens. (llama.cpp and mlx-lm cut first and scale last; Hugging
Face and vLLM scale first, as here.) Top-k keeps the same tokens before temperature as after it, so it is done first,
on the logits as they come: a vocabulary of 150,000 need not become float64 for the sake of 40 tokens.

Whatever changes logits by what was said before, or masks them with -inf, belongs ahead of `candidates`. Each step after
it takes `Candidates` and gives `Candidates`, ids always ascending, at least one always left. Between equal logits the
lowest id is kept, so no result hangs on how a sort breaks ties. A new step is one more function or callable object (an
object can remember the past) and one line in `steps_for`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ..errors import SamplingError
from .params import SamplingParams


class Candidates(NamedTuple):
    """The tokens still in play: ids int64 [k], ascending, and their logits float64 [k]."""

    ids: np.ndarray
    logits: np.ndarray


Step = Callable[[Candidates], Candidates]


def steps_for(params: SamplingParams) -> list[Step]:
    """The steps after `candidates` that resolved, non-greedy `params` ask for, in order, without those that are off."""
    steps: list[Step] = [partial(temperature, value=params.temperature)]
    if params.top_p < 1:
        steps.append(partial(top_p, p=params.top_p))
    if params.min_p > 0:
        steps.append(partial(min_p, fraction=params.min_p))
    return steps


def likeliest(logits: np.ndarray) -> int:
    """The id of the highest of logits [vocab], the lowest id among equals; checks them for all that can't be sampled.

    Raises `SamplingError` for NaN anywhere, for +inf (no model means to say it; it comes from an overflow), and where
    every token is masked with -inf.
    """
    best = int(np.argmax(logits))  # a NaN, where there is one, is what argmax finds
    if math.isfinite(logits[best]):
        return best
    if logits[best] == -math.inf:
        raise SamplingError(f"all {len(logits)} tokens are masked: every logit is -inf")
    raise SamplingError(f"logits should be finite or -inf, found {logits[best]} at id {best}")


def candidates(logits: np.ndarray, top_k: int = 0) -> Candidates:
    """The tokens of logits [vocab] that are not masked with -inf: all, or the `top_k` likeliest; 0 is off.

    Raises `SamplingError` as `likeliest` does.
    """
    likeliest(logits)
    ids = largest(logits, top_k or len(logits))
    chosen = logits[ids]
    masked = chosen == -math.inf
    if masked.any():
        ids, chosen = ids[~masked], chosen[~masked]
    return Candidates(ids, chosen.astype(np.float64))


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """Where the `k` > 0 largest of values [n] are, ascending; the first ones among equals. All where k >= n."""
    if k >= len(values):
        return np.arange(len(values))
    smallest = np.partition(values, -k)[-k]
    kept = values > smallest
    equals = np.flatnonzero(values == smallest)
    kept[equals[: k - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def temperature(tokens: Candidates, value: float) -> Candidates:
    """Divide the logits by `value` > 0, less their maximum: then nothing overflows upwards, however small it is."""
    with np.errstate(over="ignore"):  # -inf is then right: such a token has no chance
        return Candidates(tokens.ids, (tokens.logits - tokens.logits.max()) / value)


def top_p(tokens: Candidates, p: float) -> Candidates:
    """Keep the fewest tokens, likeliest first, whose probabilities reach `p` together; at least one."""
    mass = weights(tokens)
    wanted = p * mass.sum()
    # A few hundred tokens nearly always hold p already: sort those, and more only where they do not.
    for size in (256, 2048, 16384, len(tokens.ids)):
        best = largest(tokens.logits, size)
        descending = best[np.argsort(-tokens.logits[best], kind="stable")]
        reached = np.cumsum(mass[descending])
        if reached[-1] >= wanted:
            break
    kept = np.sort(descending[: 1 + np.searchsorted(reached, wanted)])
    return Candidates(tokens.ids[kept], tokens.logits[kept])


def min_p(tokens: Candidates, fraction: float) -> Candidates:
    """Keep the tokens whose probability is at least `fraction` > 0 of the likeliest one's."""
    kept = tokens.logits >= tokens.logits.max() + math.log(fraction)
    return Candidates(tokens.ids[kept], tokens.logits[kept])


def weights(tokens: Candidates) -> np.ndarray:
    """Probabilities before they are divided by their sum, float64 [k]; the likeliest token's is 1."""
    return np.exp(tokens.logits - tokens.logits.max())

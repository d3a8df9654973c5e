"""The steps from logits to the few tokens that one is drawn from, each a small pure function.

The order, which decides what is kept. The masks come first, and can't be moved:

    json, json_schema, ..., choice          ids that no answer of that form goes on with, see `constraints`
    allowed_ids, banned_ids, min_tokens     ids that can't come, as if the model had never heard of them
    logit_bias                              numbers added to the logits of ids

Then, unless `order` says otherwise:

    penalties      repetition_penalty, frequency_penalty, presence_penalty, in this order     penalties.py
    dry            dry_multiplier, dry_base, dry_allowed_length, dry_window, dry_breakers     dry.py
    processors     functions of the caller's own                                              penalties.py
    temperature    divide the logits
    top_n_sigma    keep logits within n standard deviations of the highest
    top_k          keep the k likeliest
    typical        typical_p: keep what is about as surprising as tokens are on average
    top_p          keep the fewest likeliest whose probabilities reach p
    min_p          keep those at least min_p times as likely as the likeliest
    xtc            xtc_probability, xtc_threshold: now and then remove the top choices        xtc.py
    mirostat       mirostat_tau, mirostat_eta: in place of the truncations above              mirostat.py

Each sees what the one before it left: probabilities are always among the tokens still in play. A colder temperature
thus leaves top-p and min-p fewer tokens. llama.cpp cuts in the same order but divides by the temperature last, as
mlx-lm does; Hugging Face and vLLM divide first, as here. `order` takes the steps in any other order, so that
`order=("penalties", "dry", "top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc", "temperature")` is llama.cpp's.
It must hold every step that is asked for.

Temperature 0 takes the likeliest token of what the masks, penalties, DRY and processors leave; the steps after them
play no part, also where XTC or typical_p would have removed that token.

A step takes `Candidates` and gives `Candidates`, ids always ascending, at least one always left. Between equal logits
the lowest id is kept, so no result hangs on how a sort breaks ties. Everything is float64, but greedy stays in the
model's float32: there only the logits of ids that a step is about change. A new step is one more function here and one
line in `plan.py`. `tinyinfer sampling` shows what each does to one distribution.
"""

from __future__ import annotations

import math

import numpy as np

from .candidates import Candidates, largest, only, probabilities, weights

MANY, BINS = 4096, 8192  # how many are better counted by bins than sorted


def temperature(tokens: Candidates, value: float) -> Candidates:
    """Divide the logits by `value` > 0; where that would overflow, less their maximum.

    A token then has a logit of -inf where it has no chance, and is dropped.
    """
    with np.errstate(over="ignore"):
        scaled = tokens.logits / value
        if np.isfinite(scaled).all():
            return Candidates(tokens.ids, scaled)
        scaled = (tokens.logits - tokens.logits.max()) / value
    return only(Candidates(tokens.ids, scaled), scaled > -math.inf)


def top_n_sigma(tokens: Candidates, n: float) -> Candidates:
    """Keep logits at least the highest less `n` > 0 times the standard deviation of all (that of a population).

    No temperature changes what is kept. Tang et al., https://arxiv.org/abs/2411.07641.
    """
    return only(tokens, tokens.logits >= tokens.logits.max() - n * tokens.logits.std())


def top_k(tokens: Candidates, k: int) -> Candidates:
    """Keep the `k` > 0 likeliest tokens. Fan et al., https://arxiv.org/abs/1805.04833.

    Exactly k, the lowest ids among equals, where transformers keeps all that equal the k-th.
    """
    return only(tokens, largest(tokens.logits, k))


def typical(tokens: Candidates, p: float) -> Candidates:
    """Keep the fewest tokens, those of typical surprise first, whose probabilities reach `p` together; at least one.

    Typical is a surprise, -log of the probability, near its mean, the entropy; the likeliest token may well go.
    Meister et al., https://arxiv.org/abs/2202.00666. llama.cpp goes on until `p` is passed, not only reached.
    """
    shares = probabilities(tokens)
    surprise = tokens.logits.max() - tokens.logits + math.log(weights(tokens).sum())
    entropy = (shares * surprise).sum()
    return only(tokens, fewest(-np.abs(surprise - entropy), shares, p * shares.sum()))


def top_p(tokens: Candidates, p: float) -> Candidates:
    """Keep the fewest tokens, likeliest first, whose probabilities reach `p` together; at least one.

    Holtzman et al., https://arxiv.org/abs/1904.09751; so do transformers, vLLM and llama.cpp.
    """
    mass = weights(tokens)
    return only(tokens, fewest(tokens.logits, mass, p * mass.sum()))


def min_p(tokens: Candidates, fraction: float) -> Candidates:
    """Keep the tokens whose probability is at least `fraction` > 0 of the likeliest one's.

    Nguyen et al., https://arxiv.org/abs/2407.01082.
    """
    kept = tokens.logits >= tokens.logits.max() + math.log(fraction)
    return only(tokens, kept)


def fewest(scores: np.ndarray, mass: np.ndarray, wanted: float) -> np.ndarray:
    """Places of the fewest, highest scores first, that have as much mass together; ascending, at least one.

    The lowest place first among equals. All where there is less mass.
    """
    surely, rest = _around(scores, mass, wanted) if len(scores) > MANY else (np.zeros(0, np.int64), None)
    places = np.arange(len(scores)) if rest is None else rest
    descending = places[np.argsort(-scores[places], kind="stable")]
    reached = mass[surely].sum() + np.cumsum(mass[descending])
    return np.sort(np.concatenate([surely, descending[: 1 + np.searchsorted(reached, wanted)]]))


def _around(scores: np.ndarray, mass: np.ndarray, wanted: float) -> tuple[np.ndarray, np.ndarray]:
    """Places of the higher scores that are surely among them, and those of the next, of which some are: too many to
    sort are first counted by how high they are."""
    top, span = scores.max(), np.ptp(scores)
    if not span > 0:
        return np.zeros(0, np.int64), np.arange(len(scores))
    steps = ((top - scores) * ((BINS - 1) / span)).astype(np.int64)
    reached = np.cumsum(np.bincount(steps, mass, BINS))
    last = min(int(np.searchsorted(reached, wanted)), BINS - 1)
    return np.flatnonzero(steps < last), np.flatnonzero(steps == last)

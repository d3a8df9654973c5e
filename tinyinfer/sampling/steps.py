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
    return only(tokens, _fewest(-np.abs(surprise - entropy), shares, p))


def top_p(tokens: Candidates, p: float) -> Candidates:
    """Keep the fewest tokens, likeliest first, whose probabilities reach `p` together; at least one.

    Holtzman et al., https://arxiv.org/abs/1904.09751; so do transformers, vLLM and llama.cpp.
    """
    return only(tokens, _fewest(tokens.logits, weights(tokens), p))


def min_p(tokens: Candidates, fraction: float) -> Candidates:
    """Keep the tokens whose probability is at least `fraction` > 0 of the likeliest one's.

    Nguyen et al., https://arxiv.org/abs/2407.01082.
    """
    kept = tokens.logits >= tokens.logits.max() + math.log(fraction)
    return only(tokens, kept)


def _fewest(scores: np.ndarray, mass: np.ndarray, share: float) -> np.ndarray:
    """Places of the fewest, highest scores first, that have `share` of all mass together; ascending, at least one."""
    wanted = share * mass.sum()
    # A few hundred tokens nearly always hold it already: sort those, and more only where they do not.
    for size in (256, 2048, 16384, len(scores)):
        best = largest(scores, size)
        descending = best[np.argsort(-scores[best], kind="stable")]
        reached = np.cumsum(mass[descending])
        if reached[-1] >= wanted:
            break
    return np.sort(descending[: 1 + np.searchsorted(reached, wanted)])

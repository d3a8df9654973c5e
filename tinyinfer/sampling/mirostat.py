"""Mirostat, version 2: truncation whose cut moves so that the text's surprise stays near a target.

The surprise of a token is -log2 of its probability. Tokens more surprising than a limit are dropped; the one drawn then
moves the limit: less surprise than aimed at raises it, more lowers it.
Basu et al., https://arxiv.org/abs/2007.14966; as in llama.cpp, the limit begins at twice the target, and a token's
surprise is taken among the tokens that were left.
"""

from __future__ import annotations

import math

import numpy as np

from .candidates import Candidates, largest, only, probabilities


def within_surprise(tokens: Candidates, limit: float) -> Candidates:
    """Keep tokens whose surprise is at most `limit` bits; at least the likeliest."""
    with np.errstate(divide="ignore"):  # a token without any chance is infinitely surprising
        kept = -np.log2(probabilities(tokens)) <= limit
    return only(tokens, kept if kept.any() else largest(tokens.logits, 1))


def next_limit(tokens: Candidates, chosen: int, limit: float, target: float, rate: float) -> float:
    """The limit after the id `chosen` of `tokens`: it moves against what is amiss, by `rate` of that."""
    at = int(np.searchsorted(tokens.ids, chosen))
    return limit - rate * (-math.log2(probabilities(tokens)[at]) - target)

"""Log-probabilities: how likely a token was, and which others were."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .candidates import Candidates, largest, likeliest
from .params import SamplingParams

LARGEST_EXPONENT = math.log(sys.float_info.max)


@dataclass(frozen=True)
class TokenLogprob:
    """A token at its place in a text: the natural logarithm of its probability there, and the likeliest ones.

    `rank` is 1 for the likeliest token. `top` holds pairs of id and log-probability, likeliest first, the lower id
    first among equals; tokens that can't come are left out, so that it may be shorter than was asked for.
    """

    id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Score:
    """How likely a text was, token by token."""

    tokens: tuple[TokenLogprob, ...]

    @property
    def logprob(self) -> float:
        """The natural logarithm of the probability of the whole."""
        return math.fsum(token.logprob for token in self.tokens)

    @property
    def perplexity(self) -> float:
        """exp of the mean surprise of a token."""
        return perplexity(-self.logprob / len(self.tokens))

    @property
    def greedy(self) -> bool:
        """Whether greedy decoding would have said just this."""
        return all(token.rank == 1 for token in self.tokens)


def perplexity(mean_surprise: float) -> float:
    """exp of nats a token; infinite where that is more than a float holds."""
    return math.exp(mean_surprise) if mean_surprise < LARGEST_EXPONENT else math.inf


def model_logprob(logits: np.ndarray, id: int, top: int) -> TokenLogprob:
    """Of one row of the model's logits, float32 [vocab], as they came: no temperature, no mask, no penalty.

    A sum of exponentials in float64 of differences in float32: right to about 1e-7. Raises `SamplingError` as
    `likeliest` does, for NaN among others.
    """
    return _logprob(range(len(logits)), logits, log_sum(logits), id, id, top)


def log_sum(logits: np.ndarray) -> float:
    """What to take from logits float32 [vocab] so that they are log-probabilities; right and raises as above."""
    best = logits[likeliest(logits)]
    with np.errstate(over="ignore"):  # to -inf, which has no share
        return float(best) + math.log(np.exp(logits - best).sum(dtype=np.float64))


def sampled_logprob(tokens: Candidates, id: int, top: int) -> TokenLogprob:
    """Of what a token was drawn from, after all steps; greedy gives the one it took the probability 1."""
    best = tokens.logits.max()
    total = float(best) + math.log(np.exp(tokens.logits - best).sum())
    return _logprob(tokens.ids, tokens.logits, total, int(np.searchsorted(tokens.ids, id)), id, top)


def _logprob(ids: Sequence[int], logits: np.ndarray, total: float, place: int, id: int, top: int) -> TokenLogprob:
    chosen = logits[place]
    rank = 1 + int(np.count_nonzero(logits > chosen)) + int(np.count_nonzero(logits[:place] == chosen))
    found = []
    if top:
        best = largest(logits, top)
        for at in best[np.argsort(-logits[best], kind="stable")]:
            if logits[at] > -math.inf:
                found.append((int(ids[at]), float(logits[at]) - total))
    return TokenLogprob(id, float(chosen) - total, rank, tuple(found))


def following_logprobs(rows: np.ndarray, following: Sequence[int], top: int) -> list[TokenLogprob]:
    """Of each row of the model's logits, float32 [n, vocab], and the id that came after it."""
    return [model_logprob(row, id, top) for row, id in zip(rows, following, strict=True)]


class Scores:
    """The log-probabilities of one answer, `output`, and of its prompt, `prompt`; None where not asked for."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int]):
        self.output: list[TokenLogprob] | None = None if params.logprobs is None else []
        self.prompt: list[TokenLogprob | None] | None = None if params.prompt_logprobs is None else [None]
        self._params, self._prompt_ids = params, prompt_ids

    @property
    def read_prompt(self) -> Callable[[np.ndarray], None] | None:
        """Takes the logits after each token of the prompt, some rows at a time; None where they are not wanted."""
        return None if self.prompt is None else self._read_prompt

    def _read_prompt(self, rows: np.ndarray) -> None:
        following = self._prompt_ids[len(self.prompt) :][: len(rows)]
        self.prompt += following_logprobs(rows[: len(following)], following, self._params.prompt_logprobs)

    def add(self, id: int, logits: np.ndarray, tokens: Candidates) -> None:
        """A token was chosen, of `tokens`, into which the model's `logits` were made."""
        if self.output is None:
            return
        if self._params.logprobs_of == "model":
            self.output.append(model_logprob(logits, id, self._params.logprobs))
        else:
            self.output.append(sampled_logprob(tokens, id, self._params.logprobs))

    def last(self, count: int) -> list[TokenLogprob] | None:
        """Those of the last `count` tokens."""
        return None if self.output is None else self.output[len(self.output) - count :]

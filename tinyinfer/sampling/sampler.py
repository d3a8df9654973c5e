"""One sequence's sampler: its steps, its random numbers, and the draw."""

from __future__ import annotations

import numpy as np

from ..errors import SamplingError
from .params import SamplingParams
from .steps import Candidates, candidates, likeliest, steps_for, weights


class Sampler:
    """Chooses the tokens of one sequence, one after another.

    Each sequence has a sampler of its own, so what is drawn for it does not depend on its neighbours in a batch.
    `params` holds the complete values in use, the seed among them even where none was given: with it, the run can be
    repeated.
    """

    def __init__(self, params: SamplingParams, vocab_size: int):
        """Start a sequence over `vocab_size` tokens; what `params` leave unsaid takes its neutral value."""
        self.params = params.resolved()
        self.vocab_size = vocab_size
        self._steps = [] if self.params.greedy else steps_for(self.params)
        self._random = np.random.Generator(np.random.PCG64(self.params.seed))

    def sample(self, logits: np.ndarray) -> int:
        """The next id, from logits float [vocab]; -inf masks a token.

        Greedy takes the highest logit, the lowest id among equals. Otherwise exactly one random number is used a token.
        Raises `SamplingError` for logits of another shape, for NaN or +inf among them, and where all are masked.
        """
        if logits.shape != (self.vocab_size,):
            raise SamplingError(f"expected logits of shape [{self.vocab_size}], found {list(logits.shape)}")
        if self.params.greedy:
            return likeliest(logits)
        tokens = candidates(logits, self.params.top_k)
        for step in self._steps:
            tokens = step(tokens)
        return draw(tokens, self._random.random())


def draw(tokens: Candidates, uniform: float) -> int:
    """The id at which the running sum of probabilities passes `uniform`, from [0, 1).

    The sum runs in the order of ids and not of probabilities: it needs no sort, and two tokens that change places by a
    rounding error change nothing else.
    """
    reached = np.cumsum(weights(tokens))
    # side="right" never stops at a token of weight 0, as its sum equals the one before
    return int(tokens.ids[np.searchsorted(reached, uniform * reached[-1], side="right")])

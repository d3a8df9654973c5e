"""One sequence's sampler: its steps, its past, its random numbers, and the draw."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from ..errors import SamplingError
from .candidates import AllMasked, Candidates, likeliest, weights
from .mirostat import next_limit
from .params import SamplingParams
from .plan import Vocabulary, steps_for
from .state import State


class Mask(Protocol):
    """Which ids may come next: `constraints.constraint.Constraint`. Each sequence has one of its own."""

    done: bool

    def ids(self) -> np.ndarray:
        """All of them, int64 [n], ascending."""

    def permits(self, id: int, /) -> bool:
        """Whether one is among them."""

    def accept(self, id: int, /) -> None:
        """One was chosen."""


class Sampler:
    """Chooses the tokens of one sequence, one after another.

    Each sequence has a sampler of its own, so what is drawn for it does not depend on its neighbours in a batch.
    `params` holds the complete values in use, the seed among them even where none was given: with it, the run can be
    repeated. `sample` is `take(distribution(logits))`; whoever verifies a draft asks for the `distribution`, which
    changes nothing, and says by `accept` what was chosen.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_ids: Sequence[int] = (),
        stop_ids: Collection[int] = (),
        breakers: Sequence[tuple[int, ...]] = (),
        constraint: Mask | None = None,
    ):
        """Start a sequence over `vocab_size` tokens, after `prompt_ids`; unsaid `params` take their neutral value.

        stop_ids are the end-of-sequence ids, breakers the ids of `params.dry_breakers`, and constraint what becomes of
        its `json_schema` or the like. Raises `BadRequest` for ids of `params` outside the vocabulary.
        """
        self.params = params.resolved()
        self.vocab_size = vocab_size
        self.state = State(self.params, prompt_ids)
        self._read, self._steps = steps_for(self.params, Vocabulary(vocab_size, stop_ids, breakers))
        self._random = np.random.Generator(np.random.PCG64(self.params.seed))
        self._all_ids = np.arange(vocab_size) if self.params.greedy and self._steps else None
        self.constraint = constraint

    @property
    def done(self) -> bool:
        """Whether nothing but the end can come, by the constraint; not before there are `min_tokens`."""
        enough = self.state.output_length >= self.params.min_tokens
        return self.constraint is not None and enough and self.constraint.done

    def sample(self, logits: np.ndarray) -> int:
        """The next id, from logits float [vocab]; -inf masks a token.

        Greedy takes the highest logit, the lowest id among equals. Otherwise exactly one random number is used a token.
        Raises `SamplingError` for logits of another shape, for NaN or +inf among them, and where all are masked.
        """
        return self.take(self.distribution(logits))

    def distribution(self, logits: np.ndarray) -> Candidates:
        """What the next id is drawn from, given what was accepted so far; greedy leaves one token.

        Raises as `sample` does. Nothing is drawn, and asking again gives the same again: what XTC leaves to chance goes
        by seed and position.
        """
        if logits.shape != (self.vocab_size,):
            raise SamplingError(f"expected logits of shape [{self.vocab_size}], found {list(logits.shape)}")
        if self.constraint is None:
            return self._among(logits, None)
        if self.params.greedy and not self._steps and self.constraint.permits(best := likeliest(logits)):
            return _one(best)
        ids = self.constraint.ids()
        try:
            return self._among(logits, ids)
        except AllMasked as error:
            early = self.state.output_length < self.params.min_tokens
            end = f"; min_tokens={self.params.min_tokens} keeps off the end" if early else ""
            raise SamplingError(f"{error}, among those that the constraint allows{end}") from None

    def _among(self, logits: np.ndarray, ids: np.ndarray | None) -> Candidates:
        """The distribution over `ids`, or over all."""
        if not self.params.greedy:
            return self._through(self._read(logits, self.state, ids))
        best = likeliest(logits)
        if ids is not None:
            best = int(ids[likeliest(logits[ids])])
        if self._steps:
            tokens = Candidates(self._all_ids, logits) if ids is None else Candidates(ids, logits[ids])
            tokens = self._through(tokens)
            best = int(tokens.ids[likeliest(tokens.logits)])
        return _one(best)

    def take(self, tokens: Candidates) -> int:
        """Draw an id of what `distribution` gave, and accept it."""
        id = int(tokens.ids[0]) if self.params.greedy else draw(tokens, self._random.random())
        self.accept(id, tokens)
        return id

    def peek(self, count: int) -> np.ndarray:
        """The random numbers float64 [count] that the next draws will use; they remain to be used."""
        state = self._random.bit_generator.state
        found = self._random.random(count)
        self._random.bit_generator.state = state
        return found

    def accept(self, id: int, tokens: Candidates) -> None:
        """An id was chosen, of `tokens`: what follows goes by it."""
        if self.constraint is not None:
            self.constraint.accept(id)
        self.state.accept(id)
        if self.params.mirostat and not self.params.greedy:
            p, limit = self.params, self.state.surprise_limit
            self.state.surprise_limit = next_limit(tokens, id, limit, p.mirostat_tau, p.mirostat_eta)

    def _through(self, tokens: Candidates) -> Candidates:
        with np.errstate(over="ignore"):  # to -inf, which masks; where it would be +inf, the step raises
            for step in self._steps:
                tokens = step(tokens, self.state)
        return tokens


def _one(id: int) -> Candidates:
    return Candidates(np.array([id]), np.zeros(1))


def draw(tokens: Candidates, uniform: float) -> int:
    """The id at which the running sum of probabilities passes `uniform`, from [0, 1).

    The sum runs in the order of ids and not of probabilities: it needs no sort, and two tokens that change places by a
    rounding error change nothing else.
    """
    reached = weights(tokens)
    np.cumsum(reached, out=reached)
    # side="right" never stops at a token of weight 0, as its sum equals the one before
    return int(tokens.ids[np.searchsorted(reached, uniform * reached[-1], side="right")])

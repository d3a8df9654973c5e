"""Steps that change logits by what was said, and those that mask ids.

They touch the ids that they are about and no others, so their cost goes by the text and not by the vocabulary. An id
that is not in play is passed over. They act on logits, as they come from the model or from the step before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..errors import SamplingError
from .candidates import Candidates, likeliest, places, replaced, unmasked
from .state import State, Window


def repetition(tokens: Candidates, window: Window, penalty: float) -> Candidates:
    """Divide logits above 0 by `penalty`, multiply those below by it, once for each distinct id of the window.

    Above 1 it makes what was said less likely whatever the sign, below 1 likelier. CTRL, https://arxiv.org/abs/1909.05858,
    with the rule for the sign that transformers, vLLM and llama.cpp share. Over prompt and output, as there.
    """
    ids, _ = window.counts()
    at, _ = places(tokens, ids)
    said = tokens.logits[at].astype(np.float64)
    return replaced(tokens, at, np.where(said > 0, said / penalty, said * penalty))


def frequency(tokens: Candidates, window: Window, penalty: float) -> Candidates:
    """Take `penalty` from a logit for each time that its id is in the window: OpenAI's frequency_penalty.

    Over the output, as OpenAI and vLLM; llama.cpp counts the prompt as well.
    """
    ids, counts = window.counts()
    at, found = places(tokens, ids)
    return replaced(tokens, at, tokens.logits[at] - penalty * counts[found])


def presence(tokens: Candidates, window: Window, penalty: float) -> Candidates:
    """Take `penalty` from the logit of each id in the window, however often it is there; otherwise as `frequency`."""
    ids, _ = window.counts()
    at, _ = places(tokens, ids)
    return replaced(tokens, at, tokens.logits[at] - penalty)


def bias(tokens: Candidates, ids: np.ndarray, amounts: np.ndarray) -> Candidates:
    """Add amounts float64 [n] to the logits of distinct ids [n]: OpenAI's logit_bias, without its limit of 100."""
    at, found = places(tokens, ids)
    return replaced(tokens, at, tokens.logits[at] + amounts[found])


def banned(tokens: Candidates, ids: np.ndarray) -> Candidates:
    """Mask ids with -inf."""
    at, _ = places(tokens, ids)
    return replaced(tokens, at, -math.inf)


def allowed(tokens: Candidates, ids: np.ndarray) -> Candidates:
    """Mask all but ids with -inf."""
    at, _ = places(tokens, ids)
    logits = np.full_like(tokens.logits, -math.inf)
    logits[at] = tokens.logits[at]
    return Candidates(tokens.ids, logits)


def processed(
    tokens: Candidates, state: State, functions: Sequence[Callable[..., np.ndarray]], vocab_size: int
) -> Candidates:
    """Logits as functions of the caller's own make them, one after another.

    Each is called with prompt and output, int64 [n], and logits [vocab] which are its own to change, -inf for what is
    not in play, which stays out. Raises `SamplingError` where one gives something else than finite or -inf of that
    shape.
    """
    logits = np.full(vocab_size, -math.inf, tokens.logits.dtype)
    logits[tokens.ids] = tokens.logits
    ids = np.array(state.ids, np.int64)
    for function in functions:
        logits = np.asarray(function(ids, logits))
        if logits.shape != (vocab_size,) or not np.issubdtype(logits.dtype, np.floating):
            name = getattr(function, "__name__", type(function).__name__)
            found = f"{logits.dtype} {list(logits.shape)}"
            raise SamplingError(f"processor {name} should give logits, floats [{vocab_size}], found {found}")
        likeliest(logits)
    logits = logits[tokens.ids].astype(tokens.logits.dtype, copy=False)
    return unmasked(Candidates(tokens.ids, np.where(tokens.logits > -math.inf, logits, -math.inf)))

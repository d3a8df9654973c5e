"""What the experiments give a model to do: texts of random ids, and the course's 64 requests."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from ...errors import BadRequest
from .setting import Setting

REQUESTS = 64
MEDIAN, LONGEST, TOTAL = 18, 231, 1874  # tokens of the answers, as the course has them


def random_ids(setting: Setting, count: int, after: int = 0) -> list[int]:
    """Ids of a text that has no meaning: what it costs to run it is what counts.

    `after` is how many tokens will follow. Raises `BadRequest` where both together are longer than the model's context.
    """
    if count + after > setting.llm.context:
        both = f"{count + after:,} tokens, more than this model's context of {setting.llm.context:,}"
        raise BadRequest(f"the experiment takes {both}: take another model", "model")
    return np.random.default_rng(count).integers(setting.config.vocab_size, size=count).tolist()


def answer_lengths() -> list[int]:
    """How long the answers to the course's requests are, in the order of arrival: int, their number is REQUESTS.

    Many are short and few are long, as quantiles of a log-normal distribution; its width is the one that gives the
    total. Median, longest and total are those of the course exactly.
    """
    quantiles = np.array([NormalDist().inv_cdf((i + 0.5) / REQUESTS) for i in range(REQUESTS)])
    low, high = 0.0, 3.0
    for _ in range(60):
        width = (low + high) / 2
        lengths = np.maximum(np.rint(MEDIAN * np.exp(width * quantiles)), 1).astype(int)
        lengths[REQUESTS // 2 - 1 : REQUESTS // 2 + 1] = MEDIAN
        lengths = np.minimum(lengths, LONGEST)
        lengths[-1] = LONGEST
        low, high = (low, width) if lengths.sum() > TOTAL else (width, high)
    lengths[-2] += TOTAL - lengths.sum()
    np.random.default_rng(0).shuffle(lengths)
    return lengths.tolist()


def prompt_lengths() -> list[int]:
    """How long their prompts are, from 8 to 39 tokens."""
    return np.random.default_rng(1).integers(8, 40, REQUESTS).tolist()

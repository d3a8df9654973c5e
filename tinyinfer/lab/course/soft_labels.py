"""What a model says beside its choice: the distribution after a sentence, and how a temperature softens it.

This is what a smaller model is taught with in distillation. Hinton et al., https://arxiv.org/abs/1503.02531.
"""

from __future__ import annotations

import math

import numpy as np

from ...sampling.candidates import Candidates, candidates, probabilities
from ...sampling.steps import temperature
from .finding import Drawing, Finding, Table, shown
from .setting import Setting

SENTENCE = "After a long day of rain, the children went outside to play in the"
TEMPERATURES = (1.0, 2.0)
SHOWN = 8


def measure(setting: Setting) -> Finding:
    """The next token's distribution at two temperatures."""
    llm = setting.llm
    sentence = SENTENCE if setting.text is None else setting.text
    tokens = candidates(llm.forward(llm.prompt_ids(sentence))[-1])
    cold, warm = (probabilities(temperature(tokens, value)) for value in TEMPERATURES)
    best = np.argsort(-tokens.logits, kind="stable")[:SHOWN]
    named = [repr(llm.tokenizer.decode([int(tokens.ids[place])])) for place in best]
    shares = [(name, float(cold[place]), float(warm[place])) for name, place in zip(named, best, strict=True)]
    columns = ("token", "share at 1", "share at 2")
    ratios = _ratios(tokens, best, named, cold, warm)
    tables = [
        Table(f"what may follow {sentence[-60:]!r}", columns, shares),
        ratios,
        Table("all of it", ("temperature", "entropy, bits", "tokens that hold 90 %"), [
            (value, entropy(shares), tokens_within(shares, 0.9))
            for value, shares in zip(TEMPERATURES, (cold, warm), strict=True)
        ]),
        Table("the course's two likeliest", ("course, 1", "course, 2", "square root"), [(2.24, 1.50, math.sqrt(2.24))],
              0),
    ]  # fmt: skip
    says = (
        "Temperature T raises every ratio of two tokens to the power 1 / T: at 2 the first two's "
        f"{shown(ratios.rows[0][1])} becomes its square root, {shown(ratios.rows[0][2])}, as the course's 2.24 becomes "
        "1.50, and what was far behind is seen. These shares tell a learner which mistakes are near and which are "
        "far, where the one right token tells it nothing but itself. Another model, or other rounding of its weights, "
        "has another first ratio; the square root holds for all."
    )
    lines = {
        f"temperature {value:g}": [(name, row[at] / shares[0][at]) for name, row in zip(named, shares, strict=True)]
        for at, value in enumerate(TEMPERATURES, 1)
    }
    title = "A higher temperature shows what stands behind the first"
    return Finding(tables, says, [Drawing(title, "next token", "probability, of the likeliest's", lines, bars=True)])


def _ratios(tokens: Candidates, best: np.ndarray, named: list[str], cold: np.ndarray, warm: np.ndarray) -> Table:
    """How many times as likely the first is as each other."""
    rows = [
        (name, float(cold[best[0]] / cold[place]), float(warm[best[0]] / warm[place]))
        for name, place in zip(named[1:], best[1:], strict=True)
    ]
    return Table(f"how many times as likely {named[0]} is", ("as", "at 1", "at 2"), rows)


def entropy(shares: np.ndarray) -> float:
    """Bits of a distribution float64 [k]."""
    some = shares[shares > 0]
    return float(-(some * np.log2(some)).sum())


def tokens_within(shares: np.ndarray, part: float) -> int:
    """How many tokens, likeliest first, hold that part together."""
    return int(np.searchsorted(np.cumsum(np.sort(shares)[::-1]), part)) + 1

"""Multiply-adds to generate T tokens from cold, with the cache and without: by formula, and counted in the code."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...cached_sequence import CachedSequence
from ...config import ModelConfig
from ...reference import forward
from ..cost import multiply_adds
from .counting import Counted, CountedModel, counted_tensors
from .finding import Drawing, Finding, Table
from .setting import Setting
from .shapes import shape

LENGTHS = (16, 64, 256, 1024, 4096, 16_384)
SMALL = shape(2, 4, 2, 8, 32, 48, 50)  # of which every multiply-add is counted
COUNTED_LENGTHS = (1, 2, 4, 8, 16)

Passes = Callable[[int, int], float]  # new tokens, and how many of them get logits -> multiply-adds with weights


def measure(setting: Setting) -> Finding:
    """The formula for this model, and the same formula beside a count of a small one."""
    tensors = setting.llm.model.tensors

    def with_weights(new: int, wanted: int) -> float:
        return sum(multiply_adds(tensors, new, wanted).values())

    lengths = [n for n in LENGTHS if n <= setting.llm.context]
    rows, weights, attention = [], [], []
    for n in lengths:
        cached, cold = with_cache(setting.config, with_weights, n), without_cache(setting.config, with_weights, n)
        rows.append((n, *(1e-9 * part for part in (*cached, *cold)), sum(cold) / sum(cached)))
        weights.append((n, cold[0] / cached[0]))
        attention.append((n, cold[1] / cached[1]))
    small = counted()
    columns = (
        "tokens", "with: weights", "with: attention", "without: weights", "without: attention", "times as many without"
    )  # fmt: skip
    return Finding(
        [
            Table("billions of multiply-adds to generate so many tokens from cold", columns, rows),
            _powers(rows),
            small,
        ],
        _says(lengths[-1], weights[-1][1], attention[-1][1], all(row[1::2] == row[2::2] for row in small.rows)),
        [
            Drawing(
                "The longer the text, the more a cache saves",
                "tokens generated",
                "times the multiply-adds with a cache",
                {"weights": weights, "attention": attention},
                log_x=True,
                log_y=True,
            )
        ],
    )


def _powers(rows: list[tuple]) -> Table:
    """Of the number of tokens, by the two longest texts."""
    (short, *before, _), (long, *after, _) = rows[-2:]
    powers = [math.log(b / a) / math.log(long / short) for a, b in zip(before, after, strict=True)]
    names = ("with: weights", "with: attention", "without: weights", "without: attention")
    title = f"the power of the number of tokens that they grow with, from {short:,} to {long:,}"
    courses = (None, "quadratic", None, "cubic")
    return Table(title, ("", "here", "course"), list(zip(names, powers, courses, strict=True)))


def _says(tokens: int, weights: float, attention: float, counts_agree: bool) -> str:
    counts = "equal the formula to the last multiply-add" if counts_agree else "differ from the formula"
    return (
        "With the cache, products with weights grow with the number of tokens and attention with its square; without "
        f"it they grow with the square and the cube. At {tokens:,} tokens that is {weights:,.0f} times as many with "
        f"weights, and {attention:,.0f} times as many of attention, two thirds of the number of tokens where no window "
        "bounds it. Counts in the code as it runs, of a small model through the reference without a cache and through "
        f"the cached pass, {counts}."
    )


def with_cache(config: ModelConfig, with_weights: Passes, tokens: int) -> tuple[float, int]:
    """Multiply-adds with weights and of attention: each token once, which looks at itself and those before it."""
    return tokens * with_weights(1, 1), sum(_attention(config, 1, n) for n in range(1, tokens + 1))


def without_cache(config: ModelConfig, with_weights: Passes, tokens: int) -> tuple[float, int]:
    """The same where the n-th step runs n tokens, each of which looks at all n; the head takes the last alone."""
    one, two = with_weights(1, 1), with_weights(2, 1)
    weights = tokens * (one + (two - one) * (tokens - 1) / 2)  # the sum of with_weights(n, 1), which is even in n
    return weights, sum(_attention(config, n, n) for n in range(1, tokens + 1))


def _attention(config: ModelConfig, queries: int, keys: int) -> int:
    """Of all heads and layers: each query with each key it is multiplied with, then the shares with the values.

    A layer with a window multiplies the keys in it.
    """
    pair = 2 * config.num_heads * config.head_dim
    return sum(pair * queries * min(keys, layer.window or keys) for layer in config.layers)


def counted() -> Table:
    """Small cases, counted in the code as it runs, beside the formula."""
    tensors = counted_tensors(SMALL)

    def with_weights(new: int, wanted: int) -> float:
        return sum(multiply_adds(tensors, new, wanted).values())

    head = SMALL.vocab_size * SMALL.hidden_size
    rows = []
    for n in COUNTED_LENGTHS:
        ids = np.arange(n)
        held = CachedSequence(CountedModel(SMALL, tensors))
        cached = _count(lambda: [held.step(id) for id in ids.tolist()])  # noqa: B023
        # the reference scores what follows every token: those of all but the last are left out
        cold = sum(_count(lambda: forward(SMALL, tensors, ids[:m])) - (m - 1) * head for m in range(1, n + 1))  # noqa: B023
        by_formula = (sum(way(SMALL, with_weights, n)) for way in (with_cache, without_cache))
        formula, cold_formula = map(round, by_formula)
        rows.append((n, formula, cached, cold_formula, cold))
    columns = ("tokens", "with, by formula", "counted", "without, by formula", "counted")
    return Table("multiply-adds of a small model", columns, rows)


def _count(work: Callable[[], object]) -> int:
    before = Counted.multiply_adds
    work()
    return Counted.multiply_adds - before

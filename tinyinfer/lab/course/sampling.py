"""What order, temperature and truncation do: to one distribution, and to texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...llm import LLM
from ...sampling import SamplingParams
from ...sampling.candidates import probabilities
from ...sampling.params import ORDER
from ...sampling.sampler import Sampler
from .finding import Drawing, Finding, Table
from .setting import Setting

PROMPT = "The old lighthouse keeper opened the door and saw"
LAST = (*(name for name in ORDER if name != "temperature"), "temperature")  # as llama.cpp has it
CUTS: dict[str, dict[str, Any]] = {
    "none": {}, "top-k 40": {"top_k": 40}, "top-p 0.9": {"top_p": 0.9}, "min-p 0.1": {"min_p": 0.1},
    "typical 0.9": {"typical_p": 0.9}, "top-n-sigma 1": {"top_n_sigma": 1.0},
}  # fmt: skip
GRID = ("none", "top-p 0.9", "min-p 0.1")
TEMPERATURES = (0.5, 1.0, 1.5)


def measure(setting: Setting) -> Finding:
    """Kept sets in two orders, and how varied and how repetitive texts are over a grid."""
    llm = setting.llm
    prompt = PROMPT if setting.text is None else setting.text
    ids = llm.prompt_ids(prompt)
    logits = llm.forward(ids)[-1]
    texts, tokens = (8, 128) if setting.full else (2, 32)
    grid = _grid(setting, ids, texts, tokens)
    orders = _orders(logits)
    tables = [
        Table("tokens kept after one prompt, by which comes first", ORDER_COLUMNS, orders),
        Table(f"{texts} texts of {tokens} tokens each", GRID_COLUMNS, grid),
    ]
    lines = {cut: [(row[1], row[2]) for row in grid if row[0] == cut] for cut in GRID}
    title = "Temperature brings variety, truncation takes some of it"
    return Finding(
        tables,
        _says(orders, grid, len(logits)),
        [Drawing(title, "temperature", "distinct tokens / all", lines)],
    )


def _says(orders: list[tuple], grid: list[tuple], vocab: int) -> str:
    moved = dict.fromkeys(name for name, _, first, last, *_ in orders if first != last)
    still = [name for name in CUTS if name not in moved and name != "none"]
    kept = {(name, temperature): first for name, temperature, first, *_ in orders}
    hot = max(TEMPERATURES)
    uncut, cut = (next(row[2] for row in grid if row[:2] == (name, hot)) for name in ("none", "min-p 0.1"))
    changed = f"of {', '.join(moved)}, which go by probabilities," if moved else "of none of these, after this prompt,"
    return (
        f"Whether the temperature comes before a truncation or after it changes the kept set {changed} and not of "
        f"{', '.join(still)}; that order changes it is what the course says. Behind temperature {hot:g} top-p 0.9 "
        f"keeps {kept['top-p 0.9', hot]:,} of {vocab:,} tokens and min-p 0.1, which goes by the likeliest, "
        f"{kept['min-p 0.1', hot]:,}. Distinct tokens count variety, not sense, {uncut:.0%} of all in hot texts uncut "
        f"and {cut:.0%} with min-p, and a few short texts give only a rough number."
    )


ORDER_COLUMNS = (
    "truncation", "temperature", "kept, it first", "kept, truncation first", "likeliest's share, it first",
    "likeliest's share, truncation first",
)  # fmt: skip
GRID_COLUMNS = ("truncation", "temperature", "distinct-1", "distinct-2", "distinct-3", "repeated 4-grams")


def _orders(logits: np.ndarray) -> list[tuple]:
    rows = []
    for name, cut in CUTS.items():
        for temperature in TEMPERATURES:
            first, last = (_kept(logits, order, temperature=temperature, **cut) for order in (ORDER, LAST))
            rows.append((name, temperature, len(first), len(last), float(first.max()), float(last.max())))
    return rows


def _kept(logits: np.ndarray, order: tuple[str, ...], **params: Any) -> np.ndarray:
    """The probabilities that a token would be drawn by."""
    sampler = Sampler(SamplingParams(order=order, seed=0, **params), len(logits))
    return probabilities(sampler.distribution(logits))


def _grid(setting: Setting, ids: list[int], texts: int, tokens: int) -> list[tuple]:
    rows = []
    for cut in GRID:
        for temperature in TEMPERATURES:
            setting.say(f"{cut}, temperature {temperature:g}")
            answers = _answers(setting.llm, ids, texts, tokens, temperature, CUTS[cut])
            distinct = [distinct_n(answers, n) for n in (1, 2, 3)]
            rows.append((cut, temperature, *distinct, float(np.mean([repeated(one, 4) for one in answers]))))
    return rows


def _answers(
    llm: LLM, ids: list[int], texts: int, tokens: int, temperature: float, cut: dict[str, Any]
) -> list[list[int]]:
    """Texts of the same length, whatever the model advises."""
    neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0}
    params = SamplingParams(
        max_tokens=tokens, ignore_eos=True, seed=0, **{**neutral, **cut, "temperature": temperature}
    )
    return [list(answer.ids) for answer in llm.samples(ids, texts, params)]


def distinct_n(texts: list[list[int]], n: int) -> float:
    """Distinct n-grams of all texts over all n-grams; 0 where there is none. https://arxiv.org/abs/1510.03055."""
    grams = [gram for ids in texts for gram in n_grams(ids, n)]
    return len(set(grams)) / len(grams) if grams else 0.0


def repeated(ids: list[int], n: int) -> float:
    """The share of a text's n-grams that stood in it before; 0 where there is none."""
    return 1 - distinct_n([ids], n) if len(ids) >= n else 0.0


def n_grams(ids: list[int], n: int) -> list[tuple[int, ...]]:
    """All runs of n tokens."""
    return [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]

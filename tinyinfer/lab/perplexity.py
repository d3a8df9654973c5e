"""Perplexity of a text, and how far one model's distributions are from another's on it.

A text longer than the window is read in windows that overlap: each begins `stride` tokens after the one before, and
scores only the tokens that no window before it has scored, so that all but the first window's have at least
window - stride tokens before them. Smaller strides give more context and take longer. That is Hugging Face's way;
llama.cpp's is stride = window / 2 without the first half of the first window.
Where the tokenizer asks for BOS, one stands before each window and counts as one of its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..cached_sequence import CachedSequence
from ..errors import BadRequest
from ..sampling.candidates import likeliest
from ..sampling.logprobs import perplexity

if TYPE_CHECKING:
    from ..llm import LLM


class Window(NamedTuple):
    """Tokens from `begin` to `end` of a text, of which those from `scored` on are scored."""

    begin: int
    scored: int
    end: int


@dataclass(frozen=True)
class Perplexity:
    """How surprised a model is by a text: natural logarithms, over the tokens that were scored."""

    tokens: int
    windows: int
    mean_surprise: float
    standard_error: float | None  # of the mean, as if the tokens were independent; None for one token
    bits_per_byte: float | None  # None where the tokens say nothing

    @property
    def perplexity(self) -> float:
        """exp of the mean surprise."""
        return perplexity(self.mean_surprise)

    @property
    def perplexity_error(self) -> float | None:
        """The standard error of the perplexity."""
        return None if self.standard_error is None else self.perplexity * self.standard_error


@dataclass(frozen=True)
class Divergence:
    """How far a model is from a reference, by Kullback-Leibler divergences from it to the model, in nats a token."""

    mean: float
    standard_error: float | None
    median: float
    percentile_99: float
    largest: float
    same_likeliest: float  # how often both find the same token the likeliest


def windows_of(count: int, window: int, stride: int, first: int) -> list[Window]:
    """Windows over `count` tokens; `first` is 0 where something stands before each window, 1 where nothing does.

    Raises `BadRequest` where stride or window are impossible.
    """
    if window < 2:
        raise BadRequest(f"the window should be of at least 2 tokens, found {window}", "context")
    if not 1 <= stride <= window:
        raise BadRequest(f"stride should be from 1 to the window's {window:,} tokens, found {stride}", "stride")
    found, scored = [], 0
    for begin in range(0, count, stride):
        end = min(begin + window, count)
        found.append(Window(begin, max(scored, begin + first), end))
        scored = end
        if end == count:
            break
    return found


def measure(
    llm: LLM,
    text: str,
    window: int,
    stride: int,
    against: LLM | None = None,
    step: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Perplexity, Perplexity | None, Divergence | None]:
    """The perplexity of a text; with `against`, also that model's, and how far `llm` is from it.

    window and stride are tokens; `step` is told how many windows of how many are done. Raises `BadRequest` for a text
    of too few tokens, for an impossible window or stride, and where the models do not share a vocabulary;
    `SamplingError` for logits that are no numbers.
    """
    ids = llm.tokenizer.encode(text, add_special_tokens=False)
    bos = [id for id in llm.tokenizer.encode("")[:1] if id == llm.tokenizer.bos_token_id]
    models = [llm] if against is None else [llm, against]
    if against is not None:
        _check_vocabulary(llm, against)
    if window > min(model.context for model in models):
        longest = min(model.context for model in models)
        raise BadRequest(f"the window should be within the context of {longest:,}, found {window:,}", "context")
    windows = windows_of(len(ids), window - len(bos), stride, 0 if bos else 1)
    if sum(w.end - w.scored for w in windows) < 1:
        raise BadRequest(f"the text has {len(ids)} tokens, too few to predict one from another", "text")
    surprises: list[list[np.ndarray]] = [[] for _ in models]
    divergences, same = [], []
    for done, place in enumerate(windows, 1):
        for following, *logits in _scored_rows(models, bos, ids, place):
            logs = [log_softmax(rows) for rows in logits]
            for found, log in zip(surprises, logs, strict=True):
                found.append(-log[np.arange(len(following)), following])
            if against is not None:
                divergences.append((np.exp(logs[1]) * (logs[1] - logs[0])).sum(1))
                same.append(logs[1].argmax(1) == logs[0].argmax(1))
        step(done, len(windows))
    scored = [id for w in windows for id in ids[w.scored : w.end]]
    size = sum(len(llm.tokenizer.token_bytes(id)) for id in scored)
    results = [_perplexity(np.concatenate(found), len(windows), size) for found in surprises]
    if against is None:
        return results[0], None, None
    return results[0], results[1], _divergence(np.concatenate(divergences), np.concatenate(same))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities float64 [n, vocab] of logits float32 [n, vocab]; raises `SamplingError` where one is NaN."""
    best = logits.max(1, keepdims=True)
    for row in np.flatnonzero(~np.isfinite(best)):
        likeliest(logits[row])  # which says what is wrong
    shifted = logits.astype(np.float64) - best
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def _scored_rows(models: Sequence[LLM], bos: list[int], ids: list[int], place: Window) -> Iterator[tuple]:
    """The scored tokens of a window, some at a time, and each model's logits before them."""
    fed = bos + ids[place.begin : place.end]
    first = len(bos) + place.scored - place.begin - 1  # the row that predicts the first scored token
    at = 0
    for parts in zip(*(CachedSequence(model.model).rows(fed[:-1]) for model in models), strict=True):
        for begin in range(max(first - at, 0), len(parts[0]), 32):  # float64 takes room
            rows = [part[begin : begin + 32] for part in parts]
            following = fed[at + begin + 1 :][: len(rows[0])]
            yield np.array(following), *rows
        at += len(parts[0])


def _check_vocabulary(llm: LLM, against: LLM) -> None:
    sizes = [model.config.vocab_size for model in (llm, against)]
    if sizes[0] != sizes[1]:
        raise BadRequest(f"the models have vocabularies of {sizes[0]:,} and {sizes[1]:,} tokens", "against")
    if llm.tokenizer.ids_of_tokens != against.tokenizer.ids_of_tokens:
        raise BadRequest(f"{against.path} has other tokens than {llm.path}: nothing can be compared", "against")


def _perplexity(surprises: np.ndarray, windows: int, size: int) -> Perplexity:
    mean = float(surprises.mean())
    bits = float(surprises.sum()) / math.log(2) / size if size else None
    return Perplexity(len(surprises), windows, mean, _standard_error(surprises), bits)


def _divergence(values: np.ndarray, same: np.ndarray) -> Divergence:
    values = np.maximum(values, 0)  # equal distributions can round to a little below
    middle, high = np.percentile(values, [50, 99])
    return Divergence(
        float(values.mean()), _standard_error(values), float(middle), float(high), float(values.max()),
        float(same.mean()),
    )  # fmt: skip


def _standard_error(values: np.ndarray) -> float | None:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None

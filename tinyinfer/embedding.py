"""Texts to vectors: the model's last hidden states, one vector a text made of them.

    text -> ids -> hidden states [n, hidden], after the last norm -> pooled [hidden] -> of length 1

No logits are computed. Texts that are short go through the model together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .cached_sequence import Adapters
from .errors import BadRequest
from .model.forward import MOST_ROWS, Chunk, Model

POOLINGS = ("mean", "last", "cls")


def embed(
    model: Model, texts: Sequence[list[int]], pooling: str = "mean", normalize: bool = True, adapters: Adapters = ()
) -> np.ndarray:
    """A vector for each text, valid ids, at least one: float32 [n, hidden].

    pooling    "mean" of all its tokens, the "last" token, which alone has seen the whole, or "cls", the first, for
               models that see in both directions
    normalize  divide each by its length; a vector of zeros stays so

    Raises `BadRequest` for another pooling.
    """
    if pooling not in POOLINGS:
        raise BadRequest(f"pooling should be one of {', '.join(POOLINGS)}, found {pooling!r}", "pooling")
    cache = model.new_cache()
    pooled = np.zeros((len(texts), model.config.hidden_size))
    for numbers in _together(texts):
        sequences = [cache.sequence() for _ in numbers]
        for begin in range(0, max(len(texts[number]) for number in numbers), MOST_ROWS):
            parts = [np.array(texts[number][begin : begin + MOST_ROWS]) for number in numbers]
            chunks = [
                Chunk(sequence, ids, len(texts[number]), slice(0, 0), adapters)
                for sequence, ids, number in zip(sequences, parts, numbers, strict=True)
            ]
            ends = np.cumsum([len(ids) for ids in parts])
            for number, states in zip(numbers, np.split(model.hidden(chunks), ends[:-1]), strict=True):
                if pooling == "mean":
                    pooled[number] += states.sum(0, dtype=np.float64) / len(texts[number])
                elif pooling == "last" or begin == 0:
                    pooled[number] = states[-1 if pooling == "last" else 0]
        for sequence in sequences:
            sequence.release()
    if normalize:
        lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
        pooled /= np.where(lengths > 0, lengths, 1)
    return pooled.astype(np.float32)


def _together(texts: Sequence[list[int]]) -> Iterator[list[int]]:
    """The numbers of texts, in order, in groups that fit into one step; a longer one alone."""
    group: list[int] = []
    for number, text in enumerate(texts):
        if group and sum(len(texts[other]) for other in group) + len(text) > MOST_ROWS:
            yield group
            group = []
        group.append(number)
    if group:
        yield group

"""Where the inputs of matrices can be divided by factors, dimension by dimension, and the model says the same.

Factors that multiply a matrix's columns have to be taken out of its inputs. Those come from something that can be
divided itself, so that the model has no operation more than before:

    a norm's weights          before queries, keys and values; before gate and up
    the rows of the values    before the output of attention, which mixes values and bends nothing
    the rows of up            before down: the gate multiplies what up gives

Which of these hold is read off the model's facts: that a norm has weights, that values are not clipped, that the gate
is not clamped, that nothing else reads what comes of the source. Where a key-value head serves several query heads,
columns of the output that read the same value have one factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..config import LayerConfig, ModelConfig


@dataclass(frozen=True)
class Fold:
    """What can be divided, and the matrices that read what comes of it, by their plain names.

    heads    groups, shares, size: dimension [g, d] of the source is column [g, s, d] of the readers, for every s
    offset   what is added to the source's numbers where they are used
    """

    source: str
    readers: tuple[str, ...]
    heads: tuple[int, int, int]
    offset: float = 0.0

    def even(self, columns: np.ndarray) -> np.ndarray:
        """The same number, their mean, for columns that read the same dimension: [in] -> [in]."""
        return np.broadcast_to(columns.reshape(self.heads).mean(axis=1, keepdims=True), self.heads).reshape(-1)

    def of_source(self, columns: np.ndarray) -> np.ndarray:
        """Numbers that are even, one for each dimension of the source: [in] -> [in / shares]."""
        return columns.reshape(self.heads)[:, 0].reshape(-1)


def folds(config: ModelConfig, settings: LayerConfig) -> Iterator[Fold]:
    """The folds of one layer. Experts are left alone: a router reads what they do, and each is of a few tokens."""
    hidden = (1, 1, config.hidden_size)
    before = config.layer_norms if config.norm.weight else ()
    thinking = ("gate", "up") if config.gated else ("up",)
    one_norm = config.parallel and "mlp_norm" not in config.layer_norms  # for both halves of the layer
    if "attention_norm" in before and not (one_norm and settings.sparse):
        readers = _attention_readers(config) + (thinking if one_norm else ())
        yield Fold("attention_norm", readers, hidden, config.norm.offset)
    if "mlp_norm" in before and not settings.sparse:
        yield Fold("mlp_norm", thinking, hidden, config.norm.offset)
    if not config.latent and config.qkv_clip is None:
        heads = (config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim)
        yield Fold("value", ("output",), heads)
    if config.gated and config.gate_limit is None and not settings.sparse:
        yield Fold("up", ("down",), (1, 1, config.intermediate_size))


def _attention_readers(config: ModelConfig) -> tuple[str, ...]:
    if config.latent:
        return ("latent", "rotary_key", "query_down" if config.latent.query_rank else "query")
    return ("query", "key", "value")

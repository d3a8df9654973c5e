"""Latent attention on a tape: what is kept of a token is one short vector, which stands for the keys of all heads.

A head's key would be W_k c, c being that vector; but q . (W_k c) = (W_k^T q) . c, and a sum of values W_v c is W_v
times a sum of c. So queries are brought to c's side, attention runs over c as one head of keys and values that all
heads share, and what comes out is brought back (https://arxiv.org/abs/2405.04434, 2.1.2). What turns stands first:

    query of a head  [turned q | W_k^T q]        key, value  [turned k | c]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..config import ModelConfig
from ..kernels.tape_grouped import GroupedTape
from ..quant import PackedWeight, dequantize, take_rows
from .tensors import Tensor, Tensors, floats

Array = np.ndarray


class LatentAttention:
    """Writes latent attention down; the buffers between operations are the same for all layers."""

    def __init__(self, tape: GroupedTape, config: ModelConfig):
        self.tape, self.config, self.latent = tape, config, config.latent
        heads, latent = config.num_heads, config.latent
        self.shape = heads, *config.cache_shape
        dim = latent.rotary + latent.rank
        self.asked = tape.buffer(latent.query_rank) if latent.query_rank else None
        self.queries = tape.buffer(heads * config.head_dim)
        self.short = tape.buffer(latent.rank + latent.rotary)
        self.heads = tape.buffer((heads + 2) * dim)
        self.mixed = tape.buffer(heads * dim)
        self.values = tape.buffer(heads * latent.value_dim)
        self.routes = tape.routes(heads, heads)
        self.plain, self.brought = tape.places(latent.plain, self.routes), tape.places(latent.rank, self.routes)
        self.told = tape.places(latent.value_dim, self.routes)

    def begin(self) -> None:
        """What is the same for all layers of a step."""
        self.tape.send_to_all(self.routes)

    def write(self, weights: Mapping[str, Tensors], linear, x: Array, *how) -> Array:
        """What all heads tell of what they see, [rows, H * value_dim]; `how`: the rest of `tape.attention`."""
        tape, latent, heads = self.tape, self.latent, self.config.num_heads
        rotary, rank, dim = latent.rotary, latent.rank, latent.rotary + latent.rank
        self._ask(weights, linear, x)
        linear(x, weights, ("latent", "rotary_key"), self.short)
        tape.head_norm(self.short, 0, 1, floats(weights["latent_norm"])[None], None, latent.norm.eps, False)

        tape.move(self.queries, self.config.head_dim, self.plain, None, heads, latent.plain)
        self._for_each_head(self.plain, _to_short(weights["latent_key"], heads), self.brought)
        tape.move(self.brought, None, self.heads[:, rotary:], dim, heads, rank)
        tape.move(self.queries[:, latent.plain :], self.config.head_dim, self.heads, dim, heads, rotary)
        for place in (heads, heads + 1):  # as a key and as a value
            column = place * dim
            tape.move(self.short[:, rank:], dim, self.heads[:, column:], dim, 1, rotary)
            tape.move(self.short, dim, self.heads[:, column + rotary :], dim, 1, rank)

        tape.attention(self.heads, self.shape, self.mixed, *how)

        tape.move(self.mixed[:, rotary:], dim, self.brought, None, heads, rank)
        self._for_each_head(self.brought, _by_head(weights["latent_value"], heads), self.told)
        tape.move(self.told, None, self.values, latent.value_dim, heads, latent.value_dim)
        return self.values

    def _for_each_head(self, x: Array, weights: Sequence[Tensor], out: Array) -> None:
        self.tape.grouped_linear(x, [weights], [[None] * len(weights)], self.routes, out)

    def _ask(self, weights: Mapping[str, Tensors], linear, x: Array) -> None:
        """The queries of all heads, straight from x or by way of a short vector."""
        if self.asked is None:
            linear(x, weights, ("query",), self.queries)
            return
        linear(x, weights, ("query_down",), self.asked)
        self.tape.norm(self.asked, floats(weights["query_down_norm"]), self.latent.norm.eps, self.asked)
        linear(self.asked, weights, ("query_up",), self.queries)


def _by_head(weight: Tensor, heads: int) -> list[Tensor]:
    """The rows of each head."""
    rows = np.arange(len(weight)).reshape(heads, -1)
    if isinstance(weight, PackedWeight):
        return [take_rows(weight, of_head) for of_head in rows]
    return list(weight.reshape(heads, -1, weight.shape[1]))


def _to_short(weight: Tensor, heads: int) -> list[Array]:
    """For each head the way from its queries to the short vector's side, [rank, plain]; as floats."""
    weight = dequantize(weight) if isinstance(weight, PackedWeight) else weight
    return [of_head.T for of_head in _by_head(weight, heads)]

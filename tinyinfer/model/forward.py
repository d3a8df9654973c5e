"""The fast forward pass: what a layer does, in the order it does it, for any mix of sequences at once.

Its equations are those of `reference.py`; what is added is the cache. A step takes chunks, each some new tokens of one
sequence. Decoding one token, prefilling 512, and a mixed step of eight users are the same call: everything but
attention treats the tokens of all chunks as rows of one matrix, so that each weight is read once a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .. import cache as kv
from ..checkpoint.safetensors import to_float32
from ..config import LayerConfig, ModelConfig, Rope
from ..kernels.attention import attend
from ..reference import activation, embed, rms_norm, rotate, softcap
from .linear import Linear
from .names import ModelTensors
from .rope import rotary_angles


@dataclass(frozen=True)
class Chunk:
    """New tokens of one sequence, and which of them need logits.

    Some rotary scalings go by how long the text is. A prompt fed in several chunks says its whole length with each, and
    so gives what it gives when fed at once; by default the text ends with the chunk.
    """

    sequence: kv.Sequence
    ids: np.ndarray  # int [n]
    text_length: int | None = None
    logits: slice = field(default_factory=lambda: slice(-1, None))  # which of the n; by default the last


class Model:
    """Weights ready to run. Holds no state between steps: that is the cache's."""

    def __init__(self, config: ModelConfig, tensors: ModelTensors):
        self.config, self.tensors = config, tensors
        self.layers = [
            Layer(config, settings, weights) for settings, weights in zip(config.layers, tensors.layers, strict=True)
        ]
        self.final_norm = _norm_weight(config, tensors.final_norm)
        self.head = Linear([tensors.head])

    def forward(self, chunks: Sequence[Chunk]) -> np.ndarray:
        """Run new tokens through the model: float32 [rows, vocab], the wanted rows of each chunk in order.

        The sequences' keys and values are written to their cache, and their lengths grow by the new tokens.
        Raises `ValueError` where two chunks are of one sequence: each would overwrite what the other has stored.
        """
        if len({id(chunk.sequence) for chunk in chunks}) < len(chunks):
            raise ValueError("the chunks of a step must be of different sequences")
        for chunk in chunks:
            chunk.sequence.reserve(len(chunk.ids))
        batch = Batch(chunks)
        x = embed(self.config, self.tensors, np.concatenate([chunk.ids for chunk in chunks]))
        for index, layer in enumerate(self.layers):
            x = layer.forward(x, batch, index)
        wanted = np.concatenate([x[rows][chunk.logits] for chunk, rows in batch])
        logits = self.head(rms_norm(wanted, self.final_norm, self.config.norm_eps))
        for chunk in chunks:
            chunk.sequence.advance(len(chunk.ids))
        return softcap(logits, self.config.logit_softcap)


class Batch:
    """The chunks of one step, and what every layer needs to know of them, worked out once."""

    def __init__(self, chunks: Sequence[Chunk]):
        self.chunks = chunks
        ends = np.cumsum([len(chunk.ids) for chunk in chunks])
        self.rows = [slice(end - len(chunk.ids), end) for chunk, end in zip(chunks, ends, strict=True)]
        self._angles: dict[Rope, tuple[np.ndarray, np.ndarray]] = {}
        self._slots = [_chunk_slots(chunk) for chunk in chunks]

    def __iter__(self):
        """Each chunk with the rows of the step's matrices that are its own."""
        return iter(zip(self.chunks, self.rows, strict=True))

    def angles(self, rope: Rope) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of every row's position, float32 [rows, dims / 2] each."""
        if rope not in self._angles:
            parts = [_angles(rope, chunk) for chunk in self.chunks]
            cos, sin = (np.concatenate(part) for part in zip(*parts, strict=True))
            self._angles[rope] = cos, sin
        return self._angles[rope]

    def write_and_attend(
        self, index: int, query: np.ndarray, key: np.ndarray, value: np.ndarray, config: ModelConfig
    ) -> np.ndarray:
        """Put new keys and values in layer `index`'s cache, then let each chunk look at its own sequence.

        query float32 [rows, H, D], key and value float32 [rows, G, D]. Returns float32 [rows, H, D].
        """
        out = np.empty_like(query)
        for (chunk, rows), slots in zip(self, self._slots, strict=True):
            pool_index, layer = chunk.sequence.cache.layer_pools[index]
            pool = chunk.sequence.cache.pools[pool_index]
            written, seen = slots[pool_index]
            pool.keys[layer, written], pool.values[layer, written] = key[rows], value[rows]
            out[rows] = attend(
                query[rows], pool.keys[layer, seen], pool.values[layer, seen],
                config.attention_scale, pool.window, config.attention_softcap,
            )  # fmt: skip
        return out


def _angles(rope: Rope, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    start, count = chunk.sequence.length, len(chunk.ids)
    return rotary_angles(rope, start, count, chunk.text_length or start + count)


def _chunk_slots(chunk: Chunk) -> list[tuple[kv.Slots, kv.Slots]]:
    """For each pool, where a chunk's new tokens are written, and where all that is held of its sequence is read."""
    begin = chunk.sequence.length
    end = begin + len(chunk.ids)
    return [(table.slots(begin, end), table.slots(table.first_position, end)) for table in chunk.sequence.tables]


class Layer:
    """One layer's weights, and what it does with them."""

    def __init__(self, config: ModelConfig, settings: LayerConfig, weights: Mapping[str, np.ndarray]):
        self.config, self.rope = config, settings.rope
        self.query_key_value = _linear(weights, "query", "key", "value")
        self.output = _linear(weights, "output")
        self.gate_up = _linear(weights, "gate", "up")
        self.down = _linear(weights, "down")
        self.norms = {name: _norm_weight(config, array) for name, array in weights.items() if name.endswith("norm")}

    def forward(self, x: np.ndarray, batch: Batch, index: int) -> np.ndarray:
        """Float32 [rows, hidden] -> the same."""
        seen = self._attention(self._norm("attention_norm", x), batch, index)
        x = x + (self._norm("attention_post_norm", seen) if self.config.post_norms else seen)
        thought = self._feed_forward(self._norm("mlp_norm", x))
        return x + (self._norm("mlp_post_norm", thought) if self.config.post_norms else thought)

    def _attention(self, x: np.ndarray, batch: Batch, index: int) -> np.ndarray:
        config = self.config
        heads = self.query_key_value(x).reshape(len(x), -1, config.head_dim)  # [rows, H + 2 G, D]
        rotated = heads[:, : -config.num_kv_heads]  # queries and keys
        if config.qk_norm:
            query, key = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
            rotated = np.concatenate([self._norm("query_norm", query), self._norm("key_norm", key)], axis=1)
        rotated = rotate(rotated, *batch.angles(self.rope))
        query, key = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
        mixed = batch.write_and_attend(index, query, key, heads[:, -config.num_kv_heads :], config)
        return self.output(mixed.reshape(len(x), -1))

    def _feed_forward(self, x: np.ndarray) -> np.ndarray:
        gate, up = np.split(self.gate_up(x), 2, axis=-1)
        return self.down(activation(self.config.activation, gate) * up)

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return rms_norm(x, self.norms[name], self.config.norm_eps)


def _linear(weights: Mapping[str, np.ndarray], *names: str) -> Linear:
    return Linear([weights[name] for name in names], [weights.get(f"{name}_bias") for name in names])


def _norm_weight(config: ModelConfig, array: np.ndarray) -> np.ndarray:
    return to_float32(array) + np.float32(config.norm_offset)

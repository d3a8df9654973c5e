"""The fast forward pass: what a layer does, in the order it does it, for any mix of sequences at once.

Its equations are those of `reference.py`; what is added is the cache. A step takes chunks, each some new tokens of one
sequence. Decoding one token, prefilling 512, and a mixed step of eight users are the same call: everything but
attention treats the tokens of all chunks as rows of one matrix, so that each weight is read once a step.

The layers are written down once, on a `Tape` (`layers.py`); each step then runs the tape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from .. import cache as kv
from ..config import ModelConfig, Rope
from ..errors import BadRequest
from ..kernels.step import Step
from ..kernels.tape import Tape
from ..kernels.tape_grouped import GroupedTape
from ..reference import norm, softcap
from .adapters import Adapter, adapted_layers
from .layers import Layers, refuse_unsupported
from .rope import rotary_angles
from .tensors import ModelTensors
from .turns import Turns

MOST_ROWS = 512  # new tokens in one step: enough to fill the products, few enough to bound memory


@dataclass(frozen=True)
class Chunk:
    """New tokens of one sequence, and which of them need logits.

    Some rotary scalings go by how long the text is. A prompt fed in several chunks says its whole length with each, and
    so gives what it gives when fed at once; by default the text ends with the chunk.
    """

    sequence: kv.Sequence | kv.Branches
    ids: np.ndarray  # int [n]
    text_length: int | None = None
    logits: slice = field(default_factory=lambda: slice(-1, None))  # which of the n; by default the last
    adapters: Sequence[tuple[Adapter, float]] = ()  # those that the text goes through, each with a scale


class Model:
    """Weights ready to run. Holds no state between steps: that is the cache's. Steps of several threads take turns."""

    def __init__(
        self, config: ModelConfig, tensors: ModelTensors, *, kv_dtype: str = "float32", threads: int | None = None
    ):
        """kv_dtype: what its caches hold, see `cache.KV_DTYPES`; threads: see `kernels.threads.team_of`.

        Raises `UnsupportedModel` naming a fact of the model that only `reference.py` can work with yet.
        """
        refuse_unsupported(config)
        self.config, self.tensors, self.kv_dtype, self.threads = config, tensors, kv_dtype, threads
        self.ropes = list(dict.fromkeys(layer.rope for layer in config.layers if layer.rope))
        self.turns = Turns()  # models that are given the same one share the cores, a step at a time
        self.set_adapters(())

    def set_adapters(self, adapters: Sequence[Adapter]) -> None:
        """Have these adapters at hand, and no others, for chunks to go through; without any, nothing is as before."""
        tape = self._written(adapters)
        with self.turns.turn(self):
            self._tape, self._numbers = tape, {adapter: number for number, adapter in enumerate(adapters)}

    def _written(self, adapters: Sequence[Adapter]) -> Tape:
        config, tensors = self.config, self.tensors
        tape = self.new_tape()
        layers = Layers(tape, config, self.ropes)
        layers.begin(tensors)
        for index, weights in enumerate(adapted_layers(tensors.layers, adapters)):
            layers.write(index, config.layers[index], weights)
        layers.end(tensors)
        tape.finish(config.num_heads, config.cache_shape[1])
        return tape

    def new_tape(self) -> Tape:
        """An empty tape, of a kind that has the operations of this model."""
        kind = GroupedTape if self.config.experts or self.config.latent else Tape
        return kind(MOST_ROWS, self.kv_dtype, self.threads)

    def new_cache(self, block_size: int = kv.DEFAULT_BLOCK_SIZE) -> kv.KVCache:
        """An empty cache, of what this model keeps."""
        return kv.KVCache(self.config, block_size, self.kv_dtype, self.config.context)

    def forward(self, chunks: Sequence[Chunk]) -> np.ndarray:
        """Run new tokens through the model: float32 [rows, vocab], the wanted rows of each chunk in order.

        The sequences' keys and values are written to their cache, and their lengths grow by the new tokens.
        Raises `ValueError` for more than MOST_ROWS new tokens, for a cache of another dtype than the model's, beyond
        the last of positions that were learned, and where two chunks are of one sequence: each would overwrite what the
        other has stored. Raises `BadRequest` for an adapter that is not at hand (any more).
        """
        with self.turns.turn(self):  # numbers of adapters are those of the tape
            step = self._begun(chunks)
            self._tape.run(step)
        for chunk in chunks:
            chunk.sequence.advance(len(chunk.ids))
        return softcap(step.logits, self.config.logit_softcap)

    def hidden(self, chunks: Sequence[Chunk]) -> np.ndarray:
        """The vectors after the last norm, from which logits would be made: float32 [new tokens, hidden], of all.

        Which logits a chunk wants is no matter; otherwise as `forward`.
        """
        with self.turns.turn(self):
            vectors = self._tape.run_layers(self._begun(chunks))
        for chunk in chunks:
            chunk.sequence.advance(len(chunk.ids))
        vectors *= np.float32(self.config.residual_scale)  # by which those of the layers are divided
        return norm(self.config.norm, self.tensors.outer, "final_norm", vectors)

    def _begun(self, chunks: Sequence[Chunk]) -> Step:
        """The step of some chunks, checked, with room for what it stores."""
        if sum(len(chunk.ids) for chunk in chunks) > MOST_ROWS:
            raise ValueError(f"a step takes at most {MOST_ROWS} new tokens")
        if len({id(chunk.sequence) for chunk in chunks}) < len(chunks):
            raise ValueError("the chunks of a step must be of different sequences")
        if kinds := {chunk.sequence.cache.dtype for chunk in chunks} - {self.kv_dtype}:
            raise ValueError(f"the model keeps keys and values in {self.kv_dtype}, found a cache of {kinds.pop()}")
        parts = [(chunk, part) for chunk in chunks for part in chunk.sequence.parts(len(chunk.ids))]
        longest = max((part.start + part.count for _, part in parts), default=0)
        if self.config.position_offset is not None and longest > self.config.max_positions:
            raise ValueError(f"the model has learned {self.config.max_positions} positions, found a text of {longest}")
        for chunk in chunks:
            chunk.sequence.reserve(len(chunk.ids))
        return self._step(chunks, parts)

    def has(self, adapters: Sequence[tuple[Adapter, float]]) -> bool:
        """Whether a chunk could go through these adapters now."""
        return all(adapter in self._numbers for adapter, _ in adapters)

    def _step(self, chunks: Sequence[Chunk], parts: Sequence[tuple[Chunk, kv.Part]]) -> Step:
        rows = list(accumulate((len(chunk.ids) for chunk in chunks), initial=0))
        spans = (range(at, end)[chunk.logits] for chunk, at, end in zip(chunks, rows, rows[1:], strict=False))
        wanted = np.array([row for span in spans for row in span], np.int64)
        angles = [_angles(rope, parts) for rope in self.ropes]
        logits = np.empty((len(wanted), self.config.vocab_size), np.float32)
        ids = np.concatenate([chunk.ids for chunk in chunks]).astype(np.int64, copy=False)
        adapters = [self._numbered(chunk.adapters) for chunk, _ in parts]
        sequences, starts, counts = zip(*(part for _, part in parts), strict=True)
        also = _also_written(chunks, rows)
        return Step(sequences, counts, wanted, angles, logits, ids, adapters, starts, also)

    def _numbered(self, adapters: Sequence[tuple[Adapter, float]]) -> list[tuple[int, float]]:
        for adapter, _ in adapters:
            if adapter not in self._numbers:
                raise BadRequest(f"the adapter {adapter.source} is not loaded, or no longer", "adapters")
        return [(self._numbers[adapter], scale) for adapter, scale in adapters]


def _also_written(chunks: Sequence[Chunk], first_rows: Sequence[int]) -> list[tuple[int, int]]:
    """Rows of the step that parts beside their own look at, each with such a part."""
    found, parts = [], 0
    for chunk, first in zip(chunks, first_rows, strict=False):
        if isinstance(chunk.sequence, kv.Branches):
            found += [(first + row, parts + part) for row, part in chunk.sequence.also_written()]
        parts += len(chunk.sequence.parts(len(chunk.ids)))
    return found


def _angles(rope: Rope, parts: Sequence[tuple[Chunk, kv.Part]]) -> list[np.ndarray]:
    """Cosines and sines of every row's position, float32 [rows, dims / 2] each."""
    found = []
    for chunk, (_, start, count) in parts:
        found.append(rotary_angles(rope, start, count, chunk.text_length or start + count))
    return [part[0] if len(part) == 1 else np.concatenate(part) for part in zip(*found, strict=True)]

"""The fast forward pass: what a layer does, in the order it does it, for any mix of sequences at once.

Its equations are those of `reference.py`; what is added is the cache. A step takes chunks, each some new tokens of one
sequence. Decoding one token, prefilling 512, and a mixed step of eight users are the same call: everything but
attention treats the tokens of all chunks as rows of one matrix, so that each weight is read once a step.

The layers are written down once, on a `Tape`; each step then runs the tape.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from .. import cache as kv
from ..checkpoint.safetensors import to_float32
from ..config import BEFORE, LayerConfig, ModelConfig, Rope
from ..errors import BadRequest, UnsupportedModel
from ..kernels.step import Step
from ..kernels.tape import ACTIVATIONS, Tape
from ..reference import softcap
from .adapters import Adapter, adapted_layers
from .rope import rotary_angles
from .tensors import ModelTensors

MOST_ROWS = 512  # new tokens in one step: enough to fill the products, few enough to bound memory


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
    adapters: Sequence[tuple[Adapter, float]] = ()  # those that the text goes through, each with a scale


class Model:
    """Weights ready to run. Holds no state between steps: that is the cache's. Steps of several threads take turns."""

    def __init__(
        self, config: ModelConfig, tensors: ModelTensors, *, kv_dtype: str = "float32", threads: int | None = None
    ):
        """kv_dtype: what its caches hold, see `cache.KV_DTYPES`; threads: see `kernels.threads.team_of`.

        Raises `UnsupportedModel` naming a fact of the model that only `reference.py` can work with yet.
        """
        _refuse_unsupported(config)
        self.config, self.tensors, self.kv_dtype, self.threads = config, tensors, kv_dtype, threads
        self.ropes = list(dict.fromkeys(layer.rope for layer in config.layers if layer.rope))
        self._new_turn()
        if hasattr(os, "register_at_fork"):  # another thread may have its turn just then; the child has no such thread
            me = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: (model := me()) and model._new_turn())
        self.set_adapters(())

    def set_adapters(self, adapters: Sequence[Adapter]) -> None:
        """Have these adapters at hand, and no others, for chunks to go through; without any, nothing is as before."""
        tape = self._written(adapters)
        with self._turn:
            self._tape, self._numbers = tape, {adapter: number for number, adapter in enumerate(adapters)}

    def _written(self, adapters: Sequence[Adapter]) -> Tape:
        config, tensors = self.config, self.tensors
        tape = Tape(MOST_ROWS, self.kv_dtype, self.threads)
        x = tape.buffer(config.hidden_size)
        tape.embed(tensors.embedding, config.embedding_scale, x)
        layers = Layers(tape, config, x, self.ropes)
        for index, weights in enumerate(adapted_layers(tensors.layers, adapters)):
            layers.write(index, config.layers[index], weights)
        last = tape.buffer(config.hidden_size, own=True)
        tape.gather(x, last)
        tape.norm(last, _norm_weight(config, tensors.outer["final_norm"]), config.norm.eps, last, wanted=True)
        tape.logits(last, tensors.head)
        tape.finish(config.num_heads, config.head_dim)
        return tape

    def new_cache(self, block_size: int = kv.DEFAULT_BLOCK_SIZE) -> kv.KVCache:
        """An empty cache, of what this model keeps."""
        return kv.KVCache(self.config, block_size, self.kv_dtype)

    def forward(self, chunks: Sequence[Chunk]) -> np.ndarray:
        """Run new tokens through the model: float32 [rows, vocab], the wanted rows of each chunk in order.

        The sequences' keys and values are written to their cache, and their lengths grow by the new tokens.
        Raises `ValueError` for more than MOST_ROWS new tokens, for a cache of another dtype than the model's, and where
        two chunks are of one sequence: each would overwrite what the other has stored. Raises `BadRequest` for an
        adapter that is not at hand (any more).
        """
        if sum(len(chunk.ids) for chunk in chunks) > MOST_ROWS:
            raise ValueError(f"a step takes at most {MOST_ROWS} new tokens")
        if len({id(chunk.sequence) for chunk in chunks}) < len(chunks):
            raise ValueError("the chunks of a step must be of different sequences")
        if kinds := {chunk.sequence.cache.dtype for chunk in chunks} - {self.kv_dtype}:
            raise ValueError(f"the model keeps keys and values in {self.kv_dtype}, found a cache of {kinds.pop()}")
        for chunk in chunks:
            chunk.sequence.reserve(len(chunk.ids))
        with self._turn:  # numbers of adapters are those of the tape
            step = self._step(chunks)
            self._tape.run(step)
        for chunk in chunks:
            chunk.sequence.advance(len(chunk.ids))
        return softcap(step.logits, self.config.logit_softcap)

    def _new_turn(self) -> None:
        self._turn = threading.Lock()

    def _step(self, chunks: Sequence[Chunk]) -> Step:
        counts = [len(chunk.ids) for chunk in chunks]
        firsts = accumulate(counts, initial=0)
        spans = (range(at, at + n)[chunk.logits] for chunk, n, at in zip(chunks, counts, firsts, strict=False))
        wanted = np.array([row for span in spans for row in span], np.int64)
        angles = [_angles(rope, chunks) for rope in self.ropes]
        logits = np.empty((len(wanted), self.config.vocab_size), np.float32)
        ids = np.concatenate([chunk.ids for chunk in chunks]).astype(np.int64, copy=False)
        adapters = [self._numbered(chunk.adapters) for chunk in chunks]
        return Step([chunk.sequence for chunk in chunks], counts, wanted, angles, logits, ids, adapters)

    def _numbered(self, adapters: Sequence[tuple[Adapter, float]]) -> list[tuple[int, float]]:
        for adapter, _ in adapters:
            if adapter not in self._numbers:
                raise BadRequest(f"the adapter {adapter.source} is not loaded, or no longer", "adapters")
        return [(self._numbers[adapter], scale) for adapter, scale in adapters]


class Layers:
    """Writes layers down; the buffers between operations are the same for all."""

    def __init__(self, tape: Tape, config: ModelConfig, x: np.ndarray, ropes: Sequence[Rope]):
        self.tape, self.config, self.x, self.ropes = tape, config, x, ropes
        self.shape = config.num_heads, config.num_kv_heads, config.head_dim
        self.places = kv.layer_places(config)
        self.normed = tape.buffer(config.hidden_size, own=True)
        self.heads = tape.buffer((config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
        self.mixed = tape.buffer(config.num_heads * config.head_dim, own=True)
        self.gate_up = tape.buffer(2 * config.intermediate_size)
        self.gated = tape.buffer(config.intermediate_size)
        self.result = tape.buffer(config.hidden_size)

    def write(self, index: int, settings: LayerConfig, weights: Mapping[str, np.ndarray]) -> None:
        """One layer: what it saw elsewhere, and what it makes of that, are added to x."""
        self._norm(weights["attention_norm"])
        self._attention(index, settings, weights)
        self._norm(weights["mlp_norm"])
        self._feed_forward(weights)

    def _norm(self, weight: np.ndarray) -> None:
        self.tape.norm(self.x, _norm_weight(self.config, weight), self.config.norm.eps, self.normed)

    def _attention(self, index: int, settings: LayerConfig, weights: Mapping[str, np.ndarray]) -> None:
        config, tape = self.config, self.tape
        norms = [_norm_weight(config, weights.get(name)) for name in ("query_norm", "key_norm")]
        place = self.places[index]
        rope = self.ropes.index(settings.rope), settings.rope.dims // 2
        self._linear(self.normed, weights, ("query", "key", "value"), self.heads)
        limits = settings.window, config.attention_scale, config.attention_softcap
        tape.attention(self.heads, self.shape, self.mixed, *rope, norms, config.norm.eps, *place, *limits)
        self._add(self.mixed, weights, "output", "attention_post_norm")

    def _feed_forward(self, weights: Mapping[str, np.ndarray]) -> None:
        pair = [weights["gate"], weights["up"]]
        biases, activation = _biases(weights, ("gate", "up")), self.config.activation
        self.tape.gated_linear(
            self.normed, pair, biases, activation, self.gate_up, self.gated, readers=[weights["down"]]
        )
        self._add(self.gated, weights, "down", "mlp_post_norm")

    def _add(self, y: np.ndarray, weights: Mapping[str, np.ndarray], name: str, post_norm: str) -> None:
        """x += linear(y), by way of a norm where the family has one there."""
        if post_norm not in self.config.layer_norms:
            self._linear(y, weights, (name,), self.x, add=True)
            return
        self._linear(y, weights, (name,), self.result)
        weight = _norm_weight(self.config, weights[post_norm])
        self.tape.norm(self.result, weight, self.config.norm.eps, self.result, total=self.x)

    def _linear(self, x, weights: Mapping[str, np.ndarray], names: Sequence[str], out: np.ndarray, add=False) -> None:
        self.tape.linear(x, [weights[name] for name in names], _biases(weights, names), out, add)


def _biases(weights: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray | None]:
    biases = [weights.get(f"{name}_bias") for name in names]
    return [None if bias is None else to_float32(bias) for bias in biases]


def _angles(rope: Rope, chunks: Sequence[Chunk]) -> list[np.ndarray]:
    """Cosines and sines of every row's position, float32 [rows, dims / 2] each."""
    parts = []
    for chunk in chunks:
        start, count = chunk.sequence.length, len(chunk.ids)
        parts.append(rotary_angles(rope, start, count, chunk.text_length or start + count))
    return [part[0] if len(part) == 1 else np.concatenate(part) for part in zip(*parts, strict=True)]


def _norm_weight(config: ModelConfig, array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else to_float32(array) + np.float32(config.norm.offset)


def _refuse_unsupported(config: ModelConfig) -> None:
    """Raise `UnsupportedModel` naming the first fact that the layers written here would get wrong."""
    norm = config.norm
    reasons = {
        "norms that take the mean off": norm.centered,
        "norms without weights": not norm.weight,
        "norms after attention and feed-forward alone": not set(BEFORE) <= set(config.layer_norms),
        "parallel attention and feed-forward": config.parallel,
        "learned positions": config.position_offset is not None,
        "a norm of the embedding": config.embedding_norm,
        "layers without rotation": any(layer.rope is None for layer in config.layers),
        "a scale of logits": config.logit_scale != 1,
        "a bias of the head": config.head_bias,
        "a scale of what layers add": config.residual_scale != 1,
        f"query and key norms over {config.qk_norm}": config.qk_norm not in (None, "head"),
        "clipped queries, keys and values": config.qkv_clip is not None,
        "linear biases of attention (ALiBi)": bool(config.alibi),
        "attention sinks": config.sinks,
        "latent attention": config.latent is not None,
        "feed-forwards without a gate": not config.gated,
        f"the activation {config.activation}": config.activation not in ACTIVATIONS,
        "mixtures of experts": any(layer.sparse for layer in config.layers),
    }
    if found := next((reason for reason, unsupported in reasons.items() if unsupported), None):
        raise UnsupportedModel(f"{config.architecture}: {found} can't be run yet, except by tinyinfer.reference")

"""What a layer does, in the order it does it, written on a `Tape`; the equations are those of `reference.py`.

Scales cost nothing: that of the logits is in the last norm's weights. Where what layers add is multiplied by r, x
stands here for the vectors divided by r, so that layers add to it as they are; the norms that read it are the same with
eps / r^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .. import cache as kv
from ..config import BEFORE, LayerConfig, ModelConfig, Rope
from ..errors import UnsupportedModel
from ..kernels.tape import Tape
from ..kernels.tape_grouped import GroupedTape
from .latent import LatentAttention
from .tensors import ModelTensors, Tensors, floats

Array = np.ndarray
Weights = Mapping[str, Tensors]


class Layers:
    """Writes layers down; the buffers between operations are the same for all."""

    def __init__(self, tape: Tape, config: ModelConfig, ropes: Sequence[Rope]):
        self.tape, self.config, self.ropes = tape, config, ropes
        self.shape = config.num_heads, config.num_kv_heads, config.head_dim
        self.places = kv.layer_places(config)
        self.eps = config.norm.eps / config.residual_scale**2  # of norms that read x
        self.x = tape.buffer(config.hidden_size)
        # Read again when x has changed? Then a thread that comes late can't work it out for itself any more.
        lasting = config.parallel or (config.experts is not None and config.experts.shared_size > 0)
        self.normed = tape.buffer(config.hidden_size, own=not lasting)
        self.mlp_normed = tape.buffer(config.hidden_size) if config.parallel else self.normed
        if config.latent:
            self.latent = LatentAttention(tape, config)
        else:
            self.heads = tape.buffer((config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
            self.mixed = tape.buffer(config.num_heads * config.head_dim, own=True)
        self.inner = tape.buffer((1 + config.gated) * config.intermediate_size)
        self.gated = tape.buffer(config.intermediate_size)
        self.result = tape.buffer(config.hidden_size)
        if config.experts:
            self._make_room_for_experts(tape, config)

    def _make_room_for_experts(self, tape: GroupedTape, config: ModelConfig) -> None:
        experts = config.experts
        self.routes = tape.routes(experts.count, experts.used)
        self.scores = tape.buffer(experts.count)
        self.sent = tape.places(config.hidden_size, self.routes)
        self.expert_inner = tape.places(2 * experts.size, self.routes)
        self.expert_gated = tape.places(experts.size, self.routes)
        self.expert_result = tape.places(config.hidden_size, self.routes)
        self.shared_inner, self.shared_gated = tape.buffer(2 * experts.shared_size), tape.buffer(experts.shared_size)

    def begin(self, tensors: ModelTensors) -> None:
        """Tokens become vectors."""
        tape, config, scale = self.tape, self.config, 1 / self.config.residual_scale
        tape.embed(tensors.embedding, config.embedding_scale * scale, self.x)
        if config.position_offset is not None:
            tape.add_positions(self.x, floats(tensors.outer["positions"]) * np.float32(scale), config.position_offset)
        if config.embedding_norm:
            self._norm(self.x, tensors.outer, "embedding_norm", self.x, self.eps, scale)
        if config.latent:
            self.latent.begin()

    def write(self, index: int, settings: LayerConfig, weights: Weights) -> None:
        """One layer: what it saw elsewhere, and what it makes of that, are added to x."""
        before = self._before(weights, "attention_norm", self.normed)
        if self.config.parallel:
            thinking = self._before(weights, "mlp_norm", self.mlp_normed, before)
            self._attention(index, settings, weights, before)
        else:
            self._attention(index, settings, weights, before)
            thinking = self._before(weights, "mlp_norm", self.mlp_normed)
        if settings.sparse:
            self._mixture(weights, thinking)
        else:
            self._feed_forward(weights, thinking)

    def end(self, tensors: ModelTensors) -> None:
        """The vectors that are asked for become logits."""
        tape, outer, scale = self.tape, tensors.outer, self.config.logit_scale
        tape.end_layers(self.x)
        last = tape.buffer(self.config.hidden_size, own=True)
        tape.gather(self.x, last)
        self._norm(last, outer, "final_norm", last, self.eps, scale, wanted=True)
        bias = floats(outer["head_bias"]) * np.float32(scale) if "head_bias" in outer else None
        tape.logits(last, tensors.head, bias)

    def _before(self, weights: Weights, name: str, out: Array, unnormed: Array | None = None) -> Array:
        """x by way of a norm where the family has one there; else x as it is, or `unnormed`."""
        if name not in self.config.layer_norms:
            return self.x if unnormed is None else unnormed
        self._norm(self.x, weights, name, out, self.eps)
        return out

    def _norm(self, x: Array, weights: Weights, name: str, out: Array, eps: float, scale: float = 1.0, **how) -> None:
        """out = norm(x) * scale."""
        weight, bias = self._norm_arrays(weights, name)
        scale = np.float32(scale)
        weight = np.full(x.shape[1], scale) if weight is None else weight * scale
        bias = None if bias is None else bias * scale
        self.tape.norm(x, weight, eps, out, bias=bias, centered=self.config.norm.centered, **how)

    def _norm_arrays(self, weights: Weights, name: str) -> tuple[Array | None, Array | None]:
        weight, bias = (floats(weights[key]) if key in weights else None for key in (name, f"{name}_bias"))
        return None if weight is None else weight + np.float32(self.config.norm.offset), bias

    def _attention(self, index: int, settings: LayerConfig, weights: Weights, x: Array) -> None:
        config = self.config
        rope = (self.ropes.index(settings.rope), settings.rope.dims // 2) if settings.rope else (0, 0)
        limits = settings.window, config.attention_scale, config.attention_softcap
        slopes = np.float32(config.alibi) if config.alibi else None
        sinks = floats(weights["sinks"]) if config.sinks else None
        rest = config.norm.eps, *self.places[index], *limits, slopes, sinks
        if config.latent:
            mixed = self.latent.write(weights, self._linear, x, *rope, [None, None], *rest)
        else:
            mixed = self.mixed
            self._linear(x, weights, ("query", "key", "value"), self.heads)
            norms = self._head_norms(weights)
            if config.qkv_clip is not None:
                self.tape.clip(self.heads, config.qkv_clip)
            self.tape.attention(self.heads, self.shape, mixed, *rope, norms, *rest)
        self._add(mixed, weights, "output", "attention_post_norm")

    def _head_norms(self, weights: Weights) -> list[Array | None]:
        """Normalise queries and keys, or give the weights with which attention is to do so."""
        config, begin = self.config, 0
        if config.qk_norm is None:
            return [None, None]
        arrays = [self._norm_arrays(weights, name) for name in ("query_norm", "key_norm")]
        if config.qk_norm == "head" and not config.norm.centered:
            return [weight for weight, _ in arrays]
        for (weight, bias), heads in zip(arrays, (config.num_heads, config.num_kv_heads), strict=True):
            numbers = heads * config.head_dim
            rows = weight.reshape(-1, numbers if config.qk_norm == "all heads" else config.head_dim)
            count = numbers // rows.shape[1]
            self.tape.head_norm(self.heads, begin, count, rows, bias, config.norm.eps, config.norm.centered)
            begin += numbers
        return [None, None]

    def _feed_forward(self, weights: Weights, x: Array) -> None:
        self._gated(x, weights, ("gate", "up") if self.config.gated else ("up",), "down", self.inner, self.gated)
        self._add(self.gated, weights, "down", "mlp_post_norm")

    def _gated(self, x: Array, weights: Weights, names: Sequence[str], down: str, inner: Array, out: Array) -> None:
        parts, biases = [weights[name] for name in names], _biases(weights, names)
        readers = [weights[down]]
        self.tape.gated_linear(x, parts, biases, self.config.activation, inner, out, readers, clamp=self._clamp)

    @property
    def _clamp(self) -> tuple[float, float] | None:
        limit = self.config.gate_limit
        return None if limit is None else (limit, self.config.gate_slope)

    def _mixture(self, weights: Weights, x: Array) -> None:
        """Each row goes to a few experts, which work on the rows that they are sent; and to the one that all share."""
        tape, routes = self.tape, self.routes
        self._linear(x, weights, ("router",), self.scores)
        correction = floats(weights["router_correction"]) if self.config.experts.correction else None
        tape.route(self.scores, correction, self.config.experts, routes)
        tape.spread(x, routes, self.sent)
        self._of_experts(self.sent, weights, ("expert_gate", "expert_up"), self.expert_inner)
        tape.gate_places(self.expert_inner, self.config.activation, routes, self.expert_gated, self._clamp)
        self._of_experts(self.expert_gated, weights, ("expert_down",), self.expert_result)
        tape.combine(self.expert_result, routes, self.x)
        if self.config.experts.shared_size:
            names = ("shared_gate", "shared_up")
            self._gated(x, weights, names, "shared_down", self.shared_inner, self.shared_gated)
            self._linear(self.shared_gated, weights, ("shared_down",), self.x, add=True)

    def _of_experts(self, x: Array, weights: Weights, names: Sequence[str], out: Array) -> None:
        nothing = [None] * self.config.experts.count
        biases = [list(map(floats, weights.get(f"{name}_bias", ()))) or nothing for name in names]
        self.tape.grouped_linear(x, [weights[name] for name in names], biases, self.routes, out)

    def _add(self, y: Array, weights: Weights, name: str, post_norm: str) -> None:
        """x += linear(y), by way of a norm where the family has one there."""
        if post_norm not in self.config.layer_norms:
            self._linear(y, weights, (name,), self.x, add=True)
            return
        self._linear(y, weights, (name,), self.result)
        self._norm(self.result, weights, post_norm, self.result, self.config.norm.eps, total=self.x)

    def _linear(self, x: Array, weights: Weights, names: Sequence[str], out: Array, add: bool = False) -> None:
        self.tape.linear(x, [weights[name] for name in names], _biases(weights, names), out, add)


def _biases(weights: Weights, names: Sequence[str]) -> list[Array | None]:
    return [floats(weights[f"{name}_bias"]) if f"{name}_bias" in weights else None for name in names]


def refuse_unsupported(config: ModelConfig) -> None:
    """Raise `UnsupportedModel` naming the first fact that the layers written here would get wrong."""
    reasons = {
        "mixtures of experts with norms after or without gates": (
            config.experts is not None and not (config.gated and "mlp_post_norm" not in config.layer_norms)
        ),
        "a scale of what layers add, without norms before": (
            config.residual_scale != 1 and not set(BEFORE) <= set(config.layer_norms)
        ),
    }
    if found := next((reason for reason, unsupported in reasons.items() if unsupported), None):
        raise UnsupportedModel(f"{config.architecture}: {found} can't be run yet, except by tinyinfer.reference")

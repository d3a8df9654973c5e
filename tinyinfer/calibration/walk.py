"""A checkpoint rounded by what its matrices meet, one layer after the other.

The text runs through the layers in order, and each layer is rounded when it is reached. The next one is calibrated on
what comes out of the rounded one, so that it makes up for some of what was lost.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import reference
from ..checkpoint.quantized import quantization_plan
from ..checkpoint.safetensors import to_float32
from ..checkpoint.source import (
    Checkpoint,
    LazyTensors,
    Tensor,
    naming,
    plain,
    plain_rows,
    rounded_names,
    tensor_forms,
    tensor_layout,
)
from ..config import ModelConfig, read_config
from ..errors import BadRequest
from ..model.tensors import Tensors, collect_tensors, floats, read_layer, stored_tensors
from ..quant import STEPS, Form, PackedWeight, awq, check_scales, check_weights, dequantize, gptq
from ..quant.curvature import hessian
from ..quant.layout import Encoded, pack_rows
from ..quant.steps import Steps
from ..text.tokenizer import Tokenizer
from .layer import Layer, run_layer
from .scaling import Scaling, find_scaling
from .text import usual_text, windows


@dataclass(frozen=True)
class Method:
    """How a layer is rounded: whether AWQ's factors are found for it, and what then chooses codes.

    encode   a matrix float32 [N, K], its form and the curvature of its inputs [K, K] -> its codes and scales
    """

    scaled: bool
    encode: Callable[[np.ndarray, Form, Steps, np.ndarray], Encoded]


METHODS = {"gptq": Method(False, gptq.encode), "awq": Method(True, awq.encode)}


def calibrated(
    checkpoint: Checkpoint, method: str, text: str | None = None, **choices: Any
) -> tuple[Checkpoint, dict[str, Any]]:
    """The model with the matrices inside of its layers rounded by a method, and what config.json should say of that.

    `choices` are those of `quantization_plan`, which says what each matrix becomes; those that have that form already
    stay as they are, and so does everything outside of the layers. `text` is calibrated on, by default the one that
    comes with the package. Tensors are made when they are asked for; asking for those of one layer makes all layers
    before it. Each stays in memory once made. Raises as `quantization_plan` and `quant.quantize` do, and `BadRequest`
    for another method, a scheme that is not of even steps, a text of too few or too many tokens, and where there is
    no matrix to choose for.
    """
    walk, facts = begin_walk(checkpoint, method, text, **choices)
    return replace(checkpoint, tensors=walk.tensors()), facts


def begin_walk(
    checkpoint: Checkpoint, method: str, text: str | None = None, **choices: Any
) -> tuple[Walk, dict[str, Any]]:
    """What `calibrated` goes by; raises as that."""
    if method not in METHODS:
        raise BadRequest(f"method should be one of rtn, {', '.join(METHODS)}, found {method!r}", "method")
    plan = quantization_plan(checkpoint.tensors, **choices)
    with naming(checkpoint.source):
        config = read_config(checkpoint.config)
        forms = _forms(checkpoint, config, plan, method)
    text = usual_text() if text is None else text
    parts = windows(Tokenizer.from_checkpoint(checkpoint), text)
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    facts = {"method": method, "calibration": {"tokens": sum(map(len, parts)), "sha256": digest}}
    return Walk(checkpoint, config, METHODS[method], forms, parts), facts


def _forms(checkpoint: Checkpoint, config: ModelConfig, plan: Mapping[str, Any], method: str) -> dict[str, Form]:
    """What each matrix becomes that there is something to choose for, in the order of layers."""
    already = tensor_forms(checkpoint.tensors)
    layers = (stored_tensors(config, index, checkpoint.tensors) for index in range(config.num_layers))
    forms = {one.name: plan[one.name] for layer in layers for one in layer if isinstance(plan[one.name], Form)}
    left = {name: form for name, form in forms.items() if already.get(name) != form}  # others are kept
    for form in left.values():
        if form.scheme not in STEPS:
            raise BadRequest(f"{method} is for {' and '.join(STEPS)}, found {form.scheme}", "method")
    if not left:
        reason = f"all have the form {next(iter(forms.values())).name} already" if forms else "none is to be quantized"
        nothing = f"there is no matrix in its layers for {method} to round"
        raise BadRequest(f"{checkpoint.source}: {nothing}: {reason}", "method")
    return left


class Walk:
    """A text on its way through a model's layers, which are rounded as it reaches them."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        method: Method,
        forms: Mapping[str, Form],
        parts: Sequence[Sequence[int]],
    ):
        """forms: what is rounded, by the checkpoint's names; parts: the ids of the text, some run together."""
        self.checkpoint, self.config, self.method, self.forms = checkpoint, config, method, forms
        self._parts = parts
        self._xs: list[np.ndarray] = []  # the text before the next layer, float32 [n, hidden] for each part
        self._made: dict[str, Tensor] = {}
        self._scalings: list[Scaling] = []  # of the layers behind
        self._layer_of = {
            one.name: index
            for index in range(config.num_layers)
            for one in stored_tensors(config, index, checkpoint.tensors)
        }
        self._last = max(self._layer_of[name] for name in forms)  # the text need not go beyond that layer

    def tensors(self) -> LazyTensors:
        """The checkpoint's tensors with those in `forms` rounded, layer after layer."""
        source = self.checkpoint.tensors
        layout, forms = dict(tensor_layout(source)), tensor_forms(source) | self.forms
        for name in self._layer_of:  # in the order in which they are made
            dtype, shape = layout.pop(name)
            layout[name] = (np.dtype("<f4") if name in self.forms or len(shape) == 1 else dtype, shape)
        return LazyTensors(layout, self._tensor, forms, self._floats, rounded_names(source) | set(self.forms))

    def _tensor(self, name: str) -> Tensor:
        if name not in self._layer_of:
            return self.checkpoint.tensors[name]
        while len(self._scalings) <= min(self._layer_of[name], self._last):
            self._step()
        if name in self._made:
            return self._made[name]
        tensor = self.checkpoint.tensors[name]
        return to_float32(tensor) if len(tensor.shape) == 1 else tensor

    def _floats(self, name: str, ids: np.ndarray | None) -> np.ndarray:
        """What a matrix was before it was rounded, and after it was scaled."""
        source = self.checkpoint.tensors
        if name not in self.forms:
            return plain(source, name) if ids is None else plain_rows(source, name, ids)
        self._tensor(name)
        whole = self._scalings[self._layer_of[name]].apply(name, to_float32(plain(source, name)))
        return whole if ids is None else whole[ids]

    def undone(self, name: str) -> np.ndarray:
        """What a rounded matrix is worth in the model as it was, without its factors: float32 [N, K]."""
        rounded = dequantize(self._tensor(name))
        return self._scalings[self._layer_of[name]].undo(name, rounded)

    def _step(self) -> None:
        """Round one layer by what it meets, and take the text through what it becomes."""
        config, index, source = self.config, len(self._scalings), self.checkpoint.tensors
        if index == 0:
            model = collect_tensors(config, source)
            self._xs = [reference.embed(config, model, np.array(ids)) for ids in self._parts]
        self._scalings.append(Scaling())
        if index in {self._layer_of[name] for name in self.forms}:
            self._round(index)
        if index == self._last:
            return
        weights = read_layer(config, index, ChainMap(self._made, source))
        weights = {name: _all_floats(tensor) for name, tensor in weights.items()}  # once for all parts of the text
        self._xs = [reference.transformer_layer(config, config.layers[index], weights, x) for x in self._xs]

    def _round(self, index: int) -> None:
        layer = run_layer(self.config, index, self.checkpoint.tensors, self._xs)
        for name in self.forms.keys() & layer.floats.keys():
            check_weights(layer.floats[name], name)
        if self.method.scaled:
            self._scalings[index] = find_scaling(self.config, self.config.layers[index], layer, self.forms)
        scaling = self._scalings[index]
        scaled = {name: scaling.apply(name, layer.floats[name]) for name in (*scaling.rows, *scaling.columns)}
        self._made |= scaled | self._rounded(layer, scaling, {**layer.floats, **scaled})

    def _rounded(self, layer: Layer, scaling: Scaling, exact: Mapping[str, np.ndarray]) -> dict[str, PackedWeight]:
        """The layer's matrices in their forms; those of the same inputs are worked on as one."""
        made = {}
        for together in layer.together(self.forms):
            name, form = together[0].name, self.forms[together[0].name]
            curvature = scaling.curvature(name, hessian(layer.inputs[name], together[0].shape[1]))
            stacked = np.concatenate([exact[one.name] for one in together])
            with np.errstate(over="ignore", invalid="ignore"):
                encoded = self.method.encode(stacked, form, STEPS[form.scheme], curvature)
            begin = 0
            for one in together:
                end = begin + one.shape[0]
                mine = tuple(None if part is None else part[begin:end] for part in encoded)
                check_scales(mine, stacked[begin:end], form, one.name)
                made[one.name] = _packed(mine, form, one.shape)
                begin = end
        return made


def _all_floats(tensor: Tensors) -> Tensors:
    return tuple(map(floats, tensor)) if isinstance(tensor, tuple) else floats(tensor)


def _packed(encoded: Encoded, form: Form, shape: tuple[int, ...]) -> PackedWeight:
    codes, scales, minimums = encoded
    return pack_rows(form, shape, lambda a, b: (codes[a:b], scales[a:b], None if minimums is None else minimums[a:b]))

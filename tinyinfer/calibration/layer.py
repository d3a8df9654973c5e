"""One layer at hand: its tensors as floats, and what its matrices met while the text went through."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoint.safetensors import to_float32
from ..checkpoint.source import Tensor, plain
from ..config import ModelConfig
from ..model.tensors import Stored, read_layer, stored_tensors
from ..quant.packed import Form
from .inputs import watch


@dataclass(frozen=True)
class Layer:
    """All by the names of the checkpoint.

    stored   its tensors
    floats   what they hold, float32
    inputs   what its matrices are multiplied with, float32 [n, in] for each part of the text; the same arrays where
             matrices meet the same
    """

    stored: Sequence[Stored]
    floats: Mapping[str, np.ndarray]
    inputs: Mapping[str, Sequence[np.ndarray]]

    def together(self, forms: Mapping[str, Form]) -> list[list[Stored]]:
        """The matrices that `forms` names, those of the same inputs and form together."""
        found: dict[object, list[Stored]] = {}
        for one in self.stored:
            if one.name in forms:
                found.setdefault((forms[one.name], *map(id, self.inputs[one.name])), []).append(one)
        return list(found.values())


def run_layer(config: ModelConfig, index: int, tensors: Mapping[str, Tensor], xs: Sequence[np.ndarray]) -> Layer:
    """Run the parts of a text, float32 [n, hidden] each, through a layer as it is in the checkpoint."""
    stored = list(stored_tensors(config, index, tensors))
    floats = {one.name: to_float32(plain(tensors, one.name)) for one in stored}
    weights = read_layer(config, index, ChainMap(floats, tensors))
    met: dict[tuple[str, int], list[np.ndarray]] = {}
    for x in xs:
        for name, matrices in watch(config, index, weights, x).matrices.items():
            for number, (_, inputs) in enumerate(matrices):
                met.setdefault((name, number), []).append(inputs)
    inputs = {one.name: met.get((next(iter(one.parts)), one.expert or 0), []) for one in stored}
    return Layer(stored, floats, inputs)

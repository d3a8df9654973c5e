"""AWQ's factors in a layer: what each tensor is multiplied and divided by, so that all together change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..config import LayerConfig, ModelConfig
from ..quant import awq
from ..quant.packed import Form
from .folds import Fold, folds
from .layer import Layer


@dataclass(frozen=True)
class Scaling:
    """By the checkpoint's names: what columns are multiplied by, [in], and rows or vectors divided by, [out].

    offset   what is added to a norm's weights where they are used, and so has to be divided with them
    """

    columns: dict[str, np.ndarray] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    offset: dict[str, np.float32] = field(default_factory=dict)

    def apply(self, name: str, values: np.ndarray) -> np.ndarray:
        """A tensor float32 as it is once scaled; itself where nothing is to be done."""
        if name in self.columns:
            values = values * self.columns[name]
        if name in self.rows:
            offset, rows = self.offset.get(name, np.float32(0)), self.rows[name]
            values = (values + offset) / (rows if values.ndim == 1 else rows[:, None]) - offset
        return values

    def undo(self, name: str, matrix: np.ndarray) -> np.ndarray:
        """The opposite of `apply`, of a matrix."""
        matrix = matrix / self.columns[name] if name in self.columns else matrix
        return matrix * self.rows[name][:, None] if name in self.rows else matrix

    def curvature(self, name: str, hessian: np.ndarray) -> np.ndarray:
        """What `hessian` [in, in] becomes as the inputs of a matrix are divided; changed in place."""
        if name in self.columns:
            hessian /= self.columns[name]
            hessian /= self.columns[name][:, None]
        return hessian


def find_scaling(config: ModelConfig, settings: LayerConfig, layer: Layer, forms: Mapping[str, Form]) -> Scaling:
    """The best factors for every fold of a layer of which all matrices are to be rounded, to `forms`."""
    scaling = Scaling()
    for fold in folds(config, settings):
        readers = [one for one in layer.stored if set(one.parts) & set(fold.readers)]
        sources = [one for one in layer.stored if fold.source in one.parts]
        found = {part for one in (*readers, *sources) for part in one.parts}
        if not found.issuperset((fold.source, *fold.readers)):  # one is stored transposed
            continue
        if any(len(one.shape) == 2 and one.name not in forms for one in (*readers, *sources)):
            continue
        weights = [layer.floats[one.name] for one in readers]
        name = readers[0].name
        factors = awq.factors(weights, layer.inputs[name], forms[name], lambda sizes, fold=fold: fold.even(sizes))
        scaling.columns.update(dict.fromkeys((one.name for one in readers), factors))
        _divide(scaling, fold, layer, fold.of_source(factors))
    return scaling


def _divide(scaling: Scaling, fold: Fold, layer: Layer, factors: np.ndarray) -> None:
    """The source, and its bias where there is one, by factors [dimensions of the source]."""
    for one in layer.stored:
        for part in {fold.source, f"{fold.source}_bias"} & set(one.parts):
            rows = scaling.rows.setdefault(one.name, np.ones(one.shape[0], np.float32))
            rows[one.parts[part]] *= factors
            if part == fold.source:
                scaling.offset[one.name] = np.float32(fold.offset)

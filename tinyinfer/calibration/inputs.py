"""What matrices are multiplied with while a text is read: to calibrate by, and to look at outliers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import reference
from ..config import ModelConfig
from ..model.tensors import ModelTensors, Tensors, floats


class Watched(np.ndarray):
    """A matrix float32 [out, in] that remembers what its transpose was multiplied with, `seen`: [n, in] arrays."""

    seen: list[np.ndarray]

    def __array_finalize__(self, of: Any) -> None:
        self.seen = getattr(of, "seen", [])

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [one.view(np.ndarray) if isinstance(one, Watched) else one for one in inputs]
        if ufunc is np.matmul:
            self.seen.append(plain[0])
        return getattr(ufunc, method)(*plain, **options)


@dataclass(frozen=True)
class LayerInputs:
    """One layer as it runs: the vectors that go in and come out, float32 [n, hidden], and what its matrices meet.

    matrices   for each name the matrix, float32 [out, in], and its inputs [n, in], the same array where several meet
               the same; of experts all in order, each with the tokens it was given
    """

    index: int
    before: np.ndarray
    after: np.ndarray
    matrices: Mapping[str, list[tuple[np.ndarray, np.ndarray]]]


def layer_inputs(config: ModelConfig, tensors: ModelTensors, ids: np.ndarray) -> Iterator[LayerInputs]:
    """Run a text, int [n], through the reference transformer, one layer in memory at a time; yields each."""
    x = reference.embed(config, tensors, ids)
    for index, layer in enumerate(tensors.layers):
        found = watch(config, index, layer, x)
        yield found
        x = found.after


def watch(config: ModelConfig, index: int, layer: Mapping[str, Tensors], x: np.ndarray) -> LayerInputs:
    """Run one layer on vectors float32 [n, hidden]."""
    watched = {name: _watched(tensor) for name, tensor in layer.items()}
    after = reference.transformer_layer(config, config.layers[index], watched, x)
    return LayerInputs(index, x, after, {name: met for name, tensor in watched.items() if (met := _met(tensor))})


def _watched(tensor: Tensors) -> Tensors:
    if isinstance(tensor, tuple):
        return tuple(_watched(one) for one in tensor)
    whole = floats(tensor)
    if whole.ndim < 2:
        return whole
    view = whole.view(Watched)
    view.seen = []
    return view


def _met(tensor: Tensors) -> list[tuple[np.ndarray, np.ndarray]]:
    """Nothing of what no vector was multiplied with; of experts nothing if none was used."""
    parts = [one for one in (tensor if isinstance(tensor, tuple) else (tensor,)) if isinstance(one, Watched)]
    return [(one.view(np.ndarray), _seen(one)) for one in parts] if any(one.seen for one in parts) else []


def _seen(one: Watched) -> np.ndarray:
    if len(one.seen) == 1:
        return one.seen[0]
    return np.concatenate(one.seen) if one.seen else np.empty((0, one.shape[1]), np.float32)

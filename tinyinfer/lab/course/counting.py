"""Counting multiply-adds where they happen: arrays that note every matrix product they take part in.

`reference.py` and the twins of the tape's operations are plain NumPy, so they count themselves when they are given such
arrays; nothing of them is written again.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from ...config import ModelConfig
from ...kernels.tape import Tape
from ...model.forward import Model
from ...model.tensors import ModelTensors, layer_shapes, outer_shapes


class Counted(np.ndarray):
    """An array like others whose matrix products are counted, all together in `Counted.multiply_adds`."""

    multiply_adds: ClassVar[int] = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **how: Any) -> Any:
        """As the function does; of a matrix product, each number of the result took as many as what it sums over."""
        plain = [_plain(value) for value in inputs]
        if "out" in how:
            how["out"] = tuple(_plain(value) for value in how["out"])
        result = getattr(ufunc, method)(*plain, **how)
        if ufunc is np.matmul:
            Counted.multiply_adds += result.size * plain[0].shape[-1]
        return _counted(result)

    def __array_function__(self, function: Any, kinds: Any, arguments: Any, how: Any) -> Any:
        """As the function does; an einsum of two multiplies once for each combination of its letters."""
        if function is np.einsum:
            letters, *arrays = arguments
            names = letters.partition("->")[0].split(",")
            sizes = {c: size for name, array in zip(names, arrays, strict=True) for c, size in zip(name, array.shape)}  # noqa: B905
            Counted.multiply_adds += math.prod(sizes.values())
            return _counted(np.einsum(letters, *map(_plain, arrays)))
        return _counted(super().__array_function__(function, kinds, arguments, how))


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Counted) else value


def _counted(value: Any) -> Any:
    return value.view(Counted) if isinstance(value, np.ndarray) else value


class CountedTape(Tape):
    """A tape whose operations are done by their twins, in NumPy, from buffers that count."""

    def buffer(self, width: int, own: bool = False) -> np.ndarray:
        """A place for one operation's result and the next one's input."""
        return super().buffer(width, own).view(Counted)

    def finish(self, heads: int, dim: int) -> None:
        """The tape is complete; nothing is compiled."""

    def run(self, step: Any) -> None:
        """Do everything, for the rows of this step."""
        for twin in self._twins:
            twin(step)


class CountedModel(Model):
    """The cached forward pass, counting."""

    def new_tape(self) -> Tape:
        """An empty tape."""
        return CountedTape(64, self.kv_dtype)


def counted_tensors(config: ModelConfig) -> ModelTensors:
    """Weights that count, of no particular value, for a model of the Llama family."""
    rng = np.random.default_rng(0)

    def made(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        return {name: _small(rng, shape) for name, shape in shapes.items()}

    outer = made(outer_shapes(config))
    layers = tuple(made(layer_shapes(config, layer)) for layer in config.layers)
    head = _small(rng, (config.vocab_size, config.hidden_size))
    return ModelTensors(outer.pop("embedding"), head, outer, layers, 0, ())


def _small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32).view(Counted)

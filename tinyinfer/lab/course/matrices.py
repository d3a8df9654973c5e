"""The matrices inside of layers, which is nearly all of a model, and the layers to take where time is short."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model.tensors import ModelTensors, floats


def some_layers(count: int, wanted: int) -> list[int]:
    """At most `wanted` of `count` layers: the middles of as many equal parts, as those at the ends are unlike."""
    parts = min(wanted, count)
    return [(2 * part + 1) * count // (2 * parts) for part in range(parts)]


def projections(tensors: ModelTensors, layers: list[int]) -> Iterator[tuple[str, np.ndarray]]:
    """Every matrix of these layers by name, float32 [out, in], one in memory at a time; of experts all."""
    for index in layers:
        for name, tensor in tensors.layers[index].items():
            for place, one in enumerate(tensor if isinstance(tensor, tuple) else (tensor,)):
                if len(one.shape) == 2 and not name.endswith(("norm", "bias")):
                    many = f" {place}" if isinstance(tensor, tuple) else ""
                    yield f"layer {index} {name}{many}", floats(one)

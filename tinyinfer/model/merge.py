"""A checkpoint with adapters merged into its weights, for a model that is to be an ordinary one afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..checkpoint.adapters import LowRank
from ..checkpoint.quantized import PLAIN
from ..checkpoint.safetensors import dtype_name, to_float32
from ..checkpoint.source import Checkpoint, LazyTensors, plain, round_to, tensor_layout
from ..config import ModelConfig
from ..errors import BadCheckpoint
from .adapters import Adapter
from .names import NAMES
from .tensors import tensor_prefix


def merged(
    checkpoint: Checkpoint,
    config: ModelConfig,
    adapters: Sequence[tuple[Adapter, float]],
    dtype: str | None = None,
) -> Checkpoint:
    """The model whose weights are W + scale * B A, each made when it is asked for.

    Sums are taken in float32 and rounded once, to `dtype` ("float32", "bfloat16" or "float16"), or else to what W has;
    a quantized weight, and one of float64, then becomes float32. What no adapter is about stays as it is. Raises
    `BadCheckpoint` where the base lacks a tensor that an adapter is about.
    """
    names, layout = NAMES[config.architecture], dict(tensor_layout(checkpoint.tensors))
    stem = tensor_prefix(names, layout) + names.layers
    added: dict[str, list[tuple[bool, LowRank, float]]] = {}
    for adapter, scale in adapters:
        for place, pair in adapter.tensors.items():
            name = stem + place.removesuffix(".T")
            if name not in layout:
                raise BadCheckpoint(f"{checkpoint.source}: tensor {name!r} is missing, to which the adapter is added")
            added.setdefault(name, []).append((place.endswith(".T"), pair, scale))
    for name in added:
        stored, shape = layout[name]
        kept = PLAIN["float32"] if stored.itemsize == 8 else stored
        layout[name] = (PLAIN[dtype] if dtype else kept), shape

    def made(name: str) -> np.ndarray:
        weight = plain(checkpoint.tensors, name)
        if name not in added:
            return weight
        total = np.array(to_float32(weight))
        for transposed, pair, scale in added[name]:
            more = (to_float32(pair.up) * np.float32(scale * pair.scale)) @ to_float32(pair.down)
            total += more.T if transposed else more
        return round_to(dtype_name(layout[name][0]), total)

    return replace(checkpoint, tensors=LazyTensors(layout, made))

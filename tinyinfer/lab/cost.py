"""What a forward pass can't do without: the bytes that it reads, and the multiply-adds with its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..cache import KVCache
from ..checkpoint.safetensors import dtype_name
from ..model.tensors import ModelTensors, Tensor
from ..quant import PackedWeight


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor as the kernels read it: norms and biases in float32, and so the scales of quantized scales."""
    if isinstance(tensor, PackedWeight):
        return tensor.codes.nbytes + 4 * tensor.scales.size if tensor.scale_steps is not None else tensor.nbytes
    return tensor.nbytes if tensor.ndim == 2 else 4 * tensor.size


def weight_bytes(tensors: ModelTensors, tokens: int) -> float:
    """Bytes of weights that a pass of `tokens` reads: all once, but of an embedding that is no head only their rows.

    Of experts those that are used: if each token chose at random, an expert of n would be left out by all but
    (1 - used / n) ^ tokens of all passes.
    """
    rows = 0 if tensors.head is tensors.embedding else tokens
    row = tensor_bytes(tensors.embedding) / len(tensors.embedding)
    read = sum(tensor_bytes(tensor) * (1 - (1 - use) ** tokens) for tensor, use in _read(tensors))
    return read + rows * row


def weight_forms(tensors: ModelTensors) -> dict[str, int]:
    """Bytes of the weights that passes read by how they are stored: `int4-g32`, `float32`, ...; the most first."""
    sizes: dict[str, int] = {}
    for tensor, _ in _read(tensors):
        quantized = isinstance(tensor, PackedWeight)
        name = tensor.form.name if quantized else dtype_name(tensor.dtype) if tensor.ndim == 2 else "float32"
        sizes[name] = sizes.get(name, 0) + tensor_bytes(tensor)
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def multiply_adds(tensors: ModelTensors, tokens: int, wanted: int) -> dict[str, float]:
    """Multiply-adds with weights in a pass of `tokens`, of which `wanted` get logits, by what is multiplied.

    "int8" are those with quantized weights, "float32" the others. Attention's are not counted: they depend on the past.
    """
    counts = {"int8": 0.0, "float32": 0.0}
    for tensor, rows in [*((tensor, use * tokens) for tensor, use in _of_layers(tensors)), (tensors.head, wanted)]:
        if len(tensor.shape) == 2:
            counts["int8" if isinstance(tensor, PackedWeight) else "float32"] += rows * math.prod(tensor.shape)
    return counts


def cache_bytes(cache: KVCache, length: int, new: int = 1) -> float:
    """Bytes of keys and values that the last `new` tokens of a sequence of `length` read, when each is read once.

    The cache must hold something, since what a position takes is seen from its arrays.
    """
    return sum(
        pool.nbytes / (pool.num_blocks * pool.block_size) * min(length, (pool.window or length) + new - 1)
        for pool in cache.pools
    )


def _read(tensors: ModelTensors) -> Iterator[tuple[Tensor, float]]:
    """What passes read, and by which part of all tokens it is used."""
    yield from _of_layers(tensors)
    yield from ((tensor, 1.0) for name, tensor in tensors.outer.items() if name != "positions")
    yield tensors.head, 1.0


def _of_layers(tensors: ModelTensors) -> Iterator[tuple[Tensor, float]]:
    for layer in tensors.layers:
        for name, tensor in layer.items():
            if isinstance(tensor, tuple):
                use = tensors.experts_used / len(tensor) if name.startswith("expert_") else 1.0
                yield from ((one, use) for one in tensor)
            else:
                yield tensor, 1.0

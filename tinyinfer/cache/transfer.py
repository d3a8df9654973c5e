"""A sequence out of one cache and into another: what it holds as plain arrays, whatever the blocks.

    layers.0.keys           [tokens, kv_heads, head_dim], or as wide as their form says, and in its dtype
    layers.0.values         the same
    layers.0.key_scales     float32 [tokens, kv_heads], of int8
    layers.0.value_scales   the same

The tokens are the last ones that the layer holds: all of them, or where a window has moved on, those still there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..errors import BadCheckpoint
from .blocks import KVCache, Sequence
from .forms import SCALE, Kept
from .tables import BlockTable

Layout = dict[str, tuple[np.dtype, tuple[int, ...]]]


def layout_of(sequence: Sequence) -> Layout:
    """Dtype and shape of each array of a sequence, by name."""
    layout = {}
    for table in sequence.tables:
        for layer in table.pool.layers:
            layout |= _layout(table, layer, sequence.length - table.first_position)
    return layout


def arrays_of(sequence: Sequence) -> Iterator[tuple[str, np.ndarray]]:
    """Copies of all that a sequence holds, an array at a time, in the order of `layout_of`."""
    for table in sequence.tables:
        for place, layer in enumerate(table.pool.layers):
            kept = table.get(place, table.first_position, sequence.length)
            for name, array in zip(Kept._fields, kept, strict=True):
                if array is not None:
                    yield f"layers.{layer}.{name}", array


def sequence_from(cache: KVCache, arrays: Mapping[str, np.ndarray], length: int) -> Sequence:
    """A new sequence of `length` tokens that holds what `arrays_of` gave.

    The arrays are untrusted. Raises `BadCheckpoint` naming the array that is missing, too many, or not of the dtype and
    shape that the cache calls for; and for layers that hold less than the next token will look at.
    """
    sequence = cache.sequence()
    counts = [_tokens(arrays, table, length) for table in sequence.tables]
    expected: Layout = {}
    for table, count in zip(sequence.tables, counts, strict=True):
        for layer in table.pool.layers:
            expected |= _layout(table, layer, count)
    _check(arrays, expected)
    for table, count in zip(sequence.tables, counts, strict=True):
        table.begin_at(length - count)
        if not table.holds_window_of(length):
            name = f"layers.{table.pool.layers[0]}.keys"
            raise BadCheckpoint(f"{name}: {count} of {length} tokens, fewer than the layer looks at")
        table.extend_to(length)
        for place, layer in enumerate(table.pool.layers):
            parts = (arrays.get(f"layers.{layer}.{name}") for name in Kept._fields)
            table.put(place, length - count, Kept(*parts))
    sequence.length = length
    return sequence


def _layout(table: BlockTable, layer: int, tokens: int) -> Layout:
    pool, stem, heads = table.pool, f"layers.{layer}.", (tokens, table.pool.kv_heads)
    keys, values = pool.forms
    layout = {
        stem + "keys": (keys.dtype, (*heads, keys.width(pool.head_dim))),
        stem + "values": (values.dtype, (*heads, values.width(pool.head_dim))),
    }
    scaled = {"key_scales": keys.has_scales, "value_scales": values.has_scales}
    return layout | {stem + name: (SCALE, heads) for name, has in scaled.items() if has}


def _tokens(arrays: Mapping[str, np.ndarray], table: BlockTable, length: int) -> int:
    """How many tokens the layers of a pool hold, by the first of them; the others are checked against it."""
    name = f"layers.{table.pool.layers[0]}.keys"
    if name not in arrays:
        raise BadCheckpoint(f"{name} is missing")
    shape = arrays[name].shape
    if not shape or shape[0] > length:
        raise BadCheckpoint(f"{name}: expected at most {length} tokens, found the shape {list(shape)}")
    return shape[0]


def _check(arrays: Mapping[str, np.ndarray], expected: Layout) -> None:
    for name, (dtype, shape) in expected.items():
        if name not in arrays:
            raise BadCheckpoint(f"{name} is missing")
        found = arrays[name]
        if (found.dtype, found.shape) != (dtype, shape):
            both = f"expected {dtype} {list(shape)}, found {found.dtype} {list(found.shape)}"
            raise BadCheckpoint(f"{name}: {both}")
    if unknown := [name for name in arrays if name not in expected]:
        raise BadCheckpoint(f"{unknown[0][:80]!r} belongs to no layer of the model")

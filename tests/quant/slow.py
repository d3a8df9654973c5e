"""Quantized matrices read one weight at a time, from the drawing of their layout alone."""

from __future__ import annotations

import numpy as np

from tinyinfer.quant.packed import PackedWeight

f32 = np.float32

# appendix E of the QLoRA paper
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def code_of(packed: PackedWeight, n: int, k: int) -> int:
    """The code of row n, column k."""
    block, row = n // 8, n % 8
    if packed.scheme == "int8":
        return int(packed.codes[block, k // 32, k % 32 // 4, 4 * row + k % 4])
    byte = int(packed.codes[block, k // 32, k % 32 // 8, 4 * row + k % 4])
    nibble = byte >> 4 if k % 8 >= 4 else byte & 15
    if packed.scheme == "int5":
        return nibble + 16 * (int(packed.codes[block, k // 32, 4, 4 * row + k % 4]) >> k % 32 // 4 & 1)
    return nibble


def scale_of(packed: PackedWeight, n: int, k: int) -> np.float32:
    """The scale of row n, column k."""
    if packed.group_size is None:
        return f32(packed.scales[n // 8, n % 8])
    place = n // 8, k // packed.group_size, n % 8
    if packed.scale_steps is None:
        return f32(packed.scales[place])
    step = packed.scale_steps[int(np.ravel_multi_index(place, packed.scales.shape)) // 256]
    return max(f32(packed.scales[place]) * step + packed.scale_offset[0], f32(0))


def meaning(packed: PackedWeight, n: int, k: int, code: int) -> np.float32:
    """What a code would stand for at row n, column k."""
    scale = scale_of(packed, n, k)
    if packed.scheme == "nf4":
        return scale * f32(NF4[code])
    if packed.scheme == "int8":
        return scale * f32(code)
    if packed.minimums is None:
        return scale * f32(code - (16 if packed.scheme == "int5" else 8))
    return scale * f32(code) + f32(packed.minimums[n // 8, k // packed.group_size, n % 8])


def dequantized(packed: PackedWeight) -> np.ndarray:
    """The whole matrix."""
    rows, columns = packed.shape
    values = [[meaning(packed, n, k, code_of(packed, n, k)) for k in range(columns)] for n in range(rows)]
    return np.array(values, np.float32).reshape(packed.shape)

"""NF4: four bits a weight, whose 16 values are spaced as normal weights are; blocks of 64 columns.

    w = absmax * VALUES[code]      code 0..15; absmax = max |w| of the block, float16: 4.25 bits a weight

    codes     uint8 [NB, G, 4, 32]       as int4's: byte j of line c: row j // 4 of the block,
                                         column 8 c + j % 4 in the low nibble, 8 c + 4 + j % 4 in the high one
    scales    float16 [NB, K / 64, 8]    the absmax of each block (layout.py draws both)

    double quantized: the absmax take 8 bits themselves, 4.13 bits a weight in all
    scales        int8 [NB, K / 64, 8]
    scale_steps   float32 [ceil(NB * K/64 * 8 / 256)]: one for 256 scales that follow each other in kernel order
    scale_offset  float32 [1]: the mean absmax
                  absmax = max(scale_offset + scale_step * code, 0)

    wide          float32 [NB, K / 64, 8]: 4.5 bits a weight. bitsandbytes' absmax, where float16 would change them

The values are those of QLoRA (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314, appendix E): eight quantiles of
the normal distribution above zero, seven below, and zero itself. Each side's are evenly spaced in probability, from
0.9677083 = 1 - (1/32 + 1/30) / 2 towards one half, and all are divided by the largest.
The paper stores absmax as float32 and quantizes it a second time to an 8-bit float; here it is float16, and whole steps
around the mean.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .layout import scales_of_rows
from .packed import ROW_BLOCK, STEP_BLOCK, PackedWeight

# As published: the quantiles were computed in float32, whose last digits a formula would not reproduce.
VALUES = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip
_BETWEEN = (VALUES[1:] + VALUES[:-1]) / 2


def encode(values: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, None]:
    """Float32 [rows, blocks, size] -> codes uint8 of that shape, absmax [rows, blocks] of `dtype`.

    Codes are the nearest for the absmax as stored. An absmax beyond float16 comes out infinite: the caller refuses it.
    """
    absmax = np.maximum(values.max(axis=-1), -values.min(axis=-1)).astype(dtype)
    return codes_for(values, absmax.astype(np.float32)), absmax, None


def codes_for(values: np.ndarray, absmax: np.ndarray) -> np.ndarray:
    """The nearest codes: float32 [rows, blocks, size], float32 [rows, blocks] -> uint8; zero where absmax is 0."""
    scaled = values / np.where(absmax == 0, np.float32(np.inf), absmax)[..., None]
    return np.searchsorted(_BETWEEN, scaled.reshape(-1)).astype(np.uint8).reshape(values.shape)


def decode(codes: np.ndarray, absmax: np.ndarray) -> np.ndarray:
    """uint8 [rows, blocks, size], float32 [rows, blocks] -> float32 [rows, blocks, size]."""
    return VALUES[codes] * absmax[..., None]


def quantize_scales(packed: PackedWeight) -> PackedWeight:
    """Take the absmax down to 8 bits each. The codes stay: they are fitted to absmax that move by 1/127 at most."""
    absmax = packed.scales.astype(np.float32).reshape(-1)
    offset = np.float32(_without_filling(packed).mean(dtype=np.float64))
    blocks = np.pad(absmax - offset, (0, -absmax.size % STEP_BLOCK)).reshape(-1, STEP_BLOCK)
    steps = np.abs(blocks).max(axis=1) / np.float32(127)
    codes = np.rint(blocks / np.where(steps == 0, np.float32(1), steps)[:, None]).astype(np.int8)
    codes = codes.reshape(-1)[: absmax.size].reshape(packed.scales.shape)
    return replace(packed, scales=codes, scale_steps=steps, scale_offset=np.array([offset], np.float32))


def expand_scales(packed: PackedWeight) -> PackedWeight:
    """The same matrix with plain float32 absmax, as kernels take it; returns `packed` itself where they are plain."""
    if packed.scale_steps is None:
        return packed
    count = packed.scales.size
    steps = np.repeat(packed.scale_steps, STEP_BLOCK)[:count].reshape(packed.scales.shape)
    absmax = np.maximum(packed.scales.astype(np.float32) * steps + packed.scale_offset, 0)
    filling = -packed.shape[0] % ROW_BLOCK
    if filling:
        absmax[-1, :, ROW_BLOCK - filling :] = 0
    return replace(packed, scales=absmax, scale_steps=None, scale_offset=None)


def absmax_of_rows(packed: PackedWeight, ids: np.ndarray) -> np.ndarray:
    """What `expand_scales` gives for some rows alone, float32 [n, blocks]; their scales are quantized."""
    blocks = packed.scales.shape[1]
    places = (ids // ROW_BLOCK * blocks * ROW_BLOCK + ids % ROW_BLOCK)[:, None] + np.arange(blocks) * ROW_BLOCK
    codes = scales_of_rows(packed.scales, ids)
    return np.maximum(codes * packed.scale_steps[places // STEP_BLOCK] + packed.scale_offset, 0)


def _without_filling(packed: PackedWeight) -> np.ndarray:
    """The absmax of real rows, float32 [N, blocks]."""
    rows = packed.scales.transpose(0, 2, 1).reshape(-1, packed.scales.shape[1])
    return rows[: packed.shape[0]].astype(np.float32)

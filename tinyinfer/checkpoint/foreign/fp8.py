"""FP8 weights with a scale for each block, as DeepSeek publishes them and transformers writes them.

    weight             E4M3 [N, K]
    weight_scale_inv   float32 or E8M0 [ceil(N / rows), ceil(K / columns)]     for weight_block_size [rows, columns]

    w[n, k] = E4M3(weight[n, k]) * weight_scale_inv[n // rows, k // columns]

Despite its name the scale is multiplied. The size of a block is what the config says: the grid does not tell it where
the last block of a matrix is cut. Without weight_block_size the whole matrix has one scale, which some writers call
weight_scale. DeepSeek-V3: https://arxiv.org/abs/2412.19437, section 3.3.
"""

from __future__ import annotations

import numpy as np

from ..safetensors import FLOAT8_E8M0, to_float32
from .codes import E4M3_VALUES, E8M0_VALUES
from .grid import Grid
from .parts import E4M3, FLOATS, Parts, Settings

NAMES = ("weight_scale_inv", "weight_scale")


def read(settings: Settings, parts: Parts) -> list[Grid]:
    """Every matrix of the folder that has scales."""
    settings.text("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    settings.text("expert_dtype", ("fp8",), "fp8")
    parts.drop([name for name in parts.left if name.endswith((".input_scale", ".activation_scale"))])
    return [_matrix(settings, parts, stem) for stem in parts.stems(*(f".{name}" for name in NAMES))]


def _matrix(settings: Settings, parts: Parts, stem: str) -> Grid:
    weight = parts.take(f"{stem}.weight", E4M3, (None, None))
    name = next(f"{stem}.{name}" for name in NAMES if f"{stem}.{name}" in parts.left)
    whole = settings.get("weight_block_size") is None
    block = weight.shape if whole else settings.sizes("weight_block_size", 2)
    kind = f"FP8, {'one scale' if whole else f'blocks of {list(block)}'}"
    return e4m3_blocks(f"{stem}.weight", kind, weight, parts, name, block)


def e4m3_blocks(
    name: str, kind: str, weight: np.ndarray, parts: Parts, scale_name: str, block: tuple[int, int]
) -> Grid:
    """A matrix of E4M3 whose scale, which is taken from `parts`, is one for each block of rows and columns."""
    (rows, columns), (height, width) = weight.shape, block
    grid = -(-rows // height), -(-columns // width)
    shapes = [grid] + ([(), (1,)] if grid == (1, 1) else [(rows,)] if grid == (rows, 1) else [])
    scale = parts.take_any(scale_name, (*FLOATS, FLOAT8_E8M0), *shapes)
    numbers = (E8M0_VALUES[scale.view(np.uint8)] if scale.dtype == FLOAT8_E8M0 else to_float32(scale)).reshape(grid)
    return Grid(
        name=name,
        kind=f"{kind}{', powers of two' if scale.dtype == FLOAT8_E8M0 else ''}",
        shape=weight.shape,
        stored=weight.nbytes + scale.nbytes,
        codes=lambda ids: weight[ids].view(np.uint8),
        scales=lambda ids: numbers[ids // height],
        group=width,
        levels=(0, 255),
        values=E4M3_VALUES,
    )

"""MLX, as mlx-lm writes it: 2 to 8 bits with a scale and an offset for each group, or small floats.

    weight   uint32 [N, K * bits / 32]      a stream of codes along each row (`codes.py` draws it)
    scales   float [N, K / group]
    biases   float [N, K / group]           what is added; not the layer's own bias, which is `bias`

    mode "affine"    w = scales * code + biases                        2, 3, 4, 5, 6 or 8 bits
    mode "mxfp4"     w = E2M1(code) * E8M0(scales), groups of 32       scales uint8, no biases
    mode "mxfp8"     w = E4M3(code) * E8M0(scales), groups of 32
    mode "nvfp4"     w = E2M1(code) * E4M3(scales), groups of 16

config.json says bits and group size under "quantization", for all or by the name of a layer. A layer without scales is
not quantized. The embedding and the head are, as a rule.
https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import BadCheckpoint
from ..safetensors import to_float32
from .codes import E2M1_DOUBLED, E4M3_VALUES, E8M0_VALUES, stream
from .grid import Grid
from .parts import BYTES, FLOATS, WORDS, Parts, Settings

BITS = (2, 3, 4, 5, 6, 8)
HALF = np.float32(0.5)  # E2M1 codes are taken as twice what they stand for
SMALL_FLOATS = {  # mode: bits, group size, what a scale stands for
    "mxfp4": (4, 32, E8M0_VALUES * HALF),
    "mxfp8": (8, 32, E8M0_VALUES),
    "nvfp4": (4, 16, E4M3_VALUES * HALF),
}


def read(settings: Settings, parts: Parts) -> list[Grid]:
    """Every matrix of the folder that has scales."""
    return [_matrix(_layer_settings(settings, stem), parts, stem) for stem in parts.stems(".scales", ".biases")]


def _layer_settings(settings: Settings, stem: str) -> Settings:
    """The settings of one layer: its own where it has some."""
    own = settings.values.get(stem)
    if own is False:
        raise BadCheckpoint(f"{settings.where}: {stem} is said not to be quantized, but it is")
    if own is None or own is True:
        return settings
    return Settings(
        {**settings.values, **Settings(own, f"{settings.where}: {stem}").values}, f"{settings.where}: {stem}"
    )


def _matrix(settings: Settings, parts: Parts, stem: str) -> Grid:
    mode = settings.text("mode", ("affine", *SMALL_FLOATS), "affine")
    name = f"{stem}.weight"
    known_bits, known_sizes = (BITS, (32, 64, 128)) if mode == "affine" else ([n] for n in SMALL_FLOATS[mode][:2])
    bits, size = settings.choice("bits", known_bits), settings.choice("group_size", known_sizes)
    weight = parts.take(name, WORDS, (None, None))
    rows, columns = len(weight), parts.size(name, 32 * weight.shape[1], bits, "bits a row")
    groups = parts.size(name, columns, size, "columns")
    scales = parts.take(f"{stem}.scales", FLOATS if mode == "affine" else BYTES, (rows, groups))
    biases = parts.take(f"{stem}.biases", FLOATS, (rows, groups)) if mode == "affine" else None

    def codes(ids: np.ndarray) -> np.ndarray:
        found = stream(weight[ids], bits, columns)
        return E2M1_DOUBLED[found] if mode in ("mxfp4", "nvfp4") else found

    return Grid(
        name=name,
        kind=f"MLX {f'{bits}-bit' if mode == 'affine' else mode}, groups of {size}",
        shape=(rows, columns),
        stored=weight.nbytes + scales.nbytes + (biases.nbytes if biases is not None else 0),
        codes=codes,
        scales=_floats_of(scales, mode),
        minimums=None if biases is None else lambda ids: to_float32(biases[ids]),
        group=size,
        levels=(-12, 12) if mode in ("mxfp4", "nvfp4") else (0, 2**bits - 1),
        values=E4M3_VALUES if mode == "mxfp8" else None,
    )


def _floats_of(scales: np.ndarray, mode: str) -> Callable[[np.ndarray], np.ndarray]:
    if mode == "affine":
        return lambda ids: to_float32(scales[ids])
    meanings = SMALL_FLOATS[mode][2]
    return lambda ids: meanings[scales[ids]]

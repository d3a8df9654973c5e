"""AWQ in its "gemm" layout, as AutoAWQ writes it: codes of 4 bits, eight neighbouring outputs in a word.

    qweight   int32 [K, N / 8]
    qzeros    int32 [groups, N / 8]
    scales    float [groups, N]

    nibble of the word   0   1   2   3   4   5   6   7       the lowest four bits first
    output 8 j +         0   2   4   6   1   3   5   7

    w[n, k] = scales[g, n] * (q[n, k] - zero[g, n]),    g = k // group_size

AWQ has multiplied activations' scales into the norms before, so norms are to be read from the same folder.
AWQ: https://arxiv.org/abs/2306.00978.
"""

from __future__ import annotations

import numpy as np

from ..safetensors import to_float32
from .gptq import group_size, group_words
from .grid import Grid
from .parts import FLOATS, WORDS, Parts, Settings

SHIFTS = 4 * np.array([0, 4, 1, 5, 2, 6, 3, 7], np.uint32)  # where output j of eight lies in its word


def read(settings: Settings, parts: Parts) -> list[Grid]:
    """Every matrix of the folder that has codes."""
    settings.choice("bits", (4,), settings.get("w_bit", 4))
    settings.text("version", ("gemm",), settings.get("checkpoint_format", "gemm"))
    settings.text("pack_dtype", ("int32",), "int32")
    return [_matrix(settings, parts, stem) for stem in parts.stems(".qweight", ".qzeros")]


def _matrix(settings: Settings, parts: Parts, stem: str) -> Grid:
    qweight = parts.take(f"{stem}.qweight", WORDS, (None, None))
    columns, rows = qweight.shape[0], 8 * qweight.shape[1]
    said = group_size(settings, "group_size" if settings.get("group_size") is not None else "q_group_size")
    size = said or columns
    groups = parts.size(f"{stem}.qweight", columns, min(size, columns), "inputs")
    scales = parts.take(f"{stem}.scales", FLOATS, (groups, rows))
    qzeros = parts.take(f"{stem}.qzeros", WORDS, (groups, rows // 8))
    return Grid(
        name=f"{stem}.weight",
        kind=f"AWQ 4-bit{group_words(said)}",
        shape=(rows, columns),
        stored=qweight.nbytes + scales.nbytes + qzeros.nbytes,
        codes=lambda ids: _outputs(qweight, ids),
        scales=lambda ids: np.ascontiguousarray(to_float32(scales[:, ids]).T),
        zeros=lambda ids: _outputs(qzeros, ids).astype(np.float32),
        group=size,
        levels=(0, 15),
    )


def _outputs(packed: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The codes of some outputs: int32 [m, N / 8], int [n] -> uint8 [n, m]."""
    words, place = np.unique(ids // 8, return_inverse=True)
    columns = np.ascontiguousarray(packed[:, words].T).view(np.uint32)
    return (columns[place] >> SHIFTS[ids % 8][:, None] & np.uint32(15)).astype(np.uint8)

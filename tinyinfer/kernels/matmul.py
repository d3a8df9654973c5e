"""x W^T over weights of 32 or 16 bits, each read once.

A few rows of x (decoding) go through the compiled `dot_rows`, shared out among threads; many (prefill) through NumPy's
matrix product, for which 16-bit weights are widened a tile at a time. `TINYINFER_KERNELS=numpy` takes the second way
for both, and never imports Numba.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..checkpoint.safetensors import BFLOAT16, to_float32
from ..errors import BadRequest

FEW_ROWS = 4  # rows of x up to which weights are the bottleneck and not arithmetic
TILE_ROWS = 256  # rows of a 16-bit weight widened at a time: small enough to stay in cache
PIECE_BYTES = 1 << 16  # of a weight, claimed by a thread at a time
DONE_SPINS = 2_000  # looks at whether the others are done before taking a nap


def matmul(x: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """Float32 [n, in] times several [out_i, in] matrices, their results side by side: float32 [n, sum of out_i].

    Weights are C-contiguous float32, float16 or bfloat16 records. Sums run in float32.
    """
    out = np.empty((len(x), sum(map(len, weights))), np.float32)
    first = 0
    if len(x) > FEW_ROWS or not _compiled(weights):
        for weight in weights:
            _many_rows(x, weight, out[:, first : first + len(weight)])
            first += len(weight)
    else:
        _few_rows(np.ascontiguousarray(x), weights, out)
    return out


def _many_rows(x: np.ndarray, weight: np.ndarray, out: np.ndarray) -> None:
    if weight.dtype == np.float32:
        np.matmul(x, weight.T, out=out)
        return
    wide = np.empty((TILE_ROWS, weight.shape[1]), np.float32)
    for begin in range(0, len(weight), TILE_ROWS):
        tile = weight[begin : begin + TILE_ROWS]
        np.matmul(x, _widened(tile, wide[: len(tile)]).T, out=out[:, begin : begin + len(tile)])


def _widened(tile: np.ndarray, wide: np.ndarray) -> np.ndarray:
    if not _compiled([tile]):
        return to_float32(tile)
    from .dot import widen_rows

    widen_rows(tile.view(_compiled_types()[tile.dtype]), wide)
    return wide


def _few_rows(x: np.ndarray, weights: Sequence[np.ndarray], out: np.ndarray) -> None:
    from .dot import dot_rows, wait_for
    from .threads import default_team

    jobs, first = [], 0
    for weight in weights:
        view = weight.view(_compiled_types()[weight.dtype])
        jobs.append((view, out, first, max(PIECE_BYTES // weight[:1].nbytes, 1), np.zeros(2, np.int64)))
        first += len(weight)

    def work() -> None:
        for job in jobs:
            dot_rows(x, *job)

    def is_done() -> bool:
        return all(
            wait_for(counters, 1, -(-len(view) // rows_a_piece), DONE_SPINS)
            for view, _, _, rows_a_piece, counters in jobs
        )

    default_team().run(work, is_done)


def _compiled(weights: Sequence[np.ndarray]) -> bool:
    """Whether compiled code is to be used, and knows all these weights."""
    return all(weight.dtype in _compiled_types() for weight in weights)


@lru_cache(maxsize=1)
def _compiled_types() -> dict[np.dtype, type]:
    """The weights that compiled code reads, and the element type by which it tells them apart."""
    wanted = os.environ.get("TINYINFER_KERNELS", "numba")
    if wanted not in ("numba", "numpy"):
        raise BadRequest(f"TINYINFER_KERNELS should be 'numba' or 'numpy', found {wanted!r}", "TINYINFER_KERNELS")
    if wanted == "numpy":
        return {}
    from .dot import has_float16

    float16 = {np.dtype(np.float16): np.int16} if has_float16() else {}
    return {np.dtype(np.float32): np.float32, BFLOAT16: np.uint16} | float16

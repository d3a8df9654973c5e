"""x W^T over weights of 32 or 16 bits, each read once.

A few rows of x (decoding) go through the compiled `dot_rows`, shared out among threads; many (prefill) through NumPy's
matrix product, for which 16-bit weights are widened a tile at a time. `TINYINFER_KERNELS=numpy` takes the second way
for both, and never imports Numba.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from ..checkpoint.safetensors import BFLOAT16, to_float32
from ..errors import BadRequest
from .threads import default_team

FEW_ROWS = 4  # rows of x up to which weights are the bottleneck and not arithmetic
TILE_ROWS = 256  # rows of a 16-bit weight widened at a time: small enough to stay in cache
SHARED_BYTES = 1 << 17  # weights smaller than this are not worth waking a thread for


def matmul(x: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """Float32 [n, in] times several [out_i, in] matrices, their results side by side: float32 [n, sum of out_i].

    Weights are C-contiguous float32, float16 or bfloat16 records. Sums run in float32.
    """
    out = np.empty((len(x), sum(map(len, weights))), np.float32)
    product = _few_rows() if len(x) <= FEW_ROWS else None
    (product or _many_rows)(x, weights, out)
    return out


def _many_rows(x: np.ndarray, weights: Sequence[np.ndarray], out: np.ndarray) -> None:
    first = 0
    for weight in weights:
        step = len(weight) if weight.dtype == np.float32 else TILE_ROWS
        for begin in range(0, len(weight), step):
            tile = to_float32(weight[begin : begin + step])
            np.matmul(x, tile.T, out=out[:, first + begin : first + begin + len(tile)])
        first += len(weight)


@lru_cache(maxsize=1)
def _few_rows() -> Callable[[np.ndarray, Sequence[np.ndarray], np.ndarray], None] | None:
    """The compiled product, or None where NumPy is to do it."""
    wanted = os.environ.get("TINYINFER_KERNELS", "numba")
    if wanted not in ("numba", "numpy"):
        raise BadRequest(f"TINYINFER_KERNELS should be 'numba' or 'numpy', found {wanted!r}", "TINYINFER_KERNELS")
    if wanted == "numpy":
        return None
    from . import dot

    bits = {np.dtype(np.float32): np.float32, BFLOAT16: np.uint16}
    if dot.has_float16():
        bits[np.dtype(np.float16)] = np.int16

    def product(x: np.ndarray, weights: Sequence[np.ndarray], out: np.ndarray) -> None:
        if any(weight.dtype not in bits for weight in weights):
            return _many_rows(x, weights, out)
        x = np.ascontiguousarray(x)
        views = [weight.view(bits[weight.dtype]) for weight in weights]
        firsts = np.cumsum([0, *map(len, weights[:-1])]).tolist()
        team = default_team()
        shares = team.size if sum(view.nbytes for view in views) >= SHARED_BYTES else 1

        def work(index: int) -> None:
            for view, first in zip(views, firsts, strict=True):
                rows = len(view)
                dot.dot_rows(x, view, out, first, rows * index // shares, rows * (index + 1) // shares)

        team.run(work) if shares > 1 else work(0)

    return product

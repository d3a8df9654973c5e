"""Weights with adapters: what each row's adapters add to a linear map, y += scale * up^T (down x).

The narrow product is an operation of its own, once for all that follows; the wide one goes with the linear map, piece
by piece, so that what comes after finds both in one place. Rows of a step whose texts have other adapters, or none,
stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..quant import PackedWeight
from .step import Step

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Adapted:
    """A weight [out, in], and the narrow matrices of all adapters, one after the other; those of number i are the rows
    starts[i] to starts[i + 1], of which there may be none."""

    weight: np.ndarray | PackedWeight
    down: Array  # float32 [all ranks, in]
    up: Array  # float32 [all ranks, out]: transposed, and with the adapter's own scale in it
    starts: Array  # int64 [adapters + 1]

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def nbytes(self) -> int:
        """Of the weight itself."""
        return self.weight.nbytes

    @property
    def rank(self) -> int:
        """Of all adapters together."""
        return len(self.down)


def plain_weight(weight: np.ndarray | PackedWeight | Adapted) -> np.ndarray | PackedWeight:
    """The weight without what adapters add to it."""
    return weight.weight if isinstance(weight, Adapted) else weight


def narrow_columns(weights: Sequence) -> list[int]:
    """Where the narrow products of some weights begin, side by side; and, last, how wide they are together."""
    ranks = [weight.rank if isinstance(weight, Adapted) else 0 for weight in weights]
    return [sum(ranks[:i]) for i in range(len(ranks) + 1)]


def twin_of(weight: Adapted, x: Array, out: Array, column: int) -> Callable[[Step], None]:
    """What adapters add to the columns of `out` from `column` on, in NumPy."""

    def twin(step: Step) -> None:
        for (_, rows), used in zip(step.slices(), step.adapters, strict=True):
            for number, scale in used:
                part = slice(*weight.starts[number : number + 2])
                narrow = x[rows] @ weight.down[part].T * np.float32(scale)
                out[rows, column : column + len(weight)] += narrow @ weight.up[part]

    return twin

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
from . import table as t
from .step import Step

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Adapted:
    """A weight [out, in], and the narrow matrices of all adapters, one after the other; those of number i are the rows
    starts[i] to starts[i + 1], of which there may be none."""

    weight: np.ndarray | PackedWeight
    down: Array  # float32 [all ranks, in]
    up: Array  # float32 [all ranks, out]: transposed, and with the adapter's own scale in it; rows may lie apart
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


class AdaptedMaps:
    """The part of a `Tape` that is about adapters."""

    def __init__(self):
        self._narrow: dict[int, Array] = {}  # by width: what adapters make of an input

    def _make_narrow(self, x: Array, weights: Sequence, head: int | None) -> list[int]:
        """The narrow products of x for all adapted ones of some weights, side by side; gives where each one's begin.

        They go row by row with what row `head` of the table begins, if x comes from there.
        """
        ranks = [weight.rank if isinstance(weight, Adapted) else 0 for weight in weights]
        *columns, width = places = [sum(ranks[:i]) for i in range(len(ranks) + 1)]
        for weight, column in zip(weights, columns, strict=True):
            if isinstance(weight, Adapted):
                if width not in self._narrow:
                    self._narrow[width] = self.buffer(width, own=True)
                narrow = self._narrow[width]
                fields = [x, x.shape[1], narrow, width, column, weight.down, weight.rank, weight.starts]
                self._add("narrow_row", fields, None, source=x, target=narrow)
                if head is not None and self._rows[head][t.TARGET_OWN]:  # each thread has x, as it needs what is narrow
                    self._join(head)
        return places

    def _widen(self, x: Array, weight: Adapted, out: Array, column: int, places: list[int], i: int, pieces: int):
        """Add what adapters make of x to the map of weight number i, from `column` of out on."""
        narrow = self._narrow[places[-1]]
        fields = [len(weight), out, out.shape[1], column, narrow, places[-1], places[i]]
        self._add(
            "widen_part", [*fields, weight.up, weight.up.strides[0] // 4, weight.rank, weight.starts],
            _twin(weight, x, out, column),
            pieces=pieces, counted=t.OF_THE_WHOLE, source=narrow, target=out,
        )  # fmt: skip


def _twin(weight: Adapted, x: Array, out: Array, column: int) -> Callable[[Step], None]:
    """What adapters add to the columns of `out` from `column` on, in NumPy."""

    def twin(step: Step) -> None:
        for (_, rows), used in zip(step.slices(), step.adapters, strict=True):
            for number, scale in used:
                part = slice(*weight.starts[number : number + 2])
                narrow = x[rows] @ weight.down[part].T * np.float32(scale)
                out[rows, column : column + len(weight)] += narrow @ weight.up[part]

    return twin

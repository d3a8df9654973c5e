"""Even steps of a few bits: how the scale, the minimum and the codes of a group are chosen. int4 and int5 share this.

    with a minimum    w = scale * code + minimum      code 0..top, scale and minimum float16
    symmetric         w = scale * (code - middle)     scale float16, of either sign; middle = (top + 1) / 2

A range that reaches from the smallest to the largest weight is the obvious choice of a scale; but the extremes are
rare, and a range that cuts them a little gives all others finer steps. So some shares of it are tried and the one with
the least squared error is kept. Its codes are then held, and the scale and minimum that fit them best (least squares)
replace the ones they came from, where that is better once both are rounded to float16.
A symmetric group's largest weight in size, e, becomes code 0, so that the scale is -e / middle and its sign is part of
the form: the side with the extreme has a step more than the other.

Inside, groups are columns, [size, groups]: NumPy is fast at sums over the first axis, and slow over a short last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

Choice = tuple[np.ndarray, np.ndarray]  # a scale and a minimum for each group, float32 [groups] each, as stored
Weigh = Callable[[np.ndarray], np.ndarray]  # what errors cost: float32 [size, groups] -> [groups]


@dataclass(frozen=True)
class Steps:
    """A number of codes, 0..top, and which ranges are tried for them.

    shares  of the range from smallest to largest
    reach   steps to the largest in size, where it is symmetric; beyond `middle` it is cut
    """

    top: int
    shares: tuple[float, ...]
    reach: tuple[float, ...]

    @property
    def middle(self) -> int:
        """The code that is zero, where the codes stand around it."""
        return (self.top + 1) // 2

    @property
    def wide(self) -> Steps:
        """The same with more ranges to try, down to 0.6: for costs that ask for more than the sum of squares."""
        shares = tuple(1 - step / 20 for step in range(9))
        return replace(self, shares=shares, reach=tuple(self.middle / share for share in shares))

    def encode(self, values: np.ndarray, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Float32 [rows, groups, size] -> codes uint8 of that shape, scales and minimums float16 [rows, groups].

        Codes are chosen for the scale as stored. A scale beyond float16 comes out infinite: the caller refuses it.
        """
        columns = np.ascontiguousarray(values.reshape(-1, values.shape[2]).T)
        scale, minimum = self.choose(columns, symmetric)
        codes = self.codes(columns, scale, minimum).astype(np.uint8).T.reshape(values.shape)
        scale, minimum = (part.astype(np.float16).reshape(values.shape[:2]) for part in (scale, minimum))
        return codes, scale, None if symmetric else minimum

    def choose(self, columns: np.ndarray, symmetric: bool, weigh: Weigh | None = None) -> Choice:
        """The scale and minimum of least error for each group of float32 [size, groups], as float16 holds them.

        `weigh` says what a group's errors cost, by default the sum of their squares.
        """
        weigh = weigh or _squares
        trials = self._symmetric_trials(columns) if symmetric else self._trials(columns)
        best = next(trials)
        least = self._error(columns, *best, weigh)
        for trial in trials:
            best, least = self._better(columns, best, least, trial, weigh)
        fitted = self._fitted(columns, self.codes(columns, *best), symmetric)
        return self._better(columns, best, least, fitted, weigh)[0]

    def decode(self, codes: np.ndarray, scales: np.ndarray, minimums: np.ndarray | None) -> np.ndarray:
        """uint8 [rows, groups, size], float32 [rows, groups] -> float32 [rows, groups, size]."""
        if minimums is None:
            return (codes.astype(np.int8) - np.int8(self.middle)).astype(np.float32) * scales[..., None]
        values = codes.astype(np.float32) * scales[..., None]
        values += minimums[..., None]
        return values

    def _trials(self, columns: np.ndarray) -> Iterator[Choice]:
        low, high = columns.min(axis=0), columns.max(axis=0)
        for share in self.shares:
            cut = (high - low) * np.float32((1 - share) / 2)
            yield _stored((high - low) * np.float32(share / self.top)), _stored(low + cut)

    def _symmetric_trials(self, columns: np.ndarray) -> Iterator[Choice]:
        low, high = columns.min(axis=0), columns.max(axis=0)
        extreme = np.where(-low > high, low, high)
        for reach in self.reach:
            scale = _stored(extreme / np.float32(-reach))
            yield scale, scale * np.float32(-self.middle)

    def _better(
        self, columns: np.ndarray, best: Choice, least: np.ndarray, trial: Choice, weigh: Weigh
    ) -> tuple[Choice, np.ndarray]:
        """For each group the choice of less error, and that error."""
        error = self._error(columns, *trial, weigh)
        wins = error < least
        return (np.where(wins, trial[0], best[0]), np.where(wins, trial[1], best[1])), np.minimum(error, least)

    def _fitted(self, columns: np.ndarray, codes: np.ndarray, symmetric: bool) -> Choice:
        """The scale and minimum of least squares for these codes; scale 0 where all codes are the same."""
        if symmetric:
            codes -= np.float32(self.middle)
            scale = _stored(_quotient(_dot(codes, columns), _dot(codes, codes)))
            return scale, scale * np.float32(-self.middle)
        middle_code, middle = codes.mean(axis=0), columns.mean(axis=0)
        codes -= middle_code
        scale = _stored(_quotient(_dot(codes, columns), _dot(codes, codes)))
        return scale, _stored(middle - scale * middle_code)

    def codes(self, columns: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
        """The nearest codes of float32 [..., groups] for scales and minimums [groups], as float32."""
        codes = columns - minimum
        codes /= np.where(scale == 0, np.float32(1), scale)
        np.rint(codes, out=codes)
        return np.clip(codes, 0, self.top, out=codes)

    def _error(self, columns: np.ndarray, scale: np.ndarray, minimum: np.ndarray, weigh: Weigh) -> np.ndarray:
        """What the error of each group costs."""
        off = self.codes(columns, scale, minimum)
        off *= scale
        off += minimum
        off -= columns
        return weigh(off)


def quadratic(curvature: np.ndarray) -> Weigh:
    """Errors e that cost e^T H e, for H float32 [size, size]."""
    return lambda off: _dot(curvature @ off, off)


def _squares(off: np.ndarray) -> np.ndarray:
    return _dot(off, off)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("kg,kg->g", a, b)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def _stored(numbers: np.ndarray) -> np.ndarray:
    """What is left of them in float16, as float32."""
    return numbers.astype(np.float16).astype(np.float32)

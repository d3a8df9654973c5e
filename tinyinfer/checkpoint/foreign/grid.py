"""A foreign matrix as its format says it, and which of our forms holds that exactly.

Every format here comes to the same: a code for each weight, and what a group of columns shares,

    w = scale * (code - zero)         zero: none, a whole number or a fraction
    w = scale * code + minimum
    w = scale * values[code]          small floats, NF4, FP4

What our forms can hold of that is told from scales and zeros alone, without reading a code (`Grid.choice`): a float16
scale must come out the same, and a product of a scale and a whole number must fit where it goes. Else the matrix
becomes floats: bfloat16 where that holds every product, or float32, in which the formats are computed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from ...errors import BadCheckpoint
from ...quant import FORMS, STEPS, Form, PackedWeight
from ...quant.layout import Encoded, each_span, pack_rows
from ...quant.nf4 import VALUES as NF4
from ..safetensors import BFLOAT16, to_bfloat16

FLOAT32 = np.dtype("<f4")
Rows = Callable[[np.ndarray], np.ndarray]  # ids of rows, int [n] -> numbers for each


@dataclass(frozen=True, eq=False)
class Grid:
    """A quantized matrix [N, K], whose numbers are made for the rows that are asked for.

    kind      the format for people: "GPTQ 4-bit, groups of 128"
    stored    bytes that it takes in the file
    codes     whole numbers [n, K]
    scales    float32 [n, groups]
    group     columns of a row that share a scale, the last group may have fewer; `order` says it another way
    levels    the smallest and the largest code that there may be
    zeros     float32 [n, groups], taken from the codes; None: none
    minimums  float32 [n, groups], added in the end; None: none
    values    float32 [codes]: what a code stands for; None: itself
    order     int [K]: the group of each column, where columns are not in the order of their groups
    """

    name: str
    kind: str
    shape: tuple[int, int]
    stored: int
    codes: Rows
    scales: Rows
    group: int
    levels: tuple[int, int]
    zeros: Rows | None = None
    minimums: Rows | None = None
    values: np.ndarray | None = None
    order: np.ndarray | None = None

    def floats(self, ids: np.ndarray) -> np.ndarray:
        """Some rows, float32 [n, K]. Raises `BadCheckpoint` where a code is out of range or a weight not finite."""
        codes = self._checked_codes(ids)
        with np.errstate(over="ignore", invalid="ignore"):
            weights = codes.astype(np.float32) if self.values is None else self.values[codes]
            if self.zeros is not None:
                weights -= self._spread(self.zeros(ids))
            weights *= self._spread(self.scales(ids))
            if self.minimums is not None:
                weights += self._spread(self.minimums(ids))
        check_finite(self.name, weights)
        return weights

    def choice(self) -> Form | np.dtype:
        """The smallest form that holds every weight exactly, else the smallest dtype that does. Reads all scales.

        Raises `BadCheckpoint` for scales, zeros and minimums that are not finite.
        """
        if self.group == 1:  # as much to read as the weights, and nothing of ours has a scale for each
            return FLOAT32
        ids = np.arange(self.shape[0])
        scales = self.scales(ids)
        zeros = np.zeros((1, 1), np.float32) if self.zeros is None else self.zeros(ids)
        minimums = None if self.minimums is None else self.minimums(ids)
        for part in (scales, zeros, minimums):
            if part is not None:
                check_finite(self.name, part)
        whole = bool((zeros == np.rint(zeros)).all())
        reach = self.levels[0] - zeros.max(), self.levels[1] - zeros.min()
        form = self._form(scales, zeros, minimums, reach) if whole and self.order is None else None
        if form is not None:
            return FORMS[form]
        if minimums is None and whole and holds_in_bfloat16(scales, *self._bits(reach)):
            return BFLOAT16
        return FLOAT32

    def _form(self, scales, zeros, minimums, reach: tuple[float, float]) -> str | None:
        size, halves = self._size(), in_float16(scales)
        if self.values is not None:
            if not np.array_equal(self.values, NF4) or size not in (64, 128):
                return None
            return "nf4-g64" if halves else "nf4-g64-wide"
        fits = minimums is None and reach[0] >= -128 and reach[1] <= 127
        if size and halves:
            sum_stays = minimums is None or self.levels[0] == 0  # else it is rounded in another order
            lowest_stays = sum_stays and in_float16(self._lowest(scales, zeros, minimums))
            for scheme, steps in STEPS.items():
                if minimums is None and reach[0] >= -steps.middle and reach[1] < steps.middle:
                    return f"{scheme}-g{size}-symmetric"
                if lowest_stays and self.levels[1] - self.levels[0] <= steps.top:
                    return f"{scheme}-g{size}"
        if fits and scales.shape[1] == 1:
            return "int8-row"
        return "int8-g32" if fits and size and halves else None

    def _size(self) -> int | None:
        """The largest of our groups that never mixes two of the format's."""
        return next((size for size in (128, 64, 32) if self.group >= self.shape[1] or self.group % size == 0), None)

    def _bits(self, reach: tuple[float, float]) -> tuple[int, float]:
        """How many binary digits the numbers have that scales are multiplied with, and what the last is worth."""
        if self.values is None:
            return int(max(map(abs, reach))).bit_length(), 1.0
        sizes = np.abs(self.values[np.isfinite(self.values) & (self.values != 0)])
        return (bits := digits(self.values)), float(sizes.min(initial=1)) * 2.0 ** (1 - bits)

    def _lowest(self, scales, zeros, minimums) -> np.ndarray:
        """What the smallest code stands for."""
        return scales * (np.float32(self.levels[0]) - zeros) if minimums is None else minimums

    def pack(self, form: Form) -> PackedWeight:
        """The matrix in kernel order, in the form that `choice` gave; raises as `floats`."""

        def encode(begin: int, end: int) -> Encoded:
            ids = np.arange(begin, end)
            codes, scales = self._checked_codes(ids), self.scales(ids)
            if form.scheme == "nf4":
                return _octets(codes, 0), self._regrouped(scales, form).astype(form.scale_dtype), None
            zeros = np.zeros((1, 1), np.float32) if self.zeros is None else self.zeros(ids)
            if not form.symmetric:
                minimums = self._lowest(scales, zeros, None if self.minimums is None else self.minimums(ids))
                lowest = self._regrouped(minimums, form).astype(np.float16)
                return _octets(codes, -self.levels[0]), self._regrouped(scales, form).astype(np.float16), lowest
            codes = codes.astype(np.int16) - self._spread(zeros.astype(np.int16))
            scales = self._regrouped(scales, form).astype(form.scale_dtype)
            if form.scheme == "int8":
                return codes.astype(np.int8), scales, None
            return _octets(codes, STEPS[form.scheme].middle), scales, None

        return pack_rows(form, self.shape, encode)

    def _checked_codes(self, ids: np.ndarray) -> np.ndarray:
        codes, (low, high) = self.codes(ids), self.levels
        limits = np.iinfo(codes.dtype)
        if (limits.min < low or limits.max > high) and codes.size and not (low <= codes.min() and codes.max() <= high):
            raise BadCheckpoint(
                f"tensor {self.name!r}: expected codes from {low} to {high}, found {codes.min()} to {codes.max()}"
            )
        return codes

    def _spread(self, part: np.ndarray) -> np.ndarray:
        """Numbers of groups as numbers of columns: [n, groups] -> [n, K], or [n, 1] where all columns share one."""
        if self.order is not None:
            return part[:, self.order]
        return part if part.shape[1] == 1 else np.repeat(part, self.group, axis=1)[:, : self.shape[1]]

    def _regrouped(self, part: np.ndarray, form: Form) -> np.ndarray:
        """Numbers of the format's groups as numbers of the form's: [n, groups] -> [n, K / the form's size]."""
        if form.group_size is None:
            return part
        count = -(-self.shape[1] // form.group_size)
        times = count if part.shape[1] == 1 else self.group // form.group_size
        return np.repeat(part, times, axis=1)[:, :count]


def made(matrix: Grid, choice: Form | np.dtype) -> np.ndarray | PackedWeight:
    """A matrix as `choice` has it, a few rows at a time, on threads where there are cores."""
    if isinstance(choice, Form):
        return matrix.pack(choice)
    out = np.empty(matrix.shape, choice)

    def fill(begin: int, end: int) -> None:
        rows = matrix.floats(np.arange(begin, end))
        out[begin:end] = to_bfloat16(rows) if choice == BFLOAT16 else rows

    each_span((matrix.shape[0], prod(matrix.shape[1:])), fill)
    return out


def check_finite(name: str, numbers: np.ndarray) -> None:
    """Raise `BadCheckpoint` for NaN and infinity."""
    if not np.isfinite(numbers).all():
        raise BadCheckpoint(f"tensor {name!r}: a scale, zero or weight is not finite")


def in_float16(numbers: np.ndarray) -> bool:
    """Whether float16 holds each of these float32."""
    with np.errstate(over="ignore"):
        return bool((numbers.astype(np.float16) == numbers).all())


def digits(numbers: np.ndarray) -> int:
    """How many binary digits it takes to write each of these float32, from the first that is not 0 to the last."""
    finite = numbers[np.isfinite(numbers)]
    mantissas = np.abs(np.ldexp(np.frexp(finite)[0], 24)).astype(np.int32)
    together = int(np.bitwise_or.reduce(mantissas.reshape(-1), initial=0))
    return 24 - ((together & -together).bit_length() - 1) if together else 0


def holds_in_bfloat16(scales: np.ndarray, bits: int, last: float = 1.0) -> bool:
    """Whether bfloat16 has room for each scale times any number of so many binary digits, the last worth `last`."""
    sizes = np.abs(scales[scales != 0]).astype(np.float64)
    least = sizes.min(initial=1) * 2.0 ** (1 - digits(scales)) * last
    return bits + digits(scales) <= 8 and least >= 2.0**-133


def _octets(codes: np.ndarray, offset: int) -> np.ndarray:
    if not offset:
        return codes.astype(np.uint8, copy=False)
    return (codes.astype(np.int16) + np.int16(offset)).astype(np.uint8)

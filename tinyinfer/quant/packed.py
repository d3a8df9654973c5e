"""What a quantized matrix is: a form, a shape, and the arrays that hold it in kernel order.

Read `layout.py` for where each number lies, and `int4.py`, `int5.py`, `int8.py`, `nf4.py` for how numbers become codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import BadRequest

ROW_BLOCK = 8  # rows that lie interleaved: one of a 256-bit register's float32 lanes each
CHUNK = 32  # columns that share an activation scale; what a kernel takes at a time
STEP_BLOCK = 256  # scales that share a step where scales are quantized themselves

LINES = {"int4": 4, "nf4": 4, "int5": 5, "int8": 8}  # of 32 bytes, for a chunk of a row block: as many as bits a code
WITH_MINIMUMS = ("int4", "int5")  # schemes that have forms with a minimum, and symmetric ones

Layout = dict[str, tuple[np.dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class Form:
    """How a matrix is quantized, apart from its shape. Those that exist are in `FORMS`.

    group_size  columns of a row that share a scale; None: the whole row does
    symmetric   no minimum is stored: the codes stand around zero
    double      the scales are quantized too
    wide        scales of groups are float32, as other programs may have made them
    """

    scheme: str
    group_size: int | None
    symmetric: bool = True
    double: bool = False
    wide: bool = False

    @property
    def name(self) -> str:
        """`int4-g32`, `int4-g128-symmetric`, `int8-row`, `nf4-g64-double`, ...: a key of `FORMS`."""
        parts = [self.scheme, f"g{self.group_size}" if self.group_size else "row"]
        if self.scheme in WITH_MINIMUMS and self.symmetric:
            parts.append("symmetric")
        return "-".join([*parts, *(word for word in ("double", "wide") if getattr(self, word))])

    @property
    def scale_dtype(self) -> np.dtype:
        """What scales are before any quantizing of their own: float32 where a row has one, else float16."""
        return np.dtype("<f4") if self.wide or self.group_size is None else np.dtype("<f2")

    def arrays(self, shape: tuple[int, int]) -> Layout:
        """Dtype and shape of each array that holds an [N, K] matrix in this form; see `layout.py`."""
        blocks, columns = self.padded(shape)
        scale_shape = (blocks, columns // self.group_size, ROW_BLOCK) if self.group_size else (blocks, ROW_BLOCK)
        scales = (self.scale_dtype, scale_shape)
        code_dtype = np.dtype("i1" if self.scheme == "int8" else "u1")
        found = {"codes": (code_dtype, (blocks, columns // CHUNK, LINES[self.scheme], 32)), "scales": scales}
        if not self.symmetric:
            found["minimums"] = scales
        if self.double:
            found["scales"] = (np.dtype("i1"), scale_shape)
            found["scale_steps"] = (np.dtype("<f4"), (-(-math.prod(scale_shape) // STEP_BLOCK),))
            found["scale_offset"] = (np.dtype("<f4"), (1,))
        return found

    def padded(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Row blocks, and columns once they fill whole groups."""
        multiple = max(CHUNK, self.group_size or CHUNK)
        return -(-shape[0] // ROW_BLOCK), -(-shape[1] // multiple) * multiple

    def nbytes(self, shape: tuple[int, int]) -> int:
        """Bytes that an [N, K] matrix takes in this form, padding and scales included."""
        return sum(dtype.itemsize * math.prod(size) for dtype, size in self.arrays(shape).values())


_ALL = (
    *(Form("int4", size, symmetric) for size in (32, 64, 128) for symmetric in (False, True)),
    *(Form("int5", size, symmetric) for size in (32, 64, 128) for symmetric in (False, True)),
    Form("int8", 32),
    Form("int8", None),
    Form("nf4", 64),
    Form("nf4", 64, double=True),
    Form("nf4", 64, wide=True),
)
FORMS: dict[str, Form] = {form.name: form for form in _ALL}
SCHEMES = ("int4", "int5", "int8", "nf4")
USUAL_GROUP = {"int4": 32, "int5": 32, "int8": 32, "nf4": 64}


def find_form(scheme: str, group_size: int | None = None, symmetric: bool = False, double: bool = False) -> Form:
    """The form that is meant: `scheme` is one of `SCHEMES`, or a name from `FORMS`, which says all by itself.

    `group_size` None is the scheme's usual one, 0 one scale a row. `symmetric` says something of int4 and int5
    alone, `double` of nf4 alone. Raises `BadRequest` listing what there is.
    """
    if scheme in FORMS:
        if group_size is not None or symmetric or double:
            raise BadRequest(f"{scheme} says all by itself: no group size, symmetric or double goes with it", "scheme")
        return FORMS[scheme]
    if scheme not in SCHEMES:
        raise BadRequest(f"scheme should be one of {', '.join([*SCHEMES, *FORMS])}, found {scheme!r}", "scheme")
    size = USUAL_GROUP[scheme] if group_size is None else group_size or None
    for name, form in FORMS.items():
        said_symmetric = form.symmetric and form.scheme in WITH_MINIMUMS
        found = form.scheme, form.group_size, said_symmetric, form.double, form.wide
        if found == (scheme, size, symmetric, double, False):
            return FORMS[name]
    asked = f"groups of {size}" if size else "one scale a row"
    asked += ", symmetric" * symmetric + ", double" * double
    forms = ", ".join(name for name, form in FORMS.items() if form.scheme == scheme)
    raise BadRequest(f"{scheme} with {asked} does not exist; {forms} do", "group_size")


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A quantized matrix [N, K] in kernel order; `layout.py` draws the arrays.

    codes         int4, nf4: uint8 [NB, G, 4, 32]; int5: uint8 [NB, G, 5, 32]; int8: int8 [NB, G, 8, 32]
    scales        float16 [NB, K/group, 8], or float32 [NB, 8] where a row has one; float32 in wide forms; int8 where
                  they are quantized too
    minimums      float16 [NB, K/group, 8]; None where the form is symmetric
    scale_steps   float32 [ceil(scales / 256)]: what one unit of a quantized scale is worth; else None
    scale_offset  float32 [1]: added to every quantized scale; else None
    """

    scheme: str
    shape: tuple[int, int]
    group_size: int | None
    codes: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray | None = None
    scale_steps: np.ndarray | None = None
    scale_offset: np.ndarray | None = None

    @property
    def form(self) -> Form:
        """How the matrix is quantized."""
        wide = self.group_size is not None and self.scales.dtype == np.float32
        return Form(self.scheme, self.group_size, self.minimums is None, self.scale_steps is not None, wide)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are there, by field name, as they are stored."""
        return {name: array for name in ARRAYS if (array := getattr(self, name)) is not None}

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, begin: int, end: int) -> PackedWeight:
        """Some of the rows, as views: a part of a fused matrix. `begin` must be a multiple of 8.

        Where `end` is none, the last block holds more rows than are counted, which kernels do not store. Raises
        `ValueError` for another `begin`, and where scales are quantized (expand them first).
        """
        if begin % ROW_BLOCK or not 0 <= begin <= end <= self.shape[0]:
            raise ValueError(f"rows {begin} to {end} of {self.shape[0]} are not whole blocks of {ROW_BLOCK}")
        if self.scale_steps is not None:
            raise ValueError("rows with quantized scales can't be taken apart")
        blocks = slice(begin // ROW_BLOCK, -(-end // ROW_BLOCK))
        parts = {name: array[blocks] for name, array in self.arrays().items()}
        return PackedWeight(self.scheme, (end - begin, self.shape[1]), self.group_size, **parts)


ARRAYS = ("codes", "scales", "minimums", "scale_steps", "scale_offset")


def from_arrays(form: Form, shape: tuple[int, int], arrays: Mapping[str, np.ndarray]) -> PackedWeight:
    """The matrix that these arrays hold. Raises `ValueError` saying which is not what the form asks for."""
    expected = form.arrays(shape)
    for name, (dtype, size) in expected.items():
        if name not in arrays:
            raise ValueError(f"{name} is missing")
        if (arrays[name].dtype, arrays[name].shape) != (dtype, size):
            found = f"{arrays[name].dtype} {list(arrays[name].shape)}"
            raise ValueError(f"{name}: expected {dtype} {list(size)}, found {found}")
    return PackedWeight(form.scheme, shape, form.group_size, **{name: arrays[name] for name in expected})


def bits_per_weight(packed: PackedWeight) -> float:
    """Bits that one of the N x K numbers takes: scales and padding are shared among them."""
    return 8 * packed.nbytes / max(math.prod(packed.shape), 1)


def relative_error(weight: np.ndarray, dequantized: np.ndarray) -> float:
    """|dequantized - weight| / |weight|, Frobenius norms in float64.

    0 where both are zero, infinite where only `weight` is. Raises `ValueError` where the shapes differ.
    """
    weight, dequantized = np.asarray(weight), np.asarray(dequantized)
    if weight.shape != dequantized.shape:
        raise ValueError(f"shapes differ: {weight.shape} and {dequantized.shape}")
    return error_ratio(*squared_error(weight, dequantized))


def squared_error(weight: np.ndarray, dequantized: np.ndarray) -> tuple[float, float]:
    """|dequantized - weight|^2 and |weight|^2, in float64."""
    exact = weight.astype(np.float64).reshape(-1)
    off = dequantized.reshape(-1) - exact
    # not a matrix product: BLAS would wake its threads for so little
    return float(np.einsum("i,i", off, off)), float(np.einsum("i,i", exact, exact))


def error_ratio(error: float, whole: float) -> float:
    """The relative error that two squared sums come to."""
    return math.sqrt(error / whole) if whole else math.inf if error else 0.0

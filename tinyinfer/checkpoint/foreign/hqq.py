"""HQQ, as the hqq library writes it: codes of 1 to 8 bits in slabs of rows, with a zero that may be a fraction.

The matrix [N, K] is read as rows of one group each, [N * K / group, group] (axis 1), or as columns of one group each,
[group, N * K / group] (axis 0). R packed rows hold the first, second, ... R of these rows as fields, the most
significant field first:

    packing   "8bit_u8"   uint8 [rows, width]
              "4bit_u8"   uint8 [rows / 2, width]         row r: high nibble, row R + r: low nibble
              "2bit_u8"   uint8 [rows / 4, width]         shifts 6, 4, 2, 0
              "1bit_u8"   uint8 [rows / 8, width]         shifts 7 ... 0
              "3bit_32"   int32 [ceil(rows / 10), width]  shifts 27, 24, ... 0; filled up with rows that say nothing

    W_q             the packed rows
    scale, zero     float [rows, 1] (axis 1) or [1, width] (axis 0)
    shape, nbits, group_size, axis, packing, ...    small tensors that say all this; text as bytes

    w = scale * (code - zero)

Half-quadratic quantization: https://mobiusml.github.io/hqq_blog/.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ...errors import UnsupportedModel
from ..safetensors import to_float32
from .gptq import group_words
from .grid import Grid
from .parts import BYTES, FLOATS, WHOLE, WORDS, Parts, Settings

PACKINGS = {  # bits, rows in a packed one, dtypes
    "8bit_u8": (8, 1, BYTES), "4bit_u8": (4, 2, BYTES), "2bit_u8": (2, 4, BYTES), "1bit_u8": (1, 8, BYTES),
    "3bit_32": (3, 10, WORDS),
}  # fmt: skip
UNREAD = (
    "channel_wise", "compute_dtype", "encoded_state_dict", "offload_meta", "optimize", "round_zero",
    "stores_quant_config", "unpack_view_dtype",
)  # fmt: skip
REFUSED = ("view_as_float", "quant_scale", "quant_zero")


@dataclass(frozen=True)
class _Slabs:
    """Packed rows, and how many fields each has."""

    packed: np.ndarray
    bits: int
    fields: int

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Some unpacked rows: int [...] -> uint8 [..., width]."""
        return self._cut(self.packed[ids % len(self.packed)], (ids // len(self.packed))[..., None])

    def numbers(self, ids: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Single numbers, by row and column: int [...], int [...] -> uint8 [...]."""
        return self._cut(self.packed[ids % len(self.packed), columns], ids // len(self.packed))

    def _cut(self, packed: np.ndarray, field: np.ndarray) -> np.ndarray:
        shifts = (self.bits * (self.fields - 1 - field)).astype(packed.dtype)
        return (packed >> shifts & packed.dtype.type(2**self.bits - 1)).astype(np.uint8)


def read(settings: Settings, parts: Parts) -> list[Grid]:
    """Every matrix of the folder that has codes; each says by itself how it is packed."""
    found = [_matrix(parts, stem) for stem in parts.stems(".W_q", ".zero")]
    for stem in parts.stems(".encoded_state_dict", ".stores_quant_config"):  # of layers that are not quantized
        parts.drop(f"{stem}.{name}" for name in UNREAD)
    return found


def _matrix(parts: Parts, stem: str) -> Grid:
    facts = _facts(parts, stem)
    bits, fields, dtypes = PACKINGS[facts.choice("packing", tuple(PACKINGS))]
    facts.choice("nbits", (bits,))
    axis, shape = facts.choice("axis", (0, 1)), facts.sizes("shape", 2)
    count, columns = prod(shape), shape[1]
    said = facts.size("group_size") if facts.get("group_size") is not None else None
    size = said or (columns if axis else shape[0])
    lines = parts.size(f"{stem}.W_q", count, size, "weights")
    rows, width = (lines, size) if axis else (size, lines)
    if bits != 3:
        parts.size(f"{stem}.W_q", rows, fields, "rows")
    packed = parts.take(f"{stem}.W_q", dtypes, (-(-rows // fields), width))
    shared = (lines, 1) if axis else (1, lines)
    scale, zero = (parts.take(f"{stem}.{name}", FLOATS, shared).reshape(-1) for name in ("scale", "zero"))
    slabs = _Slabs(packed, bits, fields)
    whole = axis == 1 and columns % size == 0  # else groups do not lie along rows: a scale for each weight then

    def along(numbers: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The numbers of a row's groups, or of each of its weights."""
        if whole:
            return to_float32(numbers.reshape(shape[0], -1)[ids])
        places = _places(ids, columns)
        return to_float32(numbers[places // size if axis else places % lines])

    def codes(ids: np.ndarray) -> np.ndarray:
        if whole:
            per_row = columns // size
            return slabs.rows(ids[:, None] * per_row + np.arange(per_row)).reshape(len(ids), columns)
        places = _places(ids, columns)
        return slabs.numbers(places // width, places % width)

    return Grid(
        name=f"{stem}.weight",
        kind=f"HQQ {bits}-bit{group_words(said)}{'' if axis else ' down the rows'}",
        shape=shape,
        stored=packed.nbytes + scale.nbytes + zero.nbytes,
        codes=codes,
        scales=lambda ids: along(scale, ids),
        zeros=lambda ids: along(zero, ids),
        group=size if whole else 1,
        levels=(0, 2**bits - 1),
    )


def _places(ids: np.ndarray, columns: int) -> np.ndarray:
    """Where the weights of some rows stand in the flat array: int [n, columns]."""
    return ids[:, None] * columns + np.arange(columns)


def _facts(parts: Parts, stem: str) -> Settings:
    """What the small tensors beside the codes say."""
    for name in (f"{stem}.{name}" for name in REFUSED):
        if name in parts.left and parts.take_number(name):
            raise UnsupportedModel(f"{parts.source}: tensor {name!r}: expected 0, found 1, which can't be read yet")
    parts.drop(f"{stem}.{name}" for name in UNREAD)
    facts = {name: parts.take_number(f"{stem}.{name}") for name in ("nbits", "axis")}
    facts["group_size"] = parts.take_number(f"{stem}.group_size") if f"{stem}.group_size" in parts.left else None
    facts["shape"] = parts.take(f"{stem}.shape", WHOLE, (2,)).tolist()
    facts["packing"] = parts.take(f"{stem}.packing", BYTES, (None,)).tobytes().decode("ascii", "replace")
    return Settings(facts, f"{parts.source}: {stem}")

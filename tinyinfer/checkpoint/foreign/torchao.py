"""torchao: whole numbers or FP8 in a byte each, with scales for blocks of a row.

    _weight_qdata        int8 or E4M3 [N, K]
    _weight_scale        float [N / rows, K / columns]      for block_size [rows, columns]
    _weight_zero_point   int8 of that shape; absent: 0

    w = (qdata - zero_point) * scale

The file's metadata says by the name of the weight what each is, as JSON: {"_type": "Int8Tensor", "_data":
{"block_size": [1, 256], ...}}. Numbers of fewer bits (IntxUnpackedToInt8Tensor, "target_dtype" int1 to int8) take a
byte too. https://github.com/pytorch/ao
"""

from __future__ import annotations

import json

import numpy as np

from ...errors import BadCheckpoint
from ..safetensors import to_float32
from .fp8 import e4m3_blocks
from .gptq import group_words
from .grid import Grid
from .parts import E4M3, FLOATS, SIGNED_BYTES, Parts, Settings

CODES, SCALE, ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
WHOLE_NUMBERS, FLOAT8 = ("Int8Tensor", "IntxUnpackedToInt8Tensor"), "Float8Tensor"
INTS = tuple(f"int{bits}" for bits in range(1, 9))


def read(settings: Settings, parts: Parts) -> list[Grid]:
    """Every matrix of the folder that has codes."""
    return [_matrix(parts, stem) for stem in parts.stems(f".{CODES}", f".{SCALE}")]


def _matrix(parts: Parts, stem: str) -> Grid:
    kind, facts = _facts(parts, f"{stem}.weight")
    floats = kind == FLOAT8
    data = parts.take(f"{stem}.{CODES}", E4M3 if floats else SIGNED_BYTES, (None, None))
    rows, columns = data.shape
    height, width = facts.sizes("block_size", 2)
    if floats:
        rows_alone = height == 1 and width >= columns
        kind_words = f"torchao FP8, {'a scale a row' if rows_alone else 'scales of blocks'}"
        return e4m3_blocks(f"{stem}.weight", kind_words, data, parts, f"{stem}.{SCALE}", (height, width))
    bits = INTS.index(Settings(facts.part("target_dtype").values, facts.where).choice("_data", INTS, "int8")) + 1
    grid = -(-rows // height), -(-columns // width)
    shapes = [grid, *([(rows,)] if grid == (rows, 1) else [])]
    scale = parts.take_any(f"{stem}.{SCALE}", FLOATS, *shapes).reshape(grid)
    zero = (
        parts.take_any(f"{stem}.{ZERO}", SIGNED_BYTES, *shapes).reshape(grid)
        if f"{stem}.{ZERO}" in parts.left
        else None
    )
    return Grid(
        name=f"{stem}.weight",
        kind=f"torchao {bits}-bit{group_words(width if width < columns else None)}",
        shape=data.shape,
        stored=data.nbytes + scale.nbytes + (0 if zero is None else zero.nbytes),
        codes=lambda ids: data[ids],
        scales=lambda ids: to_float32(scale[ids // height]),
        zeros=None if zero is None else lambda ids: zero[ids // height].astype(np.float32),
        group=width,
        levels=(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
    )


def _facts(parts: Parts, name: str) -> tuple[str, Settings]:
    """What the metadata says of a weight: its class, and the numbers that go with it."""
    where = f"{parts.source}: metadata of {name!r}"
    try:
        said = Settings(json.loads(parts.metadata.get(name, "null")), where)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{where}: not valid JSON: {error}") from None
    return said.choice("_type", (*WHOLE_NUMBERS, FLOAT8)), said.part("_data")

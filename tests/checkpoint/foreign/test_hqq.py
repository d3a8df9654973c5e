"""HQQ of every width along both axes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.checks import brains, check
from tests.checkpoint.foreign.packers import rounded_to_bfloat16, write_folder


@pytest.mark.parametrize(
    ("bits", "size", "shape", "axis", "whole", "becomes"),
    [
        (8, 32, (4, 64), 1, False, "float32"), (4, 32, (4, 64), 1, True, "int5-g32-symmetric"),
        (2, 64, (4, 64), 1, True, "int4-g128-symmetric"),
        (3, 32, (7, 64), 1, False, "float32"), (3, 16, (7, 48), 1, True, "float32"),
        (1, 32, (8, 32), 1, False, "float32"),
        (4, 16, (8, 40), 1, False, "float32"), (4, 64, (32, 32), 0, False, "float32"),
        (3, 64, (32, 6), 0, True, "float32"),
        (8, 8, (4, 6), 0, False, "float32"),
    ],
)  # fmt: skip
def test_hqq(tmp_path: Path, rng, bits: int, size: int, shape, axis: int, whole: bool, becomes: str):
    codes = rng.integers(0, 2**bits, shape)
    lines = codes.size // size
    scale = brains(rng, lines)
    zero = rounded_to_bfloat16(rng.uniform(0.1, 2**bits, lines))
    if whole:
        zero = rng.integers(0, 2**bits, lines).astype(np.float32)
        zero[0] = 2**bits - 1
    folder = write_folder(tmp_path / "m", {"quant_method": "hqq"}, packers.hqq(codes, scale, zero, bits, size, axis))
    flat = codes.reshape(-1, size).astype("f4") if axis else codes.reshape(size, -1).astype("f4")
    along = (slice(None), None) if axis else (None, slice(None))
    check(folder, ((flat - zero[along]) * scale[along]).reshape(shape), becomes)

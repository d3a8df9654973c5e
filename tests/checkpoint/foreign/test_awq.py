"""AWQ with groups of several sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.checks import check, halves
from tests.checkpoint.foreign.packers import spread, write_folder


@pytest.mark.parametrize(
    ("size", "columns", "becomes"),
    [
        (32, 96, "int5-g32-symmetric"),
        (64, 64, "int5-g128-symmetric"),
        (-1, 48, "int5-g128-symmetric"),
        (16, 48, "float32"),
    ],
)
def test_awq(tmp_path: Path, rng, size: int, columns: int, becomes: str):
    group = columns if size == -1 else size
    codes, zeros = rng.integers(0, 16, (24, columns)), rng.integers(0, 16, (24, columns // group))
    zeros[0] = 15
    scales = halves(rng, 24, columns // group)
    settings = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "GEMM", "zero_point": True}
    folder = write_folder(tmp_path / "m", settings, packers.awq(codes, zeros, scales))
    check(folder, spread(scales, group, columns) * (codes - spread(zeros, group, columns)).astype(np.float32), becomes)

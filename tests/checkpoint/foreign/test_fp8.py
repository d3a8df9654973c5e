"""FP8 with scales for blocks that do not fill the matrix, of float32 and of powers of two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.checks import check
from tests.checkpoint.foreign.packers import each, write_folder


@pytest.mark.parametrize(
    ("block", "grid", "name", "stored", "becomes"),
    [
        ([16, 32], (2, 3), "weight_scale_inv", "F32", "float32"),
        ([16, 32], (2, 3), "weight_scale_inv", "F8_E8M0", "bfloat16"),
        (None, (), "weight_scale", "F32", "float32"), ([8, 8], (3, 9), "weight_scale_inv", "F32", "float32"),
        ([20, 70], (1, 1), "weight_scale_inv", "F8_E8M0", "bfloat16"),
    ],
)  # fmt: skip
def test_fp8_blocks(tmp_path: Path, rng, block, grid, name: str, stored: str, becomes: str):
    """Blocks are cut by the config's size: the last of a matrix of 20 rows and 70 columns are smaller."""
    codes = rng.integers(0, 127, (20, 70)) + 128 * rng.integers(0, 2, (20, 70))
    powers = rng.integers(115, 125, grid)
    scales = 2.0 ** (powers - 127.0) if stored == "F8_E8M0" else rng.uniform(0.01, 0.1, grid)
    scales = np.asarray(scales, np.float32)
    raw = np.asarray(powers, np.uint8) if stored == "F8_E8M0" else scales
    layer = {".weight": ("F8_E4M3", codes.astype(np.uint8)), f".{name}": (stored, raw)}
    settings = {"quant_method": "fp8", "weight_block_size": block, "activation_scheme": "dynamic"}
    height, width = block or (20, 70)
    wide = [[scales.reshape(grid or (1, 1))[n // height, k // width] for k in range(70)] for n in range(20)]
    check(write_folder(tmp_path / "m", settings, layer), each(packers.e4m3, codes) * np.array(wide, "f4"), becomes)

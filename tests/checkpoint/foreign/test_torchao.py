"""torchao: whole numbers of several widths, and FP8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.checks import check, halves
from tests.checkpoint.foreign.packers import each, spread, write_folder


@pytest.mark.parametrize(
    ("bits", "block", "zeros", "becomes"),
    [
        (4, 32, True, "int5-g32-symmetric"),
        (4, 64, False, "int4-g128-symmetric"),
        (8, 64, False, "int8-row"),
        (2, 32, False, "int4-g32-symmetric"),
        (3, 16, True, "float32"),
    ],
)
def test_torchao_whole_numbers(tmp_path: Path, rng, bits: int, block: int, zeros: bool, becomes: str):
    half, grid = 2 ** (bits - 1), (8, 64 // block)
    codes, scales, points = rng.integers(-half, half, (8, 64)), halves(rng, *grid), rng.integers(-half, half, grid)
    layer = {"._weight_qdata": ("I8", codes.astype(np.int8)), "._weight_scale": ("F32", scales)}
    layer |= {"._weight_zero_point": ("I8", points.astype(np.int8))} if zeros else {}
    kind = "Int8Tensor" if bits == 8 else "IntxUnpackedToInt8Tensor"
    facts = packers.torchao_facts(kind, [1, block], target_dtype={"_type": "torch.dtype", "_data": f"int{bits}"})
    folder = write_folder(tmp_path / "m", {"quant_method": "torchao"}, layer, metadata=facts)
    moved = codes - spread(points, block, 64) if zeros else codes
    check(folder, spread(scales, block, 64) * moved.astype(np.float32), becomes)


@pytest.mark.parametrize("block", [[1, 64], [4, 32], [8, 64]])
def test_torchao_fp8(tmp_path: Path, rng, block: list[int]):
    codes, grid = rng.integers(0, 127, (8, 64)), (8 // block[0], 64 // block[1])
    scales = rng.uniform(0.01, 0.1, grid).astype(np.float32)
    layer = {"._weight_qdata": ("F8_E4M3", codes.astype(np.uint8)), "._weight_scale": ("F32", scales)}
    facts = packers.torchao_facts("Float8Tensor", block)
    folder = write_folder(tmp_path / "m", {"quant_method": "torchao"}, layer, metadata=facts)
    wide = np.repeat(np.repeat(scales, block[0], axis=0), block[1], axis=1)
    check(folder, each(packers.e4m3, codes) * wide, "float32")

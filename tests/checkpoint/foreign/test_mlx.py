"""MLX of every width and mode, and mixed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.checks import NAME, brains, check, write_mlx
from tests.checkpoint.foreign.packers import STEM, each, spread
from tinyinfer.checkpoint.source import open_checkpoint


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize(("size", "columns"), [(32, 96), (64, 128), (128, 128)])
def test_mlx_affine(tmp_path: Path, rng, bits: int, size: int, columns: int):
    codes, grid = rng.integers(0, 2**bits, (6, columns)), (6, columns // size)
    scales, biases = brains(rng, *grid) * rng.choice([-1, 1], grid), -brains(rng, *grid)
    folder = write_mlx(
        tmp_path / "m", packers.mlx(codes, bits, scales.astype("f4"), biases), bits=bits, group_size=size
    )
    expected = spread(scales.astype("f4"), size, columns) * codes.astype(np.float32) + spread(biases, size, columns)
    check(folder, expected, f"int{max(bits, 4)}-g{size}" if bits <= 5 else "float32")


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_mlx_small_floats(tmp_path: Path, rng, mode: str):
    bits, size = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}[mode]
    codes = rng.integers(0, 2**bits - 1, (6, 96)) & ~(1 << 6 if bits == 8 else 0)  # no NaN among them
    steps = rng.integers(50, 100, (6, 96 // size)) if mode == "nvfp4" else rng.integers(115, 130, (6, 96 // size))
    scales = each(packers.e4m3, steps) if mode == "nvfp4" else 2.0 ** (steps - 127).astype(np.float32)
    layer = packers.mlx(codes, bits, steps.astype(np.uint8))
    folder = write_mlx(tmp_path / "m", layer, bits=bits, group_size=size, mode=mode)
    expected = each(packers.e4m3 if bits == 8 else packers.e2m1, codes) * spread(scales, size, 96)
    check(folder, expected, {"mxfp4": "int5-g32-symmetric", "nvfp4": "bfloat16", "mxfp8": "bfloat16"}[mode])


def test_mlx_bits_by_layer(tmp_path: Path, rng):
    codes, scales, biases = rng.integers(0, 64, (6, 64)), brains(rng, 6, 2), brains(rng, 6, 2)
    own = {STEM: {"bits": 6, "group_size": 32}, "model.layers.0.mlp.down_proj": False}
    folder = write_mlx(tmp_path / "m", packers.mlx(codes, 6, scales, biases), bits=4, group_size=64, **own)
    check(folder, spread(scales, 32, 64) * codes.astype(np.float32) + spread(biases, 32, 64), "float32")


def test_a_matrix_is_made_a_few_rows_at_a_time(tmp_path: Path, rng, monkeypatch: pytest.MonkeyPatch):
    """Beside the result, some rows of numbers: not the matrix in float32, which would be eight times the codes."""
    monkeypatch.setattr("tinyinfer.quant.layout.VALUES_AT_ONCE", 1 << 14)
    codes = rng.integers(0, 2**32, (1024, 128), dtype=np.uint32)
    layer = {".weight": ("U32", codes), ".scales": packers.bfloat16(brains(rng, 1024, 16))}
    layer |= {".biases": packers.bfloat16(brains(rng, 1024, 16))}
    tensors = open_checkpoint(write_mlx(tmp_path / "m", layer, bits=4, group_size=64)).tensors
    tracemalloc.start()
    made = tensors[NAME]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.shape == (1024, 1024)
    assert peak < made.nbytes + 1.2e6  # the float32 matrix takes 4.2e6

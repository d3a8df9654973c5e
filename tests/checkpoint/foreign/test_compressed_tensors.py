"""compressed-tensors: every layout, strategy and kind of zero point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.checks import brains, check, compressed_settings, scheme
from tests.checkpoint.foreign.packers import STEM, each, rounded_to_bfloat16, spread, write_folder


@pytest.mark.parametrize(
    ("bits", "size", "shape", "zeros", "becomes"),
    [
        (4, 32, (9, 96), "packed", "int5-g32-symmetric"), (4, 64, (16, 100), "bytes", "int5-g64-symmetric"),
        (8, 32, (9, 64), "packed", "float32"), (4, None, (9, 44), "packed", "int5-g128-symmetric"),
        (4, 32, (9, 44), None, "int4-g32-symmetric"), (4, 128, (16, 256), None, "int4-g128-symmetric"),
        (2, 32, (16, 64), None, "int4-g32-symmetric"), (8, None, (5, 44), None, "int8-row"),
        (8, 64, (5, 64), None, "int8-row"),
    ],
)  # fmt: skip
def test_compressed_tensors_packed(tmp_path: Path, rng, bits: int, size: int | None, shape, zeros, becomes: str):
    half, group = 2 ** (bits - 1), size or shape[1]
    groups = -(-shape[1] // group)
    codes, scales = rng.integers(-half, half, shape), brains(rng, shape[0], groups)
    points = rng.integers(-half, half, (shape[0], groups)) if zeros else None
    if points is not None:
        points[0] = half - 1
    layer = packers.compressed(codes, scales, bits, points, zeros == "packed")
    folder = write_folder(tmp_path / "m", compressed_settings("pack-quantized", scheme(bits, size)), layer)
    moved = codes if points is None else codes - spread(points, group, shape[1])
    check(folder, spread(scales, group, shape[1]) * moved.astype(np.float32), becomes)


@pytest.mark.parametrize("filled", [True, False])
def test_compressed_tensors_act_order(tmp_path: Path, rng, filled: bool):
    codes, scales = rng.integers(-8, 8, (8, 64)), brains(rng, 8, 2)
    g_idx = rng.permutation(np.arange(64) // 32) if filled else np.full(64, -1)
    settings = compressed_settings("pack-quantized", scheme(4, 32, actorder="group"))
    folder = write_folder(tmp_path / "m", settings, packers.compressed(codes, scales, 4, g_idx=g_idx))
    order = g_idx if filled else np.arange(64) // 32
    check(folder, scales[:, order] * codes.astype(np.float32), "float32" if filled else "int4-g32-symmetric")


def test_compressed_tensors_of_several_groups(tmp_path: Path, rng):
    """A name comes before an expression, and that before a class."""
    codes, scales = rng.integers(-128, 128, (8, 64)), brains(rng, 8, 1)
    groups = [
        {**scheme(4, 32), "format": "pack-quantized"},
        {**scheme(4, 64), "targets": [r"re:.*up_proj$", "re:.*q_proj$"], "format": "nvfp4-pack-quantized"},
        {**scheme(8), "targets": [STEM], "format": "int-quantized"},
    ]
    layer = {".weight": ("I8", codes.astype(np.int8)), ".weight_scale": packers.bfloat16(scales)}
    folder = write_folder(tmp_path / "m", compressed_settings("mixed-precision", *groups), layer)
    check(folder, codes.astype(np.float32) * scales, "int8-row")


@pytest.mark.parametrize("strategy", ["tensor", "channel", "group"])
def test_compressed_tensors_int8_asymmetric(tmp_path: Path, rng, strategy: str):
    codes = rng.integers(-100, 100, (8, 64))
    scale_shape = {"tensor": (1,), "channel": (8, 1), "group": (8, 2)}[strategy]
    scales, zeros = brains(rng, *scale_shape), rng.integers(-9, 9, scale_shape)
    layer = {
        ".weight": ("I8", codes.astype(np.int8)), ".weight_scale": packers.bfloat16(scales),
        ".weight_zero_point": ("I8", zeros.astype(np.int8)), ".input_scale": ("F32", np.ones(1, np.float32)),
    }  # fmt: skip
    settings = compressed_settings("int-quantized", scheme(8, 32 if strategy == "group" else None, strategy))
    folder = write_folder(tmp_path / "m", settings, layer)
    wide = [np.broadcast_to(np.repeat(part, 64 // part.shape[-1], axis=-1), (8, 64)) for part in (scales, zeros)]
    check(folder, wide[0] * (codes - wide[1]).astype(np.float32), "float32")  # 9 bits: codes of 8 less a zero


@pytest.mark.parametrize(
    ("strategy", "block", "grid"),
    [("tensor", None, (1,)), ("channel", None, (20, 1)), ("block", [8, 32], (3, 3)), ("group", None, (20, 3))],
)
def test_compressed_tensors_fp8(tmp_path: Path, rng, strategy: str, block, grid):
    codes = rng.integers(0, 127, (20, 70)) + 128 * rng.integers(0, 2, (20, 70))
    scales = rng.uniform(0.01, 0.1, grid).astype(np.float32)
    layer = {".weight": ("F8_E4M3", codes.astype(np.uint8)), ".weight_scale": ("F32", scales)}
    size = 32 if strategy == "group" else None
    settings = compressed_settings("float-quantized", scheme(8, size, strategy, "float", block_structure=block))
    height, width = {"tensor": (20, 70), "channel": (1, 70), "block": (8, 32), "group": (1, 32)}[strategy]
    wide = [[scales.reshape(-1, grid[-1])[n // height, k // width] for k in range(70)] for n in range(20)]
    check(write_folder(tmp_path / "m", settings, layer), each(packers.e4m3, codes) * np.array(wide, "f4"), "float32")


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_compressed_tensors_4_bit_floats(tmp_path: Path, rng, kind: str):
    size, codes = (16, rng.integers(0, 16, (6, 64))) if kind == "nvfp4" else (32, rng.integers(0, 16, (6, 64)))
    octets = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    if kind == "nvfp4":
        steps, over = rng.integers(8, 120, (6, 4)), np.array([768.5], np.float32)
        stored, scales = ("F8_E4M3", steps.astype(np.uint8)), each(packers.e4m3, steps) / over
        layer = {".weight_global_scale": ("F32", over), ".input_global_scale": ("F32", over)}
    else:
        steps, layer = rng.integers(115, 130, (6, 2)), {}
        stored, scales = ("U8", steps.astype(np.uint8)), 2.0 ** (steps - 127).astype(np.float32)
    layer |= {".weight_packed": ("U8", octets), ".weight_scale": stored}
    settings = compressed_settings(f"{kind}-pack-quantized", scheme(4, size, "tensor_group", "float"))
    expected = each(packers.e2m1, codes) * spread(scales.astype(np.float32), size, 64)
    check(
        write_folder(tmp_path / "m", settings, layer),
        expected,
        {"nvfp4": "float32", "mxfp4": "int5-g32-symmetric"}[kind],
    )


@pytest.mark.parametrize(
    ("scale", "becomes"), [(2.0**-30, "int8-row"), (3.1e5, "int8-row"), (2.0**-24, "int4-g128-symmetric")]
)
def test_scales_at_the_ends_of_float16(tmp_path: Path, rng, scale: float, becomes: str):
    codes, scales = rng.integers(-8, 8, (8, 64)), np.full((8, 1), rounded_to_bfloat16(np.array([scale]))[0])
    folder = write_folder(
        tmp_path / "m", compressed_settings("pack-quantized", scheme(4)), packers.compressed(codes, scales, 4)
    )
    check(folder, scales * codes.astype(np.float32), becomes)

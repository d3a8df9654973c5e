"""Variants that no golden folder has, packed by the rules: other widths, sizes, orders and odd shapes.

Weights are held to equality with the same products in NumPy float32.
"""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.packers import STEM, each, rounded_to_bfloat16, spread, write_folder
from tinyinfer.checkpoint.foreign import ForeignTensors, quantization_method
from tinyinfer.checkpoint.safetensors import dtype_name, to_float32
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.quant import PackedWeight, dequantize
from tinyinfer.quant.nf4 import VALUES

NAME = f"{STEM}.weight"
FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4] * 2, np.float32) * np.repeat([1, -1], 8).astype("f4")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def check(folder: Path, expected: np.ndarray, becomes: str) -> None:
    """Every way to the weights gives exactly these, and the matrix is kept as `becomes`."""
    tensors = open_checkpoint(folder).tensors
    assert isinstance(tensors, ForeignTensors)
    assert list(tensors) == [NAME]
    made = tensors[NAME]
    assert (made.form.name if isinstance(made, PackedWeight) else dtype_name(made.dtype)) == becomes
    assert tensors.layout[NAME][1] == made.shape == expected.shape
    assert expected.any()
    values = dequantize(made) if isinstance(made, PackedWeight) else to_float32(made)
    some = np.array([expected.shape[0] - 1, 0, 2, 2])
    for found, wanted in (
        (values, expected),
        (tensors.floats(NAME, None), expected),
        (tensors.floats(NAME, some), expected[some]),
    ):
        assert found.dtype == wanted.dtype == np.float32
        assert np.array_equal(found, wanted)


def halves(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Scales that float16 holds, as float32, the first with all its digits."""
    scales = rng.uniform(0.001, 0.1, shape).astype(np.float16).astype(np.float32)
    scales.flat[0] = 2047 * 2.0**-17
    return scales


def brains(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Scales that bfloat16 holds, the first with all its digits."""
    scales = rounded_to_bfloat16(rng.uniform(0.001, 0.1, shape))
    scales.flat[0] = 255 * 2.0**-14
    return scales


# ---- GPTQ and AWQ


def gptq_settings(bits: int, size: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": size, **more}


@pytest.mark.parametrize(
    ("bits", "size", "columns", "version", "becomes"),
    [
        (2, 32, 96, 1, "int4-g32-symmetric"), (2, 32, 96, 2, "int4-g32-symmetric"),
        (3, 32, 96, 1, "int4-g32-symmetric"), (3, 64, 128, 2, "int4-g64-symmetric"),
        (4, 64, 128, 1, "int8-g32"), (4, -1, 40, 1, "int8-row"), (8, 32, 64, 2, "float32"), (4, 16, 64, 1, "float32"),
        (4, 64, 96, 1, "int8-g32"), (8, 32, 64, 1, "float32"),
    ],
)  # fmt: skip
def test_gptq_with_any_zero(tmp_path: Path, rng, bits: int, size: int, columns: int, version: int, becomes: str):
    groups = 1 if size == -1 else -(-columns // size)
    codes, zeros = rng.integers(0, 2**bits, (32, columns)), rng.integers(0, 2**bits, (32, groups))
    zeros[0], zeros[3], zeros[5, 0] = (
        2**bits - 1,
        0,
        2**bits - 1,
    )  # zeros of 0 borrow from the next field where one is taken off
    scales = halves(rng, 32, groups)
    group = columns if size == -1 else size
    layer = packers.gptq(codes, zeros, scales, bits, np.arange(columns) // group, version)
    named = {"checkpoint_format": "gptq_v2"} if version == 2 else {}
    folder = write_folder(tmp_path / "m", gptq_settings(bits, size, **named), layer)
    expected = spread(scales, group, columns) * (codes - spread(zeros, group, columns)).astype(np.float32)
    check(folder, expected, becomes)


@pytest.mark.parametrize(
    ("bits", "becomes"),
    [(2, "int4-g64-symmetric"), (3, "int4-g64-symmetric"), (4, "int4-g64-symmetric"), (8, "int8-g32")],
)
def test_gptq_symmetric_without_g_idx(tmp_path: Path, rng, bits: int, becomes: str):
    codes, scales = rng.integers(0, 2**bits, (64, 192)), halves(rng, 64, 3)
    zeros = np.full((64, 3), 2 ** (bits - 1))
    folder = write_folder(tmp_path / "m", gptq_settings(bits, 64, sym=True), packers.gptq(codes, zeros, scales, bits))
    check(folder, spread(scales, 64, 192) * (codes - 2 ** (bits - 1)).astype(np.float32), becomes)


def test_gptq_act_order(tmp_path: Path, rng):
    codes, zeros, scales = rng.integers(0, 16, (8, 64)), rng.integers(0, 16, (8, 2)), halves(rng, 8, 2)
    g_idx = rng.permutation(np.arange(64) // 32)
    folder = write_folder(
        tmp_path / "m", gptq_settings(4, 32, desc_act=True), packers.gptq(codes, zeros, scales, 4, g_idx)
    )
    check(folder, scales[:, g_idx] * (codes - zeros[:, g_idx]).astype(np.float32), "float32")


def test_gptq_zeros_whose_products_float16_holds(tmp_path: Path, rng):
    codes, zeros = rng.integers(0, 16, (8, 64)), rng.integers(0, 16, (8, 2))
    scales = 2.0 ** rng.integers(-9, -3, (8, 2)).astype(np.float32)
    folder = write_folder(tmp_path / "m", gptq_settings(4, 32), packers.gptq(codes, zeros, scales, 4))
    check(folder, spread(scales, 32, 64) * (codes - spread(zeros, 32, 64)).astype(np.float32), "int4-g32")


def test_gptq_bits_by_layer(tmp_path: Path, rng):
    dynamic = {r"-:.*\.down_proj": {}, r"+:.*\.up_proj": {"bits": 8, "group_size": 64}, ".*": {"bits": 2}}
    codes, scales = rng.integers(0, 256, (8, 64)), halves(rng, 8, 1)
    layer = packers.gptq(codes, np.full((8, 1), 128), scales, 8)
    folder = write_folder(tmp_path / "m", gptq_settings(4, 32, dynamic=dynamic), layer)
    check(folder, scales * (codes - 128).astype(np.float32), "int8-row")


def test_gptq_settings_in_a_file_beside_the_config(tmp_path: Path, rng):
    codes, scales = rng.integers(0, 16, (8, 64)), halves(rng, 8, 2)
    folder = write_folder(tmp_path / "m", {}, packers.gptq(codes, np.full((8, 2), 8), scales, 4))
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32, "sym": True}))
    check(folder, spread(scales, 32, 64) * (codes - 8).astype(np.float32), "int4-g32-symmetric")


@pytest.mark.parametrize(
    ("size", "columns", "becomes"),
    [(32, 96, "int8-g32"), (64, 64, "int8-row"), (-1, 48, "int8-row"), (16, 48, "float32")],
)
def test_awq(tmp_path: Path, rng, size: int, columns: int, becomes: str):
    group = columns if size == -1 else size
    codes, zeros = rng.integers(0, 16, (24, columns)), rng.integers(0, 16, (24, columns // group))
    zeros[0] = 15
    scales = halves(rng, 24, columns // group)
    settings = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "GEMM", "zero_point": True}
    folder = write_folder(tmp_path / "m", settings, packers.awq(codes, zeros, scales))
    check(folder, spread(scales, group, columns) * (codes - spread(zeros, group, columns)).astype(np.float32), becomes)


# ---- bitsandbytes


@pytest.mark.parametrize(
    ("kind", "shape", "block", "nested", "becomes"),
    [
        ("nf4", (9, 128), 64, False, "nf4-g64"), ("nf4", (9, 128), 128, False, "nf4-g64"),
        ("nf4", (9, 64), 64, True, "nf4-g64-wide"), ("nf4", (9, 64), 32, False, "float32"),
        ("nf4", (9, 48), 64, False, "float32"), ("nf4", (9, 7), 64, True, "float32"),
        ("fp4", (9, 64), 64, True, "float32"),
    ],
)  # fmt: skip
def test_bitsandbytes_4_bits(tmp_path: Path, rng, kind: str, shape, block: int, nested: bool, becomes: str):
    codes, blocks = rng.integers(0, 16, shape), -(-shape[0] * shape[1] // block)
    quant_map = VALUES if kind == "nf4" else FP4
    absmax = stored = halves(rng, blocks)
    facts = None
    if nested:
        meanings = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        steps = rng.uniform(0.01, 0.02, -(-blocks // 5)).astype(np.float32)
        stored = rng.integers(0, 256, blocks).astype(np.uint8)
        facts = {"block": 5, "offset": 0.05, "absmax": steps, "map": meanings}
        absmax = meanings[stored] * np.repeat(steps, 5)[:blocks] + np.float32(0.05)
    layer = packers.bnb4(codes, stored, quant_map, kind, block, facts)
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    folder = write_folder(tmp_path / "m", settings, layer)
    expected = quant_map[codes] * np.repeat(absmax, block)[: codes.size].reshape(shape)
    check(folder, expected, becomes)


@pytest.mark.parametrize(("storage", "dtype"), [("BF16", "<u2"), ("F16", "<u2"), ("F32", "<u4")])
def test_bitsandbytes_in_arrays_of_floats(tmp_path: Path, rng, storage: str, dtype: str):
    codes, absmax = rng.integers(0, 16, (8, 64)), halves(rng, 8)
    layer = packers.bnb4(codes, absmax, VALUES, "nf4", 64)
    layer[".weight"] = storage, layer[".weight"][1].reshape(-1).view(dtype).reshape(-1, 1)
    folder = write_folder(tmp_path / "m", {"load_in_4bit": True}, layer)  # as old files have it: no method
    check(folder, VALUES[codes] * absmax[:, None], "nf4-g64")


def test_bitsandbytes_int8(tmp_path: Path, rng):
    codes, largest = rng.integers(-127, 128, (9, 37)).astype(np.int8), rng.uniform(0.5, 3, 9).astype(np.float32)
    layer = {".weight": ("I8", codes), ".SCB": ("F32", largest), ".weight_format": ("U8", np.array(0, np.uint8))}
    folder = write_folder(tmp_path / "m", {"quant_method": "bitsandbytes", "load_in_8bit": True}, layer)
    check(folder, codes * (largest / np.float32(127))[:, None], "int8-row")


# ---- compressed-tensors


def compressed_settings(layout: str, *groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = {f"group_{n}": {"targets": ["Linear"], **group} for n, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": named, **more}


def scheme(bits: int, size: int | None = None, strategy: str = "", type: str = "int", **more: Any) -> dict[str, Any]:
    strategy = strategy or ("group" if size else "channel")
    return {"weights": {"num_bits": bits, "type": type, "strategy": strategy, "group_size": size, **more}}


@pytest.mark.parametrize(
    ("bits", "size", "shape", "zeros", "becomes"),
    [
        (4, 32, (9, 96), "packed", "int8-g32"), (4, 64, (16, 100), "bytes", "int8-g32"),
        (8, 32, (9, 64), "packed", "float32"), (4, None, (9, 44), "packed", "int8-row"),
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
    check(write_folder(tmp_path / "m", settings, layer), expected, {"nvfp4": "float32", "mxfp4": "int8-g32"}[kind])


# ---- FP8, torchao


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


@pytest.mark.parametrize(
    ("bits", "block", "zeros", "becomes"),
    [
        (4, 32, True, "int8-g32"),
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


# ---- MLX, HQQ


def write_mlx(folder: Path, layer: packers.Stored, **settings: Any) -> Path:
    write_folder(folder, {}, layer)
    (folder / "config.json").write_text(json.dumps({"quantization": settings}))
    return folder


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize(("size", "columns"), [(32, 96), (64, 128), (128, 128)])
def test_mlx_affine(tmp_path: Path, rng, bits: int, size: int, columns: int):
    codes, grid = rng.integers(0, 2**bits, (6, columns)), (6, columns // size)
    scales, biases = brains(rng, *grid) * rng.choice([-1, 1], grid), -brains(rng, *grid)
    folder = write_mlx(
        tmp_path / "m", packers.mlx(codes, bits, scales.astype("f4"), biases), bits=bits, group_size=size
    )
    expected = spread(scales.astype("f4"), size, columns) * codes.astype(np.float32) + spread(biases, size, columns)
    check(folder, expected, f"int4-g{size}" if bits <= 4 else "float32")


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_mlx_small_floats(tmp_path: Path, rng, mode: str):
    bits, size = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}[mode]
    codes = rng.integers(0, 2**bits - 1, (6, 96)) & ~(1 << 6 if bits == 8 else 0)  # no NaN among them
    steps = rng.integers(50, 100, (6, 96 // size)) if mode == "nvfp4" else rng.integers(115, 130, (6, 96 // size))
    scales = each(packers.e4m3, steps) if mode == "nvfp4" else 2.0 ** (steps - 127).astype(np.float32)
    layer = packers.mlx(codes, bits, steps.astype(np.uint8))
    folder = write_mlx(tmp_path / "m", layer, bits=bits, group_size=size, mode=mode)
    expected = each(packers.e4m3 if bits == 8 else packers.e2m1, codes) * spread(scales, size, 96)
    check(folder, expected, {"mxfp4": "int8-g32", "nvfp4": "bfloat16", "mxfp8": "bfloat16"}[mode])


def test_mlx_bits_by_layer(tmp_path: Path, rng):
    codes, scales, biases = rng.integers(0, 64, (6, 64)), brains(rng, 6, 2), brains(rng, 6, 2)
    own = {STEM: {"bits": 6, "group_size": 32}, "model.layers.0.mlp.down_proj": False}
    folder = write_mlx(tmp_path / "m", packers.mlx(codes, 6, scales, biases), bits=4, group_size=64, **own)
    check(folder, spread(scales, 32, 64) * codes.astype(np.float32) + spread(biases, 32, 64), "float32")


@pytest.mark.parametrize(
    ("bits", "size", "shape", "axis", "whole", "becomes"),
    [
        (8, 32, (4, 64), 1, False, "float32"), (4, 32, (4, 64), 1, True, "int8-g32"),
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


# ---- experts of gpt-oss; where settings stand; shards


def test_mxfp4_experts(tmp_path: Path, rng):
    """[experts, outputs, inputs / 32, 16] becomes [experts, inputs, outputs]; a scale of 2^-127 changes nothing."""
    codes = rng.integers(0, 16, (3, 5, 2, 32))
    steps = rng.integers(118, 126, (3, 5, 2))
    steps[1, 2], codes[1, 2] = 0, 0
    stem = "model.layers.0.mlp.experts.gate_up_proj"
    layer = {
        f"{stem}_blocks": ("U8", (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)),
        f"{stem}_scales": ("U8", steps.astype(np.uint8)),
    }
    tensors = open_checkpoint(write_folder(tmp_path / "m", {"quant_method": "mxfp4"}, layer)).tensors
    weights = each(packers.e2m1, codes) * (2.0 ** (steps - 127.0))[..., None].astype(np.float32)
    expected = weights.reshape(3, 5, 64).transpose(0, 2, 1)
    assert dtype_name(tensors[stem].dtype) == "bfloat16"
    assert list(tensors) == [stem]
    assert np.array_equal(to_float32(tensors[stem]), expected)
    assert np.array_equal(tensors.floats(stem, np.array([2, 0])), expected[[2, 0]])


def test_settings_of_a_text_model_inside_another(tmp_path: Path, rng):
    codes, scales = rng.integers(0, 16, (8, 64)), halves(rng, 8, 2)
    inner = {"quantization_config": gptq_settings(4, 32)}
    folder = write_folder(tmp_path / "m", {}, packers.gptq(codes, np.full((8, 2), 8), scales, 4), text_config=inner)
    check(folder, spread(scales, 32, 64) * (codes - 8).astype(np.float32), "int4-g32-symmetric")


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, None), ({"quantization_config": None}, None), ({"quantization_config": {}}, None),
        ({"quantization": {"bits": 4}}, "mlx"),
        ({"quantization": {"bits": 4}, "quantization_config": {"bits": 4}}, "mlx"),
        ({"quantization_config": {"quant_method": "tinyinfer"}}, "tinyinfer"),
        ({"quantization_config": {"load_in_8bit": True}}, "bitsandbytes"),
    ],
)  # fmt: skip
def test_who_quantized_it(config: dict[str, Any], method: str | None):
    assert quantization_method(config) == method


def test_shards(tmp_path: Path, rng):
    """The parts of a matrix may lie in several files, and the metadata of torchao in each."""
    codes, scales = rng.integers(-8, 8, (8, 64)), halves(rng, 8, 2)
    facts = packers.torchao_facts("IntxUnpackedToInt8Tensor", [1, 32], target_dtype={"_data": "int4"})
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "torchao"}}))
    shards = {
        "model-00001-of-00002.safetensors": {f"{STEM}._weight_qdata": ("I8", codes.astype(np.int8))},
        "model-00002-of-00002.safetensors": {f"{STEM}._weight_scale": ("F32", scales)},
    }
    for number, (file, tensors) in enumerate(shards.items()):
        packers.write_safetensors(tmp_path / file, tensors, facts if number else {"format": "pt"})
    expected = spread(scales, 32, 64) * codes.astype(np.float32)
    check(tmp_path, expected, "int4-g32-symmetric")
    index = {name: file for file, tensors in shards.items() for name in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    check(tmp_path, expected, "int4-g32-symmetric")


@pytest.mark.parametrize(
    ("scale", "becomes"), [(2.0**-30, "int8-row"), (3.1e5, "int8-row"), (2.0**-24, "int4-g128-symmetric")]
)
def test_scales_at_the_ends_of_float16(tmp_path: Path, rng, scale: float, becomes: str):
    codes, scales = rng.integers(-8, 8, (8, 64)), np.full((8, 1), rounded_to_bfloat16(np.array([scale]))[0])
    folder = write_folder(
        tmp_path / "m", compressed_settings("pack-quantized", scheme(4)), packers.compressed(codes, scales, 4)
    )
    check(folder, scales * codes.astype(np.float32), becomes)


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

"""GPTQ of every width, with and without order, with zeros of 0, which borrow from the next field."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.checks import check, gptq_settings, halves
from tests.checkpoint.foreign.packers import spread, write_folder


@pytest.mark.parametrize(
    ("bits", "size", "columns", "version", "becomes"),
    [
        (2, 32, 96, 1, "int4-g32-symmetric"), (2, 32, 96, 2, "int4-g32-symmetric"),
        (3, 32, 96, 1, "int4-g32-symmetric"), (3, 64, 128, 2, "int4-g64-symmetric"),
        (4, 64, 128, 1, "int5-g64-symmetric"), (4, -1, 40, 1, "int5-g128-symmetric"),
        (8, 32, 64, 2, "float32"), (4, 16, 64, 1, "float32"),
        (4, 64, 96, 1, "int5-g64-symmetric"), (8, 32, 64, 1, "float32"),
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

"""bitsandbytes: blocks of several sizes, along rows and across them; absmax quantized and not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.checks import check, halves
from tests.checkpoint.foreign.packers import write_folder
from tinyinfer.quant.nf4 import VALUES

FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4] * 2, np.float32) * np.repeat([1, -1], 8).astype("f4")


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

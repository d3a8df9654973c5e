"""What every test of a format asks: that each way to the weights gives exactly what its packer computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.packers import STEM, rounded_to_bfloat16, write_folder
from tinyinfer.checkpoint.foreign import ForeignTensors
from tinyinfer.checkpoint.safetensors import dtype_name, to_float32
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.quant import PackedWeight, dequantize

NAME = f"{STEM}.weight"


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


def gptq_settings(bits: int, size: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": size, **more}


def compressed_settings(layout: str, *groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = {f"group_{n}": {"targets": ["Linear"], **group} for n, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": named, **more}


def scheme(bits: int, size: int | None = None, strategy: str = "", type: str = "int", **more: Any) -> dict[str, Any]:
    strategy = strategy or ("group" if size else "channel")
    return {"weights": {"num_bits": bits, "type": type, "strategy": strategy, "group_size": size, **more}}


def write_mlx(folder: Path, layer: packers.Stored, **settings: Any) -> Path:
    write_folder(folder, {}, layer)
    (folder / "config.json").write_text(json.dumps({"quantization": settings}))
    return folder

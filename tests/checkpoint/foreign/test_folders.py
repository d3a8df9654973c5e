"""Where a folder says how it was quantized, and where its tensors lie; experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.checks import check, gptq_settings, halves
from tests.checkpoint.foreign.packers import STEM, each, spread, write_folder
from tinyinfer.checkpoint.foreign import quantization_method
from tinyinfer.checkpoint.safetensors import dtype_name, to_float32
from tinyinfer.checkpoint.source import open_checkpoint


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

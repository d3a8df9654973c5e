"""Folders that the real libraries quantized: their own dequantized matrices, and the logits of the whole model.

Matrices are held to equality, since each format is defined by a product or two in float32; bitsandbytes' int8 alone to
a unit in the last place, as its library multiplies in another order. Logits are held to 1e-4: float32 arithmetic
disagrees by 2e-6, and of the 8-bit folders a wrong loader is only 0.01 away. Of the golden files every fourth row of
`dequant.down_proj` and every fourth of `logits` is kept.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import tinyinfer
from tests.tiny_models import version4
from tinyinfer import reference
from tinyinfer.checkpoint.foreign import ForeignTensors, foreign_outlooks
from tinyinfer.checkpoint.quantized import quantize_folder, write_quantized
from tinyinfer.checkpoint.safetensors import FLOAT_DTYPES, dtype_name, to_float32
from tinyinfer.checkpoint.source import dequantized, open_checkpoint, plain, stored_bytes, tensor_forms, write_folder
from tinyinfer.config import read_config
from tinyinfer.quant import PackedWeight, dequantize

GOLDEN = Path(__file__).parents[2] / "golden" / "formats"
FOLDERS = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
Q_PROJ, DOWN_PROJ = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"
TOLERANCE = 1e-4

BECOMES = {
    "awq-4bit-g128": "int5-g128-symmetric", "bnb-int8": "int8-row", "bnb-nf4": "nf4-g64", "bnb-nf4-dq": "nf4-g64-wide",
    "ct-fp8-block": "float32", "ct-fp8-dynamic": "float32", "ct-fp8-static": "float32",
    "ct-mxfp4a16": "int5-g32-symmetric",
    "ct-nvfp4a16": "float32", "ct-w4a16-g128": "int4-g128-symmetric",
    "ct-w4a16-gptq-actorderweight-g32": "int4-g32-symmetric", "ct-w8a16": "int8-g32", "ct-w8a16-channel": "int8-row",
    "ct-w8a8-int8": "int8-row", "fp8-block128": "float32", "fp8-block128-ue8m0": "bfloat16",
    "gptq-3bit-g32": "int4-g32-symmetric", "gptq-4bit-g128": "int4-g128-symmetric",
    "gptq-4bit-g32-asym": "int5-g32-symmetric",
    "gptq-8bit-g32": "int8-g32", "hqq-2bit-g32": "float32", "hqq-4bit-g64": "float32", "hqq-8bit-g64": "float32",
    "mlx-3bit-g64": "int4-g64", "mlx-4bit-g64": "int4-g64", "mlx-5bit-g32": "int5-g32", "mlx-8bit-g64": "float32",
    "mlx-mxfp4": "int5-g32-symmetric", "mlx-mxfp8": "bfloat16", "mlx-nvfp4": "bfloat16", "torchao-float8wo": "float32",
    "torchao-int8wo": "int8-row", "torchao-intx4-g32": "int4-g32-symmetric",
}  # fmt: skip


def golden(name: str) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(GOLDEN / name / "golden.safetensors")


def logits(folder: Path, ids: np.ndarray, **choices: str) -> np.ndarray:
    return tinyinfer.load(folder, kv_dtype="float32", **choices).forward(ids.tolist())[::4]


@pytest.mark.parametrize("name", FOLDERS)
def test_matrices_are_the_librarys_own(name: str):
    tensors, found = open_checkpoint(GOLDEN / name).tensors, golden(name)
    ulps = 1 if name == "bnb-int8" else 0
    for tensor, expected, step in ((Q_PROJ, found["dequant.q_proj"], 1), (DOWN_PROJ, found["dequant.down_proj"], 4)):
        rows = np.arange(0, 128, step)
        for values in (to_float32(plain(tensors, tensor))[::step], tensors.floats(tensor, rows)):
            off = np.abs(values - expected)
            assert (off <= ulps * np.spacing(np.abs(expected))).all()


@pytest.mark.parametrize("name", FOLDERS)
def test_what_becomes_of_them(name: str):
    tensors = open_checkpoint(GOLDEN / name).tensors
    assert isinstance(tensors, ForeignTensors)
    forms, layout = tensors.forms, tensors.layout
    assert (forms[DOWN_PROJ].name if DOWN_PROJ in forms else dtype_name(layout[DOWN_PROJ][0])) == BECOMES[name]
    outlooks = foreign_outlooks(tensors)
    assert BECOMES[name] in {outlook.form for outlook in outlooks}
    assert sum(outlook.bytes for outlook in outlooks) == sum(stored_bytes(tensors).values())
    files = (GOLDEN / name).glob("model.safetensors")
    assert sum(outlook.file_bytes for outlook in outlooks) <= sum(file.stat().st_size for file in files)
    for tensor, matrix in tensors.matrices.items():
        made = tensors[tensor]
        exact = matrix.floats(np.arange(matrix.shape[0]))
        assert np.array_equal(dequantize(made) if isinstance(made, PackedWeight) else to_float32(made), exact)
        if isinstance(made, PackedWeight):
            assert made.form == tensors.forms[tensor]
        else:
            assert (made.dtype, made.shape) == tensors.layout[tensor]
    assert all(tensors[tensor].dtype in FLOAT_DTYPES for tensor in tensors if tensor not in tensors.matrices)


@pytest.mark.parametrize("name", FOLDERS)
def test_logits(name: str):
    found = golden(name)
    ids, expected = found["input_ids"], found["logits"]
    as_it_comes = tinyinfer.load(GOLDEN / name)
    assert as_it_comes.unused_tensors == ()
    plain_numpy = reference.forward(as_it_comes.config, as_it_comes.model.tensors, ids)
    assert np.abs(plain_numpy[::4] - expected).max() < TOLERANCE
    assert np.abs(logits(GOLDEN / name, ids, activations="f32") - expected).max() < TOLERANCE


@pytest.mark.parametrize("name", ["bnb-nf4-dq", "gptq-4bit-g128", "awq-4bit-g128", "mlx-4bit-g64", "ct-w8a16-channel"])
def test_logits_of_integer_kernels(name: str):
    """Activations in 8 bits move these logits by 0.03 at most; a wrong code or scale moves them by more than 1."""
    found = golden(name)
    assert np.abs(logits(GOLDEN / name, found["input_ids"]) - found["logits"]).max() < 0.06


@pytest.mark.parametrize("name", ["bnb-nf4-dq", "gptq-4bit-g32-asym", "mlx-mxfp8", "torchao-int8wo", "hqq-4bit-g64"])
def test_round_trips(name: str, tmp_path: Path):
    checkpoint, found = open_checkpoint(GOLDEN / name), golden(name)
    write_folder(checkpoint, tmp_path / "plain", "float32")
    write_quantized(checkpoint, tmp_path / "kept")
    quantize_folder(checkpoint, tmp_path / "int4", scheme="int4")
    write_folder(checkpoint, tmp_path / "half", "bfloat16")
    for folder in ("plain", "kept"):
        again = logits(tmp_path / folder, found["input_ids"], activations="f32")
        assert np.abs(again - found["logits"]).max() < TOLERANCE
    for folder in ("plain", "half"):
        config = json.loads((tmp_path / folder / "config.json").read_text())
        assert not config.keys() & {"quantization_config", "quantization"}
    kept = open_checkpoint(tmp_path / "kept")
    assert tensor_forms(kept.tensors) == tensor_forms(checkpoint.tensors)
    made = open_checkpoint(tmp_path / "int4")
    assert "quantization" not in made.config
    assert tensor_forms(made.tensors)[DOWN_PROJ].name == "int4-g32"
    # 4 bits of random weights: 0.05 to 0.35 of logits of size 1
    assert np.abs(logits(tmp_path / "int4", found["input_ids"], activations="f32") - found["logits"]).max() < 0.5


def test_dequantized_forgets_the_format():
    for name in ("fp8-block128", "mlx-4bit-g64"):
        found = dequantized(open_checkpoint(GOLDEN / name))
        assert not found.config.keys() & {"quantization_config", "quantization"}
        assert tensor_forms(found.tensors) == {}


@pytest.mark.parametrize("name", ["gptq-4bit-g128", "mlx-3bit-g64"])
def test_configs_as_transformers_4_wrote_them(name: str):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    if "rope_parameters" not in config:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    assert read_config(version4(config)) == read_config(config)


def test_loading_quantized_anew():
    llm = tinyinfer.load(GOLDEN / "fp8-block128", quantize="int8", kv_dtype="float32", activations="f32")
    found = golden("fp8-block128")
    assert np.abs(llm.forward(found["input_ids"].tolist())[::4] - found["logits"]).max() < 0.1

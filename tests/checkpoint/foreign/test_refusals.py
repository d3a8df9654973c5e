"""Foreign folders that are damaged, contradict themselves or are of a variant that is not read: one sentence each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.foreign import packers
from tests.checkpoint.foreign.packers import STEM, write_folder
from tinyinfer.checkpoint.foreign import quantization_method
from tinyinfer.checkpoint.source import open_checkpoint, plain
from tinyinfer.errors import BadCheckpoint, TinyinferError, UnsupportedModel
from tinyinfer.quant.nf4 import VALUES

ONES = np.ones((8, 2), np.float32)
FLAT = np.ones(16, np.float32)
CODES = np.arange(8 * 64).reshape(8, 64) % 16
SIGNED = CODES - 8
GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
FLOAT8 = ("F8_E4M3", np.full((8, 64), 0x38, np.uint8))
TORCHAO = packers.torchao_facts("Int8Tensor", [1, 32])


def sound(method: str) -> tuple[dict[str, Any], packers.Stored, dict[str, str]]:
    """Settings, tensors and metadata of a small folder of one layer that is as it should be."""
    settings: dict[str, Any] = {"quant_method": method}
    if method == "gptq":
        return (
            settings | {"bits": 4, "group_size": 32},
            packers.gptq(CODES, CODES[:, :2], ONES, 4, np.arange(64) // 32),
            {},
        )
    if method == "awq":
        return settings | {"bits": 4, "group_size": 32, "version": "gemm"}, packers.awq(CODES, CODES[:, :2], ONES), {}
    if method == "bitsandbytes":
        nested = {"block": 256, "offset": 0.5, "absmax": FLAT[:1], "map": np.linspace(-1, 1, 256, dtype=np.float32)}
        return settings, packers.bnb4(CODES, np.arange(8, dtype=np.uint8), VALUES, "nf4", 64, nested), {}
    if method == "bitsandbytes int8":
        layer = {".weight": ("I8", CODES.astype(np.int8)), ".SCB": ("F32", FLAT[:8])}
        return {"quant_method": "bitsandbytes"}, layer, {}
    if method == "compressed-tensors":
        settings |= {"format": "pack-quantized", "config_groups": {"group_0": GROUP}}
        return settings, packers.compressed(SIGNED, ONES, 4, SIGNED[:, :2]), {}
    if method == "fp8":
        layer = {".weight": FLOAT8, ".weight_scale_inv": ("F32", np.ones((1, 2), np.float32))}
        return settings | {"weight_block_size": [32, 32]}, layer, {}
    if method == "torchao":
        layer = {"._weight_qdata": ("I8", SIGNED.astype(np.int8)), "._weight_scale": ("F32", ONES)}
        return settings, layer, dict(TORCHAO)
    if method == "hqq":
        return settings, packers.hqq(CODES, FLAT, FLAT, 4, 32), {}
    if method == "mxfp4":
        blocks = np.zeros((2, 4, 2, 16), np.uint8)
        return (
            settings,
            {".experts_blocks": ("U8", blocks), ".experts_scales": ("U8", np.full((2, 4, 2), 120, np.uint8))},
            {},
        )
    raise KeyError(method)


METHODS = ["gptq", "awq", "bitsandbytes", "bitsandbytes int8", "compressed-tensors", "fp8", "torchao", "hqq", "mxfp4"]


def read(folder: Path, settings: dict[str, Any], layer: packers.Stored, metadata: dict[str, str] | None = None) -> None:
    tensors = open_checkpoint(write_folder(folder, settings, layer, metadata=metadata)).tensors
    for name in tensors:
        plain(tensors, name)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_sound_is_read(tmp_path: Path, method: str):
    read(tmp_path / "m", *sound(method))


@pytest.mark.parametrize("method", METHODS)
def test_every_part_is_needed_has_its_dtype_and_its_shape(tmp_path: Path, method: str):
    settings, layer, metadata = sound(method)
    optional = {".g_idx", ".weight_zero_point", ".group_size", ".view_as_float", ".quant_scale", ".quant_zero"}
    unread = {".offload_meta", ".encoded_state_dict"}
    for number, (name, (code, array)) in enumerate(layer.items()):
        without = {key: layer[key] for key in layer if key != name}
        other = {name: ("F64", array.astype(np.float64))}
        longer = {name: (code, np.concatenate([array.reshape(-1), array.reshape(-1)[:1]]))}
        if name not in optional | unread:
            refused(tmp_path / f"missing{number}", BadCheckpoint, STEM, settings, without, metadata)
        if name not in unread:
            refused(tmp_path / f"dtype{number}", BadCheckpoint, STEM, settings, layer | other, metadata)
            refused(tmp_path / f"shape{number}", TinyinferError, STEM, settings, layer | longer, metadata)


BNB_STATE = ".weight.quant_state.bitsandbytes__nf4"
STATE = {"quant_type": "nf4", "blocksize": 64, "shape": [8, 64], "nested_blocksize": 256, "nested_offset": 0.5}
NOT_FINITE = "not finite"


def text(what: Any) -> tuple[str, np.ndarray]:
    raw = what if isinstance(what, bytes) else json.dumps(what).encode()
    return "U8", np.frombuffer(raw, np.uint8)


def byte(number: int) -> tuple[str, np.ndarray]:
    return "U8", np.array(number, np.uint8)


def words(*numbers: int) -> tuple[str, np.ndarray]:
    return "I32", np.array(numbers, np.int32)


def weights(**changes: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {**GROUP, "weights": {**GROUP["weights"], **changes}}}}


def groups(*targets: Any) -> dict[str, Any]:
    return {"config_groups": {f"group_{n}": {**GROUP, "targets": one} for n, one in enumerate(targets)}}


def state(**changes: Any) -> dict[str, Any]:
    return {BNB_STATE: text(STATE | changes)}


# method, settings that change, the error, what it says
SETTINGS = [
    ("gptq", {"bits": 5}, UnsupportedModel, "bits: expected one of 2, 3, 4, 8, found 5"),
    ("gptq", {"bits": True}, UnsupportedModel, "found True"),
    ("gptq", {"bits": 8}, BadCheckpoint, r"expected shape \[32\], found \[64\]"),
    ("gptq", {"group_size": 0}, BadCheckpoint, "whole number from 1, found 0"),
    ("gptq", {"group_size": 64}, BadCheckpoint, r"scales.*expected shape \[1, 8\]"),
    ("gptq", {"checkpoint_format": "marlin"}, UnsupportedModel, "found 'marlin'"),
    ("gptq", {"checkpoint_format": "gptq_p"}, UnsupportedModel, "found 'gptq_p'"),
    ("gptq", {"pack_dtype": "int16"}, UnsupportedModel, "found 'int16'"),
    ("gptq", {"dynamic": {"+:(": {}}}, BadCheckpoint, "no regular expression"),
    ("gptq", {"dynamic": {"x" * 1001: {}}}, UnsupportedModel, "at most 1000 characters"),
    ("gptq", {"dynamic": {"(a+)+$": {}}}, UnsupportedModel, "4 repeats and none of a group"),
    ("gptq", {"dynamic": {".*.*.*.*.*x": {}}}, UnsupportedModel, "4 repeats and none of a group"),
    ("gptq", {"dynamic": {"-:.*up": {}}}, BadCheckpoint, "said not to be quantized"),
    ("gptq", {"dynamic": {".*": 4}}, BadCheckpoint, "JSON object"),
    ("awq", {"version": "gemv"}, UnsupportedModel, "version: .*found 'gemv'"),
    ("awq", {"bits": 8}, UnsupportedModel, "expected one of 4, found 8"),
    ("awq", {"group_size": 48}, BadCheckpoint, "no multiple of 48"),
    ("bitsandbytes", {"bnb_4bit_quant_storage": "int4"}, UnsupportedModel, "int4"),
    ("compressed-tensors", {"format": "marlin-24"}, UnsupportedModel, "found 'marlin-24'"),
    ("compressed-tensors", {"format": None}, UnsupportedModel, "found nothing"),
    ("compressed-tensors", weights(num_bits=3), UnsupportedModel, "num_bits"),
    ("compressed-tensors", weights(strategy="token"), UnsupportedModel, "found 'token'"),
    ("compressed-tensors", weights(type="float"), UnsupportedModel, "type: expected one of int"),
    ("compressed-tensors", {"transform_config": {"config_groups": {"a": 1}}}, UnsupportedModel, "turned"),
    ("compressed-tensors", {"sparsity_config": {"format": "sparse-24"}}, UnsupportedModel, "sparse-24"),
    ("compressed-tensors", {"config_groups": {}}, BadCheckpoint, "none has"),
    ("compressed-tensors", {"config_groups": {"a": None}}, BadCheckpoint, "JSON object"),
    ("compressed-tensors", groups(["x"], []), BadCheckpoint, "none has"),
    ("compressed-tensors", groups(["Linear"], 7), BadCheckpoint, "targets should be"),
    ("compressed-tensors", groups(["Linear"], ["re:["]), BadCheckpoint, "no regular expression"),
    ("fp8", {"fmt": "e5m2"}, UnsupportedModel, "found 'e5m2'"),
    ("fp8", {"expert_dtype": "fp4"}, UnsupportedModel, "found 'fp4'"),
    ("fp8", {"weight_block_size": [128]}, BadCheckpoint, "2 whole numbers"),
    ("fp8", {"weight_block_size": [4, 32]}, BadCheckpoint, r"expected shape \[2, 2\]"),
]  # fmt: skip

# method, tensors that change or come in addition, the error, what it says
TENSORS = [
    ("gptq", {".g_idx": words(*np.arange(64) // 16)}, BadCheckpoint, "groups from 0 to 1, found 0 to 3"),
    ("gptq", {".g_idx": words(*np.arange(64) - 9)}, BadCheckpoint, "groups from 0 to 1, found -9 to 54"),
    ("gptq", {".scales": ("F16", np.full((2, 8), np.inf, np.float16))}, BadCheckpoint, NOT_FINITE),
    ("gptq", {".weight": ("F32", np.zeros((8, 64), np.float32))}, BadCheckpoint, "there twice"),
    ("bitsandbytes", {BNB_STATE: text(b"{")}, BadCheckpoint, "not valid JSON"),
    ("bitsandbytes", {BNB_STATE: text([])}, BadCheckpoint, "JSON object"),
    ("bitsandbytes", state(shape=[8, 63]), BadCheckpoint, "expected 252 bytes"),
    ("bitsandbytes", state(shape=[2**31 - 1, 2**31 - 1]), BadCheckpoint, "expected .* bytes"),
    ("bitsandbytes", state(shape=[8, 8, 8]), BadCheckpoint, "2 whole numbers"),
    ("bitsandbytes", state(blocksize=128), BadCheckpoint, r"expected shape \[4\]"),
    ("bitsandbytes", state(quant_type="fp4"), UnsupportedModel, "quant_type"),
    ("bitsandbytes", state(nested_offset="no"), BadCheckpoint, "nested_offset"),
    ("bitsandbytes", state(nested_offset=1e40), BadCheckpoint, "nested_offset"),
    ("bitsandbytes int8", {".weight_format": byte(3)}, BadCheckpoint, "found layout 3"),
    ("compressed-tensors", {".weight_shape": ("I64", np.array([8, -64]))}, BadCheckpoint, "two numbers from 1"),
    ("compressed-tensors", {".weight_g_idx": words(*[2] * 64)}, BadCheckpoint, "groups from 0 to 1"),
    ("fp8", {".weight": ("F8_E4M3", np.full((8, 64), 0x7F, np.uint8))}, BadCheckpoint, NOT_FINITE),
    ("fp8", {".weight_scale_inv": ("F32", np.full((1, 2), 3e38, np.float32)),
             ".weight": ("F8_E4M3", np.full((8, 64), 0x7E, np.uint8))}, BadCheckpoint, NOT_FINITE),
    ("fp8", {"model.layers.0.mlp.down_proj.weight": FLOAT8}, BadCheckpoint, "down_proj.*without them"),
    ("hqq", {".view_as_float": byte(1)}, UnsupportedModel, "view_as_float"),
    ("hqq", {".quant_scale": byte(1)}, UnsupportedModel, "quant_scale"),
    ("hqq", {".axis": words(2)}, UnsupportedModel, "axis"),
    ("hqq", {".packing": text(b"6bit_u8")}, UnsupportedModel, "6bit_u8"),
    ("hqq", {".packing": text(b"\xff")}, UnsupportedModel, "packing"),
    ("hqq", {".group_size": words(-1)}, BadCheckpoint, "group_size"),
    ("mxfp4", {".experts_scales": ("U8", np.full((2, 4, 2), 255, np.uint8))}, BadCheckpoint, NOT_FINITE),
]  # fmt: skip

TARGET3 = {"target_dtype": {"_data": "int3"}}
METADATA = [
    ({}, BadCheckpoint, "metadata of .* JSON object"),
    ({f"{STEM}.weight": "{"}, BadCheckpoint, "not valid JSON"),
    (packers.torchao_facts("Int4TilePackedTo4dTensor", [1, 32]), UnsupportedModel, "Int4TilePacked"),
    (packers.torchao_facts("Int8Tensor", [1]), BadCheckpoint, "2 whole numbers"),
    (packers.torchao_facts("Int8Tensor", [1, 64]), BadCheckpoint, r"expected shape \[8, 1\]"),
    (packers.torchao_facts("IntxUnpackedToInt8Tensor", [1, 32], **TARGET3), BadCheckpoint,
     "codes from -4 to 3, found -8 to 7"),
]  # fmt: skip


def refused(folder: Path, kind: type[Exception], message: str, *what: Any) -> None:
    with pytest.raises(kind, match=message) as caught:
        read(folder, *what)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("method", "changes", "kind", "message"), SETTINGS)
def test_settings(tmp_path: Path, method: str, changes: dict[str, Any], kind: type[Exception], message: str):
    settings, layer, metadata = sound(method)
    refused(tmp_path / "m", kind, message, settings | changes, layer, metadata)


@pytest.mark.parametrize(("method", "changes", "kind", "message"), TENSORS)
def test_tensors(tmp_path: Path, method: str, changes: packers.Stored, kind: type[Exception], message: str):
    settings, layer, metadata = sound(method)
    refused(tmp_path / "m", kind, message, settings, layer | changes, metadata)


@pytest.mark.parametrize(("metadata", "kind", "message"), METADATA)
def test_metadata_of_torchao(tmp_path: Path, metadata: dict[str, str], kind: type[Exception], message: str):
    refused(tmp_path / "m", kind, message, *sound("torchao")[:2], metadata)


@pytest.mark.parametrize("method", METHODS)
def test_a_plain_folder_that_is_said_to_be_quantized(tmp_path: Path, method: str):
    refused(tmp_path / "m", BadCheckpoint, "no tensor is so", sound(method)[0], {".weight": ("F32", ONES)})


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"bits": 7}, UnsupportedModel, "bits: expected one of 2, 3, 4, 5, 6, 8, found 7"),
        ({"mode": "nf4"}, UnsupportedModel, "mode: .*found 'nf4'"),
        ({"group_size": 48}, UnsupportedModel, "group_size"),
        ({"group_size": 64}, BadCheckpoint, r"expected shape \[8, 1\], found \[8, 2\]"),
        ({"mode": "mxfp4", "group_size": 32}, BadCheckpoint, "expected uint8, found bfloat16"),
        ({STEM: False}, BadCheckpoint, "said not to be quantized"),
        ({STEM: 4}, BadCheckpoint, "JSON object"),
        ({"bits": 8}, BadCheckpoint, "no multiple of 32|expected shape"),
    ],
)
def test_mlx_refused_by_name(tmp_path: Path, changes: dict[str, Any], kind: type[Exception], message: str):
    folder = write_folder(tmp_path / "m", {}, packers.mlx(CODES, 4, ONES, ONES))
    settings = {"bits": 4, "group_size": 32, **changes}
    (folder / "config.json").write_text(json.dumps({"quantization": settings}))
    with pytest.raises(kind, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quantization_config": {"quant_method": "modelopt"}},
            "quantized by 'modelopt' can't be read; known are awq, ",
        ),
        ({"quantization_config": {"bits": 4}}, "an unnamed method"),
        ({"quantization_config": [1]}, "an unnamed method"),
        ({"quantization_config": {"quant_method": ["gptq"]}}, "quantized by "),
        ({"text_config": {"quantization_config": {"quant_method": "eetq"}}}, "text_config: .*'eetq'"),
    ],
)
def test_methods_that_are_not_read(tmp_path: Path, config: dict[str, Any], message: str):
    with pytest.raises(UnsupportedModel, match=message):
        quantization_method(config)
    folder = write_folder(tmp_path / "m", {}, {"a": ("F32", FLAT)}, **config)
    with pytest.raises(UnsupportedModel, match=message) as caught:
        open_checkpoint(folder)
    assert str(folder) in str(caught.value)

"""Folders that other programs quantized, from the command line: info, run, convert, quantize, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.checkpoint.foreign.test_golden import GOLDEN
from tests.cli.commands import refused, tinyinfer
from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tinyinfer.checkpoint.source import open_checkpoint, tensor_forms

DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "gptq-4bit-g32-asym", tmp_path / "gptq")
    (tmp_path / "gptq" / "tokenizer.json").write_text(byte_level_tokenizer_json())
    return tmp_path / "gptq"


def answer(model: Path, *flags: str) -> list[int]:
    done = tinyinfer("run", model, "ab", "--raw", "--json", "--max-tokens", "8", "--activations", "f32", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["ids"]


def test_run_convert_and_quantize(folder: Path, tmp_path: Path):
    expected = answer(folder)
    assert tinyinfer("convert", folder, tmp_path / "plain", "-q", "--dtype", "float32").returncode == 0
    assert tinyinfer("convert", folder, tmp_path / "kept", "-q").returncode == 0
    assert answer(tmp_path / "plain") == expected
    assert tensor_forms(open_checkpoint(tmp_path / "kept").tensors)[DOWN].name == "int5-g32-symmetric"
    assert "quantization_config" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    done = tinyinfer("quantize", folder, tmp_path / "small", "--scheme", "int4")
    assert done.returncode == 0
    assert "matrices that were quantized before, in another form: 14" in done.stderr
    assert tensor_forms(open_checkpoint(tmp_path / "small").tensors)[DOWN].name == "int4-g32"


@pytest.mark.parametrize(
    ("name", "by", "line"),
    [
        ("gptq-4bit-g128", "gptq", "GPTQ 4-bit, groups of 128 "),
        ("fp8-block128", "fp8", "FP8, blocks of [128, 128] "),
    ],
)
def test_info_says_what_becomes_of_each_kind(name: str, by: str, line: str):
    shown = tinyinfer("info", GOLDEN / name).stdout
    assert f"quantization   by {by}\n" in shown
    assert all(row.endswith(", exact") for row in shown.splitlines() if " tensors as " in row)
    assert line in shown
    facts = json.loads(tinyinfer("info", GOLDEN / name, "--json").stdout)
    assert facts["quantized_by"] == by
    assert sum(one["bytes"] for one in facts["foreign_types"]) == facts["weight_bytes"]
    assert "gguf_types" not in facts


def test_a_method_that_is_not_read_is_one_sentence(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "quip"}}))
    for command in (["run", folder, "a"], ["convert", folder, folder / "out"]):
        assert "weights quantized by 'quip' can't be read; known are awq, " in refused(tinyinfer(*command))

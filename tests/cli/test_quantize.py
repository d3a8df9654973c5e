"""`tinyinfer quantize`: what it writes and says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import refused, tinyinfer
from tests.tiny_models import random_model
from tinyinfer.checkpoint.source import open_checkpoint, tensor_forms
from tinyinfer.quant import FORMS

UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "plain"
    random_model(folder, tie_word_embeddings=True)
    return folder


def forms(folder: Path) -> dict[str, str]:
    return {name: form.name for name, form in tensor_forms(open_checkpoint(folder).tensors).items()}


def test_it_writes_a_folder_and_says_how_exact_it_is(model: Path, tmp_path: Path):
    done = tinyinfer("quantize", model, tmp_path / "small")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'small'}\n")
    started, summary = done.stderr.splitlines()
    assert started.startswith("quantizing to small (")
    assert " became " in summary
    assert "bits a weight; relative error int8-g32 0.00" in summary
    found = forms(tmp_path / "small")
    assert found.pop("model.embed_tokens.weight") == "int8-g32"
    assert set(found.values()) == {"int4-g32"}
    assert len(found) == 3 * 7


@pytest.mark.parametrize(
    ("flags", "form"),
    [
        (["--scheme", "nf4", "--double"], "nf4-g64-double"),
        (["--scheme", "int8", "--group-size", "0"], "int8-row"),
        (["--group-size", "128", "--symmetric"], "int4-g128-symmetric"),
    ],
)
def test_flags(model: Path, tmp_path: Path, flags: list[str], form: str):
    done = tinyinfer("quantize", model, tmp_path / "out", "-q", *flags, "--head", "bfloat16", "--keep", r"layers\.[12]")
    assert (done.returncode, done.stderr) == (0, "")
    found = forms(tmp_path / "out")
    assert found[UP] == form
    assert all(name.startswith("model.layers.0.") for name in found)
    facts = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert facts["form"] == form
    assert facts["others"]["model.embed_tokens.weight"] == "bfloat16"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--scheme", "int3"], "invalid choice: 'int3'"),
        (["--group-size", "33"], "groups of 33 does not exist"),
        (["--head", "int3"], "head should be one of"),
        (["--keep", "["], "regular expression"),
        (["--keep", "absent"], "no tensor has a name"),
    ],
)
def test_impossible_flags_are_one_sentence(model: Path, tmp_path: Path, flags: list[str], message: str):
    assert message in refused(tinyinfer("quantize", model, tmp_path / "out", "-q", *flags))
    assert not (tmp_path / "out").exists()


def test_info_shows_what_was_done_and_what_could_be(model: Path, tmp_path: Path):
    assert tinyinfer("quantize", model, tmp_path / "out", "-q").returncode == 0
    shown = tinyinfer("info", tmp_path / "out").stdout
    assert "quantization" in shown
    assert "int8-g32 0.00" in shown
    facts = json.loads(tinyinfer("info", tmp_path / "out", "--json").stdout)
    assert set(facts["weight_bytes_by_dtype"]) == {"int4-g32", "int8-g32", "float32"}
    assert "schemes" not in facts
    assert json.loads(tinyinfer("info", model, "--json").stdout)["quantization"] is None
    found = json.loads(tinyinfer("info", model, "--json", "--schemes").stdout)["schemes"]
    assert [one["form"] for one in found] == list(FORMS)
    shown = tinyinfer("info", model, "--schemes").stdout
    assert all(f" {name} " in shown for name in FORMS)


def test_a_folder_that_is_there_and_a_model_that_is_not(model: Path, tmp_path: Path):
    assert "already there" in refused(tinyinfer("quantize", model, model, "-q"))
    assert "no/such" in refused(tinyinfer("quantize", "/no/such.gguf", tmp_path / "out"))
    assert "required: OUT" in refused(tinyinfer("quantize", model))

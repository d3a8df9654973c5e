"""Commands that load no weights notice what `load` would refuse: tensors that are missing, and files that are notes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.test_adapters import ADAPTERS
from tests.tiny_models import GOLDEN, random_model, write_model
from tinyinfer import load
from tinyinfer.cli import main
from tinyinfer.errors import BadCheckpoint, TinyinferError

COMMANDS = {
    "info": ["info"], "convert": ["convert", "OUT"], "convert --dtype": ["convert", "OUT", "--dtype", "float16"],
    "quantize": ["quantize", "OUT"], "merge": ["merge", "OUT", "--lora", str(ADAPTERS / "llama-all")],
}  # fmt: skip
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 269060552\n".format("4d7a" * 16)


def said(command: str, model: Path, out: Path, capsys: pytest.CaptureFixture) -> str:
    name, *rest = COMMANDS[command]
    argv = [name, str(model), *(str(out) if word == "OUT" else word for word in rest)]
    assert main(argv) == 2
    assert not out.exists()
    return capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("lacking", ["lm_head.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"])
def test_a_tensor_that_is_missing(command: str, lacking: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Never random weights: an untied model without a head, or any model without another tensor."""
    config, tensors = random_model()
    write_model(tmp_path / "model", config, {name: array for name, array in tensors.items() if name != lacking})
    with pytest.raises(BadCheckpoint) as caught:
        load(tmp_path / "model")
    assert f"tensor {lacking!r} is missing; expected shape" in str(caught.value)
    assert said(command, tmp_path / "model", tmp_path / "out", capsys) == f"tinyinfer: error: {caught.value}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_tensor_of_another_shape(command: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    config, tensors = random_model()
    write_model(tmp_path / "model", config, tensors | {"lm_head.weight": np.zeros((96, 40), np.float32)})
    expected = "tensor 'lm_head.weight': expected shape [97, 40], found [96, 40]"
    assert expected in said(command, tmp_path / "model", tmp_path / "out", capsys)


@pytest.mark.parametrize("command", ["convert", "quantize"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", [True, False])
def test_tied_and_untied_heads(command: str, tied: bool, head: bool, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Tied or not, with a head or without, through a command: three work, the last is refused by name."""
    config, tensors = random_model(tie_word_embeddings=tied, hidden_size=64, intermediate_size=64)
    tensors["lm_head.weight"] = np.random.default_rng(1).normal(size=(97, 64)).astype(np.float32)
    if not head:
        del tensors["lm_head.weight"]
    write_model(tmp_path / "model", config, tensors)
    if not (tied or head):
        assert "'lm_head.weight' is missing" in said(command, tmp_path / "model", tmp_path / "out", capsys)
        return
    assert main([command, str(tmp_path / "model"), str(tmp_path / "out"), "-q"]) == 0
    before, after = (load(tmp_path / name).forward([1, 2, 3]) for name in ("model", "out"))
    assert np.abs(after - before).max() < (0.4 if command == "quantize" else 1e-6) * np.abs(before).max()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "tokenizer.model", "m.gguf"])
def test_a_git_lfs_pointer_in_the_place_of_a_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "llama", folder)
    if name == "tokenizer.model":
        (folder / "tokenizer.json").unlink(missing_ok=True)
    (folder / name).write_text(POINTER)
    model = folder / name if name.endswith("gguf") else folder
    with pytest.raises(TinyinferError, match="a Git LFS pointer to a file of 269,060,552 bytes") as caught:
        load(model)
    assert f"{folder / name}: only a Git LFS pointer" in str(caught.value)
    assert "git lfs pull" in str(caught.value)
    assert main(["info", str(model)]) == 2
    assert str(caught.value) in capsys.readouterr().err


def test_a_pointer_that_is_not_read_is_no_matter(tmp_path: Path):
    shutil.copytree(GOLDEN / "llama", tmp_path / "model")
    (tmp_path / "model" / "pytorch_model.bin").write_text(POINTER)
    assert load(tmp_path / "model").config.vocab_size == 320

"""A model rounded by what its matrices meet: nearer to what it was, an ordinary folder, and what is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinyinfer
from tests.lab.course.tiny_settings import tiny_setting
from tests.text.tiny_tokenizers import byte_level_tokenizer_json
from tests.tiny_models import golden_folder
from tinyinfer import reference
from tinyinfer.calibration.text import LEAST, MOST, WINDOW, usual_text, windows
from tinyinfer.calibration.walk import METHODS, calibrated
from tinyinfer.checkpoint.quantized import quantize_checkpoint, quantize_folder
from tinyinfer.checkpoint.source import Checkpoint, dequantized, open_checkpoint, tensor_forms, tensor_layout
from tinyinfer.config import read_config
from tinyinfer.errors import BadCheckpoint, BadRequest, TinyinferError
from tinyinfer.model.tensors import collect_tensors
from tinyinfer.quant import dequantize, error_ratio, relative_error

UP, NORM = "model.layers.1.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight"
TEXT, OTHER = usual_text()[:1000], usual_text()[1000:1200]  # a byte a token, or nearly
CHOICES = {"scheme": "int4", "group_size": 64}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_setting(folder, num_hidden_layers=2, tie_word_embeddings=True)
    return open_checkpoint(folder)


def logits(checkpoint: Checkpoint, ids: np.ndarray) -> np.ndarray:
    config = read_config(checkpoint.config)
    return reference.forward(config, collect_tensors(config, dequantized(checkpoint).tensors), ids)


def rounded(checkpoint: Checkpoint, method: str, **choices: Any) -> Checkpoint:
    made, _ = calibrated(checkpoint, method, TEXT, **choices)
    return quantize_checkpoint(made, **choices)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("choices", [CHOICES, {"scheme": "int4", "symmetric": True}])
def test_logits_move_less_than_by_the_nearest_codes(model: Checkpoint, method: str, choices: dict[str, Any]):
    choices = {**choices, "head": "float32"}
    ids = np.array(tinyinfer.load(model.source).tokenizer.encode(OTHER))
    exact, nearest = logits(model, ids), logits(quantize_checkpoint(model, **choices), ids)
    found = logits(rounded(model, method, **choices), ids)
    # a random model's inputs are all alike, so there is little to gain, and little was read
    assert relative_error(exact, found) < 0.97 * relative_error(exact, nearest)


@pytest.mark.parametrize("method", METHODS)
def test_a_folder_like_any_other(model: Checkpoint, tmp_path: Path, method: str):
    made, facts = calibrated(model, method, TEXT, **CHOICES)
    quantize_folder(made, tmp_path / "small", facts=facts, **CHOICES)
    read = open_checkpoint(tmp_path / "small")
    quantize_folder(model, tmp_path / "nearest", **CHOICES)
    assert tensor_forms(read.tensors) == tensor_forms(open_checkpoint(tmp_path / "nearest").tensors)
    llm = tinyinfer.load(tmp_path / "small")
    assert llm.unused_tensors == ()
    again = rounded(model, method, **CHOICES)
    for name, tensor in again.tensors.items():
        for part, array in (tensor.arrays() if name in tensor_forms(read.tensors) else {"": tensor}).items():
            there = read.tensors[name]
            np.testing.assert_array_equal(there.arrays()[part] if part else there, array)
    said = read.config["quantization_config"]
    assert said["method"] == method
    tokens = len(llm.tokenizer.encode(TEXT, add_special_tokens=False))
    assert said["calibration"] == {"tokens": tokens, "sha256": hashlib.sha256(TEXT.encode()).hexdigest()}
    assert 0.01 < said["relative_error"]["int4-g64"] < 0.3


def test_errors_are_from_what_was_rounded(model: Checkpoint):
    made, _ = calibrated(model, "awq", TEXT, **CHOICES)
    sums = [0.0, 0.0]
    for name in tensor_forms(made.tensors):
        exact, found = made.tensors.floats(name, None), dequantize(made.tensors[name])
        sums = [sums[0] + float(np.square(found - exact).sum()), sums[1] + float(np.square(exact).sum())]
    said = quantize_checkpoint(made, **CHOICES).config["quantization_config"]["relative_error"]["int4-g64"]
    assert said == pytest.approx(error_ratio(*sums), rel=1e-3)
    exact = made.tensors.floats(UP, None)
    assert not np.array_equal(exact, model.tensors[UP])  # it is scaled
    np.testing.assert_array_equal(made.tensors.floats(UP, np.array([3, 0])), exact[[3, 0]])
    np.testing.assert_array_equal(made.tensors.floats(NORM, None), model.tensors[NORM])


def test_tensors_can_be_asked_for_in_any_order(model: Checkpoint):
    made, again = (calibrated(model, "awq", TEXT, **CHOICES)[0].tensors for _ in range(2))
    for name in reversed(list(made)):
        tensor = made[name]
        assert (tensor.shape, tensor_layout(made)[name][0]) == tensor_layout(made)[name][::-1]
    for name in again:
        for one, other in zip(arrays(again[name]), arrays(made[name]), strict=True):
            np.testing.assert_array_equal(one, other)


def arrays(tensor: Any) -> list[np.ndarray]:
    return [tensor] if isinstance(tensor, np.ndarray) else list(tensor.arrays().values())


@pytest.mark.parametrize("method", METHODS)
def test_what_is_kept_stays_and_nothing_is_folded_into_it(model: Checkpoint, method: str):
    keep = r"layers\.0\.|layers\.1\..*(k_proj|up_proj)"
    made, _ = calibrated(model, method, TEXT, keep=keep, **CHOICES)
    changed = {name for name in made.tensors if made.tensors[name] is not model.tensors[name]}
    changed = {name for name in changed if not np.array_equal(made.tensors[name], model.tensors[name])}
    inside = {f"model.layers.1.{name}.weight" for name in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj",
                                                           "mlp.gate_proj", "mlp.down_proj")}  # fmt: skip
    assert changed == inside


@pytest.mark.parametrize("name", ["phi3", "mixtral", "deepseek-v2-mla", "gemma3", "falcon", "opt"])
@pytest.mark.parametrize("method", METHODS)
def test_other_families(name: str, method: str, tmp_path: Path):
    """Fused tensors, experts of which some see few tokens or none, latent attention, parallel layers, biases."""
    checkpoint = replace(open_checkpoint(golden_folder(name)), tokenizer_json=byte_level_tokenizer_json())
    made, facts = calibrated(checkpoint, method, TEXT[:400], scheme="int4")
    quantize_folder(made, tmp_path / "small", facts=facts, scheme="int4")
    llm = tinyinfer.load(tmp_path / "small")
    assert llm.unused_tensors == ()
    ids = np.random.default_rng(0).integers(3, 259, 40)
    exact = logits(checkpoint, ids)
    assert relative_error(exact, logits(llm.checkpoint, ids)) < 0.5  # 4 bits of a random model
    nearest = quantize_checkpoint(checkpoint, scheme="int4")
    assert tensor_forms(llm.checkpoint.tensors) == tensor_forms(nearest.tensors)


def test_load_takes_a_method(model: Checkpoint):
    llm = tinyinfer.load(model.source, quantize="int4-g64", method="gptq", calibration=TEXT)
    expected = rounded(model, "gptq", scheme="int4-g64")
    np.testing.assert_array_equal(llm.checkpoint.tensors[UP].codes, expected.tensors[UP].codes)
    assert llm.generate("a", max_tokens=3).ids


def test_plain_kernels_run_it_too(model: Checkpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINYINFER_KERNELS", "numpy")
    test_load_takes_a_method(model)


# ---- the text


def test_windows_begin_as_texts_do(model: Checkpoint):
    tokenizer = tinyinfer.load(model.source).tokenizer
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    parts = windows(tokenizer, TEXT)
    assert [id for part in parts for id in part] == ids  # this tokenizer has nothing stand before a text
    assert max(map(len, parts)) == WINDOW
    assert len(tokenizer.encode(usual_text())) > 3000


@pytest.mark.parametrize("text", ["", "too short", "long" * MOST])
def test_texts_of_too_few_or_too_many_tokens(model: Checkpoint, text: str):
    with pytest.raises(BadRequest, match=f"from {LEAST} to {MOST:,} tokens, found ") as refused:
        calibrated(model, "gptq", text)
    assert refused.value.parameter == "calibration"


# ---- refusals


@pytest.mark.parametrize(
    ("method", "choices", "words"),
    [
        ("best", {}, "method should be one of rtn, gptq, awq, found 'best'"),
        ("gptq", {"scheme": "nf4"}, "gptq is for int4 and int5, found nf4"),
        ("awq", {"scheme": "int8"}, "awq is for int4 and int5, found int8"),
        ("awq", {"keep": "layers"}, "no matrix in its layers for awq to round: none is to be quantized"),
    ],
)
def test_what_there_is_no_way_to_do(model: Checkpoint, method: str, choices: dict[str, Any], words: str):
    with pytest.raises(BadRequest, match=words):
        calibrated(model, method, TEXT, **choices)


def test_codes_that_are_there_already_are_not_chosen_again(model: Checkpoint):
    small = quantize_checkpoint(model, scheme="int4")
    with pytest.raises(BadRequest, match="for gptq to round: all have the form int4-g32 already"):
        calibrated(small, "gptq", TEXT, scheme="int4")
    made, _ = calibrated(small, "gptq", TEXT, scheme="int4", group_size=64)
    assert made.tensors[UP].form.name == "int4-g64"


def test_what_is_kept_may_be_of_any_form(model: Checkpoint):
    mixed = quantize_checkpoint(model, scheme="int8", keep=r"up_proj")
    made, _ = calibrated(mixed, "gptq", TEXT, keep=r"q_proj|k_proj|v_proj|o_proj|gate_proj|down_proj", **CHOICES)
    assert {form.name for form in tensor_forms(made.tensors).values()} == {"int8-g32", "int4-g64"}
    assert made.tensors[UP].form.name == "int4-g64"


def test_arguments_of_load_that_would_be_ignored(model: Checkpoint):
    with pytest.raises(BadRequest, match="method and calibration say how"):
        tinyinfer.load(model.source, method="gptq")
    with pytest.raises(BadRequest, match="calibration is for the methods gptq and awq"):
        tinyinfer.load(model.source, quantize="int4", calibration=TEXT)
    with pytest.raises(BadRequest, match="one of rtn, gptq, awq"):
        tinyinfer.load(model.source, quantize="int4", method="GPTQ")


def test_weights_that_are_no_numbers_are_refused(model: Checkpoint):
    broken = np.array(model.tensors[UP])
    broken[3, 5] = np.nan
    damaged = replace(model, tensors={**model.tensors, UP: broken})
    with pytest.raises(BadCheckpoint, match=r"layers.1.mlp.up_proj.weight.*: can't be quantized: it holds NaN"):
        rounded(damaged, "gptq", scheme="int4")


def test_a_model_without_a_tokenizer_can_not_read_a_text(model: Checkpoint):
    with pytest.raises(TinyinferError, match="tokenizer"):
        calibrated(replace(model, tokenizer_json=None), "gptq", TEXT)

"""Adapters as PEFT saves them: what is read, and that all else is refused by name."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.tiny_models import GOLDEN
from tinyinfer.checkpoint.adapters import read_adapter
from tinyinfer.checkpoint.safetensors import BFLOAT16
from tinyinfer.errors import BadCheckpoint, ModelNotFound, TinyinferError, UnsupportedModel

ADAPTERS = GOLDEN.parent / "adapters"


def changed(tmp_path: Path, name: str = "llama-all", **settings: Any) -> Path:
    """A copy of an adapter with other settings."""
    folder = tmp_path / "adapter"
    shutil.copytree(ADAPTERS / name, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    return folder


def rewritten(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors")


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "adapter_model.safetensors")


def prefixed(module: str) -> str:
    return f"base_model.model.model.layers.{module}.weight"


# ---- what is read


def test_every_module_with_its_matrices_and_scale():
    found = read_adapter(ADAPTERS / "llama-all")
    assert len(found.modules) == 3 * 7
    pair = found.modules["model.layers.1.mlp.down_proj"]
    stored = tensors_of(ADAPTERS / "llama-all")
    assert np.array_equal(pair.down, stored[prefixed("1.mlp.down_proj.lora_A")])
    assert np.array_equal(pair.up, stored[prefixed("1.mlp.down_proj.lora_B")])
    assert pair.scale == 8 / 4
    assert found.architecture is None


def test_ranks_and_scales_by_patterns():
    """PEFT's rules: the first pattern that the end of a name matches; rsLoRA divides by the root of the rank."""
    modules = read_adapter(ADAPTERS / "llama-patterns").modules
    found = {name.removeprefix("model.layers."): (len(pair.down), pair.scale) for name, pair in modules.items()}
    assert found == {
        "0.mlp.down_proj": (6, 6 / math.sqrt(6)), "2.mlp.down_proj": (6, 6 / math.sqrt(6)),
        "0.self_attn.q_proj": (3, 11.5 / math.sqrt(3)), "0.self_attn.v_proj": (3, 6 / math.sqrt(3)),
        "2.self_attn.q_proj": (2, 6 / math.sqrt(2)), "2.self_attn.v_proj": (2, 6 / math.sqrt(2)),
    }  # fmt: skip


def test_half_precision_stays_as_it_is_stored():
    assert read_adapter(ADAPTERS / "qwen2-half").modules["model.layers.0.mlp.up_proj"].down.dtype == BFLOAT16


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": "all-linear"},
        {"target_modules": r".*_proj"},
        {"target_modules": "model\\.layers\\.[0-2]\\..*"},
        {"layers_to_transform": [0, 1, 2], "layers_pattern": "layers"},
        {"init_lora_weights": "gaussian"},
        {"auto_mapping": {"base_model_class": "LlamaForCausalLM"}},
        {"lora_alpha": 2.5, "exclude_modules": ["k_norm"], "megatron_config": None, "a_later_setting": 3},
    ],
    ids=str,
)
def test_settings_that_do_not_contradict_the_file(tmp_path: Path, settings: dict[str, Any]):
    assert len(read_adapter(changed(tmp_path, **settings)).modules) == 21


def test_layers_may_be_one(tmp_path: Path):
    folder = changed(tmp_path, layers_to_transform=1)
    rewritten(folder, {name: a for name, a in tensors_of(folder).items() if ".layers.1." in name})
    assert len(read_adapter(folder).modules) == 7


# ---- what is refused


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("refused-dora", "DoRA can't be applied (use_dora is True)"),
        ("refused-loha", "only adapters of peft_type 'LORA' can be applied, found 'LOHA'"),
        ("refused-embedding", "model.embed_tokens"),
        ("refused-head", "lm_head"),
        ("refused-biases", "lora_bias is True"),
        ("refused-saved-modules", "modules_to_save is ['input_layernorm']"),
        ("refused-parameters", "target_parameters"),
    ],
)
def test_other_kinds_that_peft_saved(name: str, words: str):
    with pytest.raises(UnsupportedModel) as error:
        read_adapter(ADAPTERS / name)
    assert words in str(error.value)
    assert name in str(error.value)


@pytest.mark.parametrize("setting", ["use_dora", "lora_bias"])
def test_a_variant_that_hides_what_it_is(tmp_path: Path, setting: str):
    """The tensors give it away."""
    name = {"use_dora": "refused-dora", "lora_bias": "refused-biases"}[setting]
    with pytest.raises(UnsupportedModel, match=r"tensor 'base_model.*(magnitude_vector|lora_B.bias)' is not a lora_A"):
        read_adapter(changed(tmp_path, name, bias="none", **{setting: False}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bias": "all"}, "bias is 'all', not 'none'"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights"),
        ({"init_lora_weights": "olora"}, "'olora'"),
        ({"init_lora_weights": ["a"]}, "init_lora_weights"),
        ({"peft_type": None}, "found 'None'"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
        ({"use_qalora": True}, "QALoRA"),
        ({"alora_invocation_tokens": [1, 2]}, "aLoRA"),
        ({"trainable_token_indices": {"embed_tokens": [3]}}, "trainable_token_indices"),
        ({"target_modules": "(?=model).*"}, "an expression that can't be read: a group with '?='"),
        ({"target_modules": ".*", "rank_pattern": {"(a": 3}}, "nothing"),
    ],
    ids=str,
)
def test_settings_that_would_change_the_result(tmp_path: Path, settings: dict[str, Any], words: str):
    with pytest.raises(UnsupportedModel) as error:
        read_adapter(changed(tmp_path, **settings))
    assert words in str(error.value)
    assert "adapter_config.json" in str(error.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target_modules": None}, "target_modules should be names"),
        ({"target_modules": [3]}, "target_modules should be a list"),
        ({"target_modules": ["q_proj"]}, "which adapter_config.json does not target"),
        ({"target_modules": r".*\.q_proj"}, "does not target"),
        ({"exclude_modules": ["down_proj"]}, "'model.layers.0.mlp.down_proj', which"),
        ({"exclude_modules": r".*\.1\.mlp\.down_proj"}, "'model.layers.1.mlp.down_proj', which"),
        ({"layers_to_transform": [0, 1]}, "'model.layers.2."),
        ({"layers_to_transform": "all"}, "layers_to_transform"),
        ({"layers_to_transform": [True]}, "layers_to_transform"),
        ({"r": 8}, "should have rank 8 by adapter_config.json, found A and B of [4, "),
        ({"r": "4"}, "r or rank_pattern should be whole numbers from 1, found 4"),
        ({"r": True}, "r or rank_pattern"),
        ({"rank_pattern": {"v_proj": 3}}, "'model.layers.0.self_attn.v_proj' should have rank 3"),
        ({"rank_pattern": [3]}, "rank_pattern should be an object"),
        ({"lora_alpha": None}, "lora_alpha or alpha_pattern should be numbers, found None"),
        ({"lora_alpha": float("inf")}, "lora_alpha"),
        ({"alpha_pattern": {"k_proj": "much"}}, "found much"),
    ],
    ids=str,
)
def test_settings_that_contradict_the_file_or_are_none(tmp_path: Path, settings: dict[str, Any], words: str):
    with pytest.raises(BadCheckpoint) as error:
        read_adapter(changed(tmp_path, **settings))
    assert words in str(error.value)


def test_folders_that_are_no_adapters(tmp_path: Path):
    with pytest.raises(ModelNotFound, match="no such folder"):
        read_adapter(tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match=r"not an adapter: there is no adapter_config.json"):
        read_adapter(GOLDEN / "llama")
    folder = changed(tmp_path)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"no adapter_model.safetensors in it$"):
        read_adapter(folder)
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(BadCheckpoint, match=r"adapter_model.bin is a pickle, which can run code and is not read"):
        read_adapter(folder)
    (folder / "adapter_config.json").write_text("[1, 2]")
    with pytest.raises(BadCheckpoint, match="expected a JSON object"):
        read_adapter(folder)


def test_tensors_that_do_not_belong_together(tmp_path: Path):
    folder = changed(tmp_path)
    stored = tensors_of(folder)
    one, other = prefixed("1.self_attn.q_proj.lora_A"), prefixed("1.self_attn.q_proj.lora_B")
    cases = [
        ({name: a for name, a in stored.items() if name != other}, BadCheckpoint, "has no lora_B.weight"),
        (stored | {one: stored[one].reshape(-1)}, BadCheckpoint, "expected a matrix, found shape [256]"),
        (stored | {one: stored[one].astype(np.int8)}, UnsupportedModel, "expected floats, found int8"),
        (stored | {one: stored[one][:3]}, BadCheckpoint, "found A and B of [3, 64] and [64, 4]"),
        (stored | {other: stored[other].T.copy()}, BadCheckpoint, "found A and B of [4, 64] and [4, 64]"),
        (stored | {"lm_head.weight": stored[one]}, UnsupportedModel, "'lm_head.weight' is not a lora_A"),
        ({}, BadCheckpoint, "no tensors"),
    ]
    for tensors, kind, words in cases:
        rewritten(folder, tensors)
        with pytest.raises(kind) as error:
            read_adapter(folder)
        assert words in str(error.value)


def test_damaged_files_give_errors_of_ours(tmp_path: Path):
    """Bytes changed, cut off or doubled, in the config and in the tensors' header: an error or the same modules."""
    rng = random.Random(5)
    folder = changed(tmp_path)
    whole = {path: path.read_bytes() for path in folder.glob("adapter_*")}
    refused = 0
    for _ in range(400):
        path = rng.choice(list(whole))
        raw = bytearray(whole[path])
        at = rng.randrange(min(len(raw), 3000))
        if rng.random() < 0.2:
            del raw[at:]
        elif rng.random() < 0.3:
            raw[at:at] = raw[at : at + rng.randrange(1, 40)]
        else:
            raw[at] = rng.randrange(256)
        path.write_bytes(raw)
        try:
            read_adapter(folder)
        except TinyinferError:
            refused += 1
        path.write_bytes(whole[path])
    assert refused > 200


def test_an_expression_can_not_take_long(tmp_path: Path):
    """With Python's own `re` this one would not end."""
    pattern = r"(.*)*(.*)*(.*)*(.*)*(.*)*!"
    with pytest.raises(BadCheckpoint, match="does not target"):
        read_adapter(changed(tmp_path, target_modules=pattern))
    with pytest.raises(BadCheckpoint, match="rank 1 by"):
        read_adapter(changed(tmp_path / "other", rank_pattern={pattern: 2}, r=1))

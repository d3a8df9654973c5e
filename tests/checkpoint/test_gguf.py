"""GGUF import: what the converter did to names, numbers and configuration is undone, and the rest is refused."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.checkpoint.gguf_files import (
    TYPES,
    golden_model,
    same_values,
    vocabulary_keys,
    widened,
    write_minimal,
    write_model,
)
from tinyinfer.checkpoint.gguf import read_gguf
from tinyinfer.checkpoint.safetensors import BFLOAT16
from tinyinfer.checkpoint.source import dequantized, tensor_layout
from tinyinfer.errors import BadCheckpoint, MissingExtra, TinyinferError, UnsupportedModel
from tinyinfer.quant import dequantize

MODELS = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "llama-mqa-bias": "llama",
}


# ---- whole models


@pytest.mark.parametrize(("name", "arch"), MODELS.items())
def test_every_tensor_comes_back(tmp_path: Path, name: str, arch: str):
    write_model(tmp_path / "m.gguf", name, arch)
    found = read_gguf(tmp_path / "m.gguf").tensors
    _, expected = golden_model(name)
    assert set(found) == set(expected)
    for tensor, array in expected.items():
        if arch == "gemma3" and tensor.endswith("norm.weight"):
            # the file holds 1 + w rounded to float32: half a unit in the last place of numbers below 4
            difference = found[tensor] - widened(array)
            assert np.abs(difference).max() <= 2.0**-23, tensor
        else:
            assert same_values(found[tensor], array), tensor


@pytest.mark.parametrize(("name", "arch"), MODELS.items())
def test_config_says_what_the_model_said(tmp_path: Path, name: str, arch: str):
    write_model(tmp_path / "m.gguf", name, arch)
    found = read_gguf(tmp_path / "m.gguf").config
    expected, _ = golden_model(name)
    rope = expected["rope_parameters"]
    facts = ["architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
    facts += [
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
    ]
    assert {key: found[key] for key in facts} == {key: expected[key] for key in facts}
    assert found["head_dim"] == expected.get("head_dim", expected["hidden_size"] // expected["num_attention_heads"])
    assert found["rope_theta"] == rope.get("full_attention", rope)["rope_theta"]
    assert "rope_scaling" not in found
    for key in ("attention_bias", "mlp_bias", "hidden_act", "hidden_activation", "sliding_window", "layer_types"):
        if expected.get(key) is not None and not (arch.startswith("qwen") and key == "layer_types"):
            assert found[key] == expected[key], key


def test_gemma3_local_theta_and_scalar(tmp_path: Path):
    write_model(tmp_path / "m.gguf", "gemma3", "gemma3")
    config = read_gguf(tmp_path / "m.gguf").config
    assert config["rope_local_base_freq"] == 10_000.0
    assert config["query_pre_attn_scalar"] == 32  # the head size: a GGUF file does not keep the model's own 24
    write_model(tmp_path / "s.gguf", "gemma3", "gemma3", __attention__scale=24**-0.5, __rope__freq_base_swa=5000.0)
    config = read_gguf(tmp_path / "s.gguf").config
    assert config["query_pre_attn_scalar"] == 24
    assert config["rope_local_base_freq"] == 5000.0


@pytest.mark.parametrize(("form", "dtype"), [("BF16", BFLOAT16), ("F16", "<f2"), ("F32", "<f4"), ("Q8_0", "<f4")])
def test_floats_keep_their_dtype_and_the_layout_is_true(tmp_path: Path, form: str, dtype: object):
    write_model(tmp_path / "m.gguf", "llama", "llama", form)
    tensors = dequantized(read_gguf(tmp_path / "m.gguf")).tensors
    assert tensors["model.layers.0.self_attn.q_proj.weight"].dtype == np.dtype(dtype)
    assert {name: (tensors[name].dtype, tensors[name].shape) for name in tensors} == tensor_layout(tensors)


def test_quantized_rows_are_put_in_order_too(tmp_path: Path):
    write_model(tmp_path / "m.gguf", "llama", "llama", "Q8_0")
    found = dequantize(read_gguf(tmp_path / "m.gguf").tensors["model.layers.1.self_attn.k_proj.weight"])
    _, tensors = golden_model("llama")
    exact = widened(tensors["model.layers.1.self_attn.k_proj.weight"])
    expected = gguf.quants.dequantize(gguf.quants.quantize(exact, TYPES.Q8_0), TYPES.Q8_0)  # row by row
    assert np.array_equal(found, expected)


def test_tied_and_untied(tmp_path: Path):
    write_minimal(tmp_path / "tied.gguf")
    write_minimal(tmp_path / "untied.gguf", tensors={"output.weight": np.ones((16, 32), np.float32)})
    tied, untied = read_gguf(tmp_path / "tied.gguf"), read_gguf(tmp_path / "untied.gguf")
    assert tied.config["tie_word_embeddings"] is True
    assert untied.config["tie_word_embeddings"] is False
    assert "lm_head.weight" in untied.tensors


def test_llama_with_a_window_is_mistral(tmp_path: Path):
    write_minimal(tmp_path / "m.gguf", __attention__sliding_window=8)
    config = read_gguf(tmp_path / "m.gguf").config
    found = {key: config[key] for key in ("architectures", "model_type", "sliding_window")}
    assert found == {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8}


# ---- rotary scalings


def test_linear_and_yarn(tmp_path: Path):
    linear = {"__rope__scaling__type": "linear", "__rope__scaling__factor": 4.0}
    write_minimal(tmp_path / "linear.gguf", **linear)
    assert read_gguf(tmp_path / "linear.gguf").config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = {"__rope__scaling__type": "yarn", "__rope__scaling__factor": 4.0}
    write_minimal(tmp_path / "yarn.gguf", **yarn, __rope__scaling__original_context_length=16)
    expected = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    assert read_gguf(tmp_path / "yarn.gguf").config["rope_scaling"] == expected


def llama3_divisors(head_dim: int, theta: float, factor: float, low: float, high: float, original: int) -> np.ndarray:
    """As the converter writes them, one frequency at a time."""
    found = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        if wavelength < original / high:
            found.append(1.0)
        elif wavelength > original / low:
            found.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


@pytest.mark.parametrize(("factor", "head_dim"), [(8.0, 128), (32.0, 64)])
def test_llama3_scaling_is_recovered(tmp_path: Path, factor: float, head_dim: int):
    divisors = llama3_divisors(head_dim, 500_000.0, factor, 1.0, 4.0, 8192)
    keys = {"__rope__freq_base": 500_000.0, "__attention__key_length": head_dim}
    write_minimal(tmp_path / "m.gguf", tensors={"rope_freqs.weight": divisors}, **keys)
    checkpoint = read_gguf(tmp_path / "m.gguf")
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    assert "rope_freqs.weight" not in checkpoint.tensors


def test_divisors_of_another_kind_are_refused(tmp_path: Path):
    write_minimal(tmp_path / "m.gguf", tensors={"rope_freqs.weight": np.array([1, 3, 2, 5, 4, 4, 7, 8], np.float32)})
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        read_gguf(tmp_path / "m.gguf")
    write_minimal(tmp_path / "ones.gguf", tensors={"rope_freqs.weight": np.ones(8, np.float32)})
    assert "rope_scaling" not in read_gguf(tmp_path / "ones.gguf").config
    write_minimal(tmp_path / "short.gguf", tensors={"rope_freqs.weight": np.ones(7, np.float32)})
    with pytest.raises(BadCheckpoint, match="rope_freqs"):
        read_gguf(tmp_path / "short.gguf")


def test_longrope(tmp_path: Path):
    short, long = np.ones(8, np.float32), np.arange(1, 9, dtype=np.float32) / 2
    tensors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    keys = {"__rope__scaling__original_context_length": 16, "__rope__scaling__attn_factor": math.sqrt(1.5)}
    write_minimal(tmp_path / "m.gguf", "phi3", tensors, **keys)
    config = read_gguf(tmp_path / "m.gguf").config
    assert config["rope_scaling"] == {
        "rope_type": "longrope",
        "short_factor": short.tolist(),
        "long_factor": long.tolist(),
    }
    assert config["original_max_position_embeddings"] == 16
    write_minimal(tmp_path / "other.gguf", "phi3", tensors, **keys | {"__rope__scaling__attn_factor": 2.0})
    assert read_gguf(tmp_path / "other.gguf").config["rope_scaling"]["attention_factor"] == 2.0


def test_partial_rotary(tmp_path: Path):
    write_minimal(tmp_path / "m.gguf", "phi3", __rope__dimension_count=12)
    assert read_gguf(tmp_path / "m.gguf").config["partial_rotary_factor"] == 0.75


# ---- tokenizer and generation


def test_what_ends_an_answer(tmp_path: Path):
    write_minimal(tmp_path / "m.gguf", **vocabulary_keys(tokenizer__ggml__eom_token_id=261))
    checkpoint = read_gguf(tmp_path / "m.gguf")
    assert checkpoint.generation_config == {"bos_token_id": 1, "eos_token_id": [2, 261, 264]}
    assert (checkpoint.config["bos_token_id"], checkpoint.config["eos_token_id"]) == (1, 2)


def test_tokenizer_config_and_chat_template(tmp_path: Path):
    keys = vocabulary_keys(tokenizer__chat_template="{{ messages }}", tokenizer__ggml__add_bos_token=False)
    write_minimal(tmp_path / "m.gguf", **keys, tokenizer__chat_template__tool_use="{{ tools }}")
    checkpoint = read_gguf(tmp_path / "m.gguf")
    named = {key: checkpoint.tokenizer_config[key] for key in ("bos_token", "eos_token", "unk_token", "add_bos_token")}
    assert named == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": False}
    assert (checkpoint.chat_template, checkpoint.tool_template) == ("{{ messages }}", "{{ tools }}")
    assert "chat_template" not in checkpoint.tokenizer_config


def test_what_ends_an_answer_is_special_whatever_its_type(tmp_path: Path):
    write_minimal(tmp_path / "m.gguf", **vocabulary_keys())
    tokenizer = Tokenizer.from_str(read_gguf(tmp_path / "m.gguf").tokenizer_json)
    ids = tokenizer.encode("a<|im_end|>").ids
    assert ids == [1, 262, 264]  # <s>, ▁a, <|im_end|>
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a"


def test_phi3_special_tokens_swallow_white_space(tmp_path: Path):
    keys = vocabulary_keys(general__name="Phi-3 Mini", tokenizer__ggml__add_bos_token=False)
    write_minimal(tmp_path / "m.gguf", **keys)
    tokenizer = Tokenizer.from_str(read_gguf(tmp_path / "m.gguf").tokenizer_json)
    assert tokenizer.encode("<|im_end|>\na").ids == [264, 262]
    assert tokenizer.encode("<s>\na").ids == [1, 259, 13, 260]


def test_a_file_without_vocabulary_has_no_tokenizer(tmp_path: Path):
    write_minimal(tmp_path / "m.gguf")
    checkpoint = read_gguf(tmp_path / "m.gguf")
    assert (checkpoint.tokenizer_json, checkpoint.tokenizer_config, checkpoint.generation_config) == (None, {}, {})
    assert [checkpoint.config[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [None] * 3


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"tokenizer__ggml__model": "bert"}, "bert"),
        (
            {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "made-up", "tokenizer__ggml__merges": ["a b"]},
            "made-up",
        ),
        ({"tokenizer__ggml__token_type": [1, 1]}, "token_type"),
        ({"tokenizer__ggml__scores": [0.5]}, "scores"),
        ({"tokenizer__ggml__tokens": ["a"] * 265}, "twice"),
        ({"tokenizer__ggml__tokens": [1, 2]}, "tokens"),
    ],
)
def test_bad_vocabularies_are_refused(tmp_path: Path, keys: dict[str, object], word: str):
    write_minimal(tmp_path / "m.gguf", **vocabulary_keys(**keys))
    with pytest.raises(TinyinferError, match=word) as caught:
        read_gguf(tmp_path / "m.gguf")
    assert "m.gguf" in str(caught.value)


# ---- refusals


@pytest.mark.parametrize(
    ("keys", "tensors", "error", "words"),
    [
        ({"__expert_count": 8}, {}, UnsupportedModel, "mixture of experts"),
        ({"__attention__head_count": 0}, {}, BadCheckpoint, "head_count"),
        ({"__attention__head_count": [2, 4]}, {}, UnsupportedModel, "layer to layer"),
        ({"__attention__head_count": "two"}, {}, BadCheckpoint, "head_count"),
        ({"__rope__freq_base": math.inf}, {}, BadCheckpoint, "finite"),
        ({"__rope__scaling__type": "made_up"}, {}, UnsupportedModel, "made_up"),
        ({"__rope__scaling__type": "linear", "__rope__scaling__factor": 0.0}, {}, BadCheckpoint, "factor"),
        ({"__rope__dimension_count": 64}, {}, BadCheckpoint, "rotated"),
        ({}, {"blk.0.strange.weight": np.zeros(4, np.float32)}, UnsupportedModel, "strange"),
        ({}, {"blk.7.ffn_up.weight": np.zeros((4, 4), np.float32)}, BadCheckpoint, "blk.7"),
        ({}, {"blk.0.attn_q.weight": np.zeros((6, 32), np.float32)}, BadCheckpoint, "attn_q"),
        ({"split__count": 3}, {}, UnsupportedModel, "parts"),
    ],
)
def test_what_is_not_a_plain_model_is_refused(tmp_path: Path, keys: dict, tensors: dict, error: type, words: str):
    write_minimal(tmp_path / "m.gguf", tensors=tensors, **keys)
    with pytest.raises(error, match=words):
        read_gguf(tmp_path / "m.gguf")


def test_unknown_architecture_names_itself_and_the_known(tmp_path: Path):
    write_minimal(tmp_path / "m.gguf", "mamba")
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*llama, qwen2, qwen3, gemma3, phi3"):
        read_gguf(tmp_path / "m.gguf")


def test_part_of_a_split_model(tmp_path: Path):
    write_minimal(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(UnsupportedModel, match="one of 3 parts"):
        read_gguf(tmp_path / "m-00001-of-00003.gguf")
    write_minimal(tmp_path / "m-00001-of-00001.gguf")
    assert read_gguf(tmp_path / "m-00001-of-00001.gguf").tensors


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_minimal(tmp_path / "m.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtra, match=r"tinyinfer\[gguf\]"):
        read_gguf(tmp_path / "m.gguf")

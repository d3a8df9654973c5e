"""config.json: both of its forms, what is left unsaid in it, and whatever else may stand there."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny_models import ARCHITECTURES, CONFIG, VARIANTS, golden_folder, random_model, version4
from tinyinfer import reference
from tinyinfer.config import (
    AFTER,
    BEFORE,
    FAMILIES,
    MAX_LAYERS,
    Experts,
    Latent,
    ModelConfig,
    Norm,
    read_config,
    token_ids,
)
from tinyinfer.config.keys import Keys
from tinyinfer.config.reading import names_of
from tinyinfer.errors import BadCheckpoint, TinyinferError, UnsupportedModel
from tinyinfer.model.tensors import collect_tensors

GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 97, "hidden_size": 40,
    "intermediate_size": 56, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
QWEN2 = CONFIG | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 4}


def golden(name: str) -> dict[str, Any]:
    return json.loads((golden_folder(name) / "config.json").read_text())


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def with_rope(rope: Any, **changes: Any) -> dict[str, Any]:
    return without(CONFIG, "rope_parameters") | {"rope_scaling": rope} | changes


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.window for layer in config.layers]


# ---- both forms


@pytest.mark.parametrize("name", ARCHITECTURES + VARIANTS)
def test_both_forms_of_config_json_load_to_the_same(name: str):
    config = golden(name)
    old = version4(config)
    assert "rope_parameters" not in old
    assert read_config(old) == read_config(config)


@pytest.mark.parametrize("name", ARCHITECTURES + VARIANTS)
def test_the_architecture_may_be_told_by_model_type_alone(name: str):
    config = golden(name)
    assert read_config(without(config, "architectures")) == read_config(config)
    assert read_config(config | {"architectures": None}) == read_config(config)


SIZES_SAID = {"gpt2": (16, 3), "bloom-alibi": (16, 3), "mpt-alibi": (16, 3), "deepseek-v2-mla": (32, 3)}
SIZES_SAID["deepseek-v3-mla"] = (32, 3)
FACTS: dict[str, dict[str, Any]] = {
    "llama-mqa-bias": {"qkv_bias": True, "output_bias": True, "mlp_bias": True, "num_kv_heads": 1},
    "qwen2": {"qkv_bias": True, "output_bias": False},
    "qwen3": {"qk_norm": "head"},
    "gemma3": {"qk_norm": "head", "layer_norms": BEFORE + AFTER, "norm": Norm(1e-6, offset=1.0)},
    "gemma2": {"attention_softcap": 50.0, "logit_softcap": 30.0, "attention_scale": 24**-0.5, "embedding_scale": 8.0},
    "olmo": {"norm": Norm(1e-5, centered=True, weight=False), "qkv_clip": 2.0},
    "olmo2": {"qk_norm": "all heads", "layer_norms": AFTER},
    "cohere": {"parallel": True, "layer_norms": BEFORE[:1], "logit_scale": 0.0625, "rope_interleaved": True},
    "gpt-neox": {"parallel": True, "layer_norms": BEFORE, "gated": False, "norm": Norm(1e-5, True, bias=True)},
    "gpt-neox-sequential": {"parallel": False, "layer_norms": BEFORE},
    "falcon": {"num_kv_heads": 1, "parallel": True, "intermediate_size": 256, "activation": "gelu"},
    "phi": {"head_bias": True, "activation": "gelu_tanh"},
    "nemotron": {"activation": "relu2", "norm": Norm(1e-5, True, offset=1.0, bias=True)},
    "gpt2": {"position_offset": 0, "tied": True, "intermediate_size": 256},
    "opt": {"position_offset": 2, "activation": "relu"},
    "bloom-alibi": {"alibi": (1 / 4, 1 / 16, 1 / 64, 1 / 256), "embedding_norm": True, "intermediate_size": 256},
    "granite": {
        "embedding_scale": 12.0, "residual_scale": 0.22, "attention_scale": 0.0156, "logit_scale": 1 / 8,
    },
    "gpt-oss": {
        "sinks": True, "gate_limit": 7.0, "gate_slope": 1.702,
        "experts": Experts(4, 2, 96, normalized=True, bias=True),
    },
    "mixtral": {"experts": Experts(4, 2, 96, normalized=True)},
    "qwen3-moe": {"experts": Experts(6, 2, 48, normalized=True)},
    "olmoe": {"experts": Experts(4, 2, 96)},
    "deepseek-v2-mla": {
        "latent": Latent(32, 24, 16, 16, 16, Norm(1e-6)), "experts": Experts(4, 2, 32, shared_size=32),
    },
    "deepseek-v3-mla": {
        "experts": Experts(8, 2, 32, 32, "sigmoid", True, 2.5, 2, 1, group_judges=2, correction=True),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_the_golden_models_are(name: str):
    config, facts = golden(name), read_config(golden(name))
    head_dim, layers = SIZES_SAID.get(name) or (config.get("head_dim") or 16, config.get("num_hidden_layers"))
    assert (facts.head_dim, facts.num_layers) == (head_dim, layers)
    assert facts.eos_ids == (() if name == "mpt-alibi" else (2,))
    assert facts.tied == config["tie_word_embeddings"]
    for fact, value in FACTS.get(name, {}).items():
        assert getattr(facts, fact) == value


WINDOWS_AND_TURNS = {
    "cohere2": ("8 8 8 -", "yyyn"), "exaone4": ("8 8 8 -", "yyyn"), "smollm3": ("- - - -", "yyyn"),
    "gemma2": ("8 - 8", "yyy"), "olmo3": ("8 8 8 -", "yyyy"), "gpt-oss": ("8 - 8 -", "yyyy"),
    "starcoder2": ("8 8 8", "yyy"), "opt": ("- - -", "nnn"), "mpt-alibi": ("- - -", "nnn"),
    "exaone4-no-window": ("- -", "yy"), "smollm3-window": ("6 -", "ny"), "mixtral-window": ("6 6", "yy"),
    "qwen3-moe-some-dense": ("6 6 6 6", "yyyy"), "falcon-sequential-alibi": ("- -", "nn"),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS_AND_TURNS)
def test_which_layers_have_windows_and_which_turn(name: str):
    layers = read_config(golden(name)).layers
    seen = " ".join(str(layer.window or "-") for layer in layers)
    assert (seen, "".join("ny"[layer.rope is not None] for layer in layers)) == WINDOWS_AND_TURNS[name]


def test_which_layers_have_experts():
    def sparse(name: str, **changes: Any) -> list[bool]:
        return [layer.sparse for layer in read_config(golden(name) | changes).layers]

    assert sparse("deepseek-v3-mla") == [False, True, True]
    assert sparse("deepseek-v3-mla", first_k_dense_replace=0) == [True] * 3
    assert sparse("qwen3-moe") == [True] * 3
    assert sparse("qwen3-moe", mlp_only_layers=[0, 2]) == [False, True, False]
    assert sparse("qwen3-moe-some-dense") == [False, False, False, True]
    assert sparse("llama") == [False] * 3
    with pytest.raises(BadCheckpoint, match="mlp_only_layers should list layers"):
        sparse("qwen3-moe", mlp_only_layers="all")


# ---- rotary settings


SAME_ROPE = [None, {}, {"rope_type": None}, {"type": None}, {"rope_type": "default"}, {"type": "default"}]


@pytest.mark.parametrize("rope", SAME_ROPE)
def test_ways_to_say_that_nothing_is_stretched(rope: Any):
    absent = read_config(without(CONFIG, "rope_parameters"))
    assert read_config(with_rope(rope)) == absent == read_config(CONFIG)


def test_logits_are_identical_where_nothing_is_stretched():
    ids = np.arange(9)
    logits = []
    for config in (without(CONFIG, "rope_parameters"), *map(with_rope, SAME_ROPE)):
        facts = read_config(config)
        logits.append(reference.forward(facts, collect_tensors(facts, random_model()[1]), ids))
    assert all(np.array_equal(logits[0], other) for other in logits[1:])


def test_rotary_settings_in_full():
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    rope = read_config(with_rope({"type": "llama3", **llama3}, rope_theta=5e5)).layers[0].rope
    assert (rope.kind, rope.theta, rope.factor, rope.original_length) == ("llama3", 5e5, 8.0, 64)
    assert (rope.low_freq_factor, rope.high_freq_factor) == (1.0, 4.0)
    rope = read_config(with_rope({"type": "linear", "factor": 3})).layers[0].rope
    assert (rope.kind, rope.theta, rope.dims, rope.factor) == ("linear", 10000.0, 10, 3.0)


def test_yarn_without_its_original_length_takes_the_models():
    yarn = {"rope_type": "yarn", "factor": 4.0}
    expected = read_config(with_rope(yarn | {"original_max_position_embeddings": 128}))
    assert read_config(with_rope(yarn)) == expected
    assert read_config(with_rope(yarn | {"original_max_position_embeddings": None})) == expected
    assert expected.layers[0].rope.magnitude == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_without_a_factor_takes_the_ratio_of_lengths():
    rope = read_config(with_rope({"type": "yarn", "original_max_position_embeddings": 32})).layers[0].rope
    assert rope.factor == 4


@pytest.mark.parametrize(
    ("extra", "magnitude"),
    [
        ({}, 0.1 * math.log(40) + 1),
        ({"attention_factor": 0.75}, 0.75),
        ({"mscale": 0.7, "mscale_all_dim": 0.7}, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)),
        ({"mscale": 0, "mscale_all_dim": 0.5}, 0.1 * math.log(40) + 1),
        ({"mscale": 0.707}, 0.1 * math.log(40) + 1),
    ],
)
def test_yarn_magnitudes(extra: dict[str, float], magnitude: float):
    rope = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 32} | extra
    assert read_config(with_rope(rope)).layers[0].rope.magnitude == pytest.approx(magnitude, rel=1e-12)


def test_settings_above_the_block_count_where_it_is_silent():
    config = without(CONFIG, "rope_parameters") | {"rope_theta": 777.0, "partial_rotary_factor": 0.4}
    config |= {"architectures": ["Phi3ForCausalLM"]}  # Llama has no such factor
    rope = read_config(config | {"rope_scaling": {"type": "linear", "factor": 2}}).layers[0].rope
    assert (rope.theta, rope.dims, rope.kind) == (777.0, 4, "linear")
    rope = read_config(config | {"rope_parameters": {"rope_theta": 5.0, "partial_rotary_factor": 0.8}}).layers[0].rope
    assert (rope.theta, rope.dims, rope.kind) == (5.0, 8, "default")


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
def test_phi3s_names_for_longrope(name: str):
    config = golden("phi3-longrope")
    config["rope_parameters"]["rope_type"] = name
    assert read_config(config) == read_config(golden("phi3-longrope"))


def test_phi3_without_an_original_length_has_its_familys():
    config = without(golden("phi3-longrope"), "original_max_position_embeddings") | {"max_position_embeddings": 8192}
    del config["rope_parameters"]["original_max_position_embeddings"]
    rope = read_config(config).layers[0].rope
    assert (rope.original_length, rope.factor) == (4096, 2.0)
    assert rope.magnitude == pytest.approx(math.sqrt(1 + math.log(2) / math.log(4096)))


@pytest.mark.parametrize("kind", ["made_up", "mrope", "", "Linear", 7, ["linear"], {"a": 1}, True])
def test_rotary_kinds_that_are_unknown_are_refused_by_name(kind: Any):
    if kind == "":
        assert read_config(with_rope({"rope_type": ""})) == read_config(CONFIG)
        return
    with pytest.raises(UnsupportedModel, match="unknown rotary type") as error:
        read_config(with_rope({"rope_type": kind, "factor": 2.0}))
    assert repr(kind) in str(error.value)


BAD_ROPES = {
    "factor absent": {"type": "linear"},
    "factor 0": {"type": "linear", "factor": 0},
    "factor negative": {"type": "linear", "factor": -2.0},
    "factor a text": {"type": "linear", "factor": "2"},
    "factor infinite": {"type": "dynamic", "factor": math.inf},
    "factor huge": {"type": "linear", "factor": 10**400},
    "factor a flag": {"type": "linear", "factor": True},
    "theta one": {"type": "yarn", "factor": 2, "rope_theta": 1.0},
    "theta negative": {"type": "default", "rope_theta": -1.0},
    "theta NaN": {"type": "default", "rope_theta": math.nan},
    "llama3 without its factors": {"type": "llama3", "factor": 8.0},
    "llama3 factors alike": {"type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 4},
    "longrope without factors": {"type": "longrope", "factor": 2},
    "longrope one factor short": {"type": "longrope", "short_factor": [1.0] * 5, "long_factor": [1.0] * 4},
    "longrope with a zero": {"type": "longrope", "short_factor": [1.0] * 5, "long_factor": [1.0, 0, 1, 1, 1]},
    "longrope with a text": {"type": "longrope", "short_factor": [1.0] * 5, "long_factor": ["1"] * 5},
    "longrope with huge": {"type": "longrope", "short_factor": [1.0] * 5, "long_factor": [10**400] * 5},
    "more than the head": {"partial_rotary_factor": 1.2},
    "hardly any of the head": {"partial_rotary_factor": 0.01},
    "an odd number of dimensions": {"partial_rotary_factor": 0.5},
    "a huge part of the head": {"partial_rotary_factor": 1e308},
    "truncate a text": {"type": "yarn", "factor": 2, "truncate": "no"},
    "original length 0": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 0},
    "a list": [1],
    "a text": "linear",
    "a number": 3,
}


@pytest.mark.parametrize("case", BAD_ROPES)
def test_rotary_settings_that_make_no_sense(case: str):
    with pytest.raises(BadCheckpoint, match=r"config\.json: rope_parameters"):
        read_config(with_rope(BAD_ROPES[case]))


def test_dynamic_scaling_needs_a_second_pair():
    with pytest.raises(BadCheckpoint, match="at least 4 dimensions"):
        read_config(with_rope({"type": "dynamic", "factor": 2.0}, head_dim=2))


# ---- heads


def test_the_head_dim_key_wins_over_the_quotient():
    config = CONFIG | {"hidden_size": 40, "num_attention_heads": 4, "head_dim": 16, "num_key_value_heads": 2}
    facts = read_config(config)
    assert (facts.head_dim, facts.attention_scale) == (16, 0.25)
    for fallback in (without(config, "head_dim"), config | {"head_dim": None}):
        assert read_config(fallback).head_dim == 10
    tensors = collect_tensors(facts, random_model(**config)[1])
    assert tensors.layers[0]["output"].shape == (40, 4 * 16)
    assert tensors.layers[0]["key"].shape == (2 * 16, 40)


def test_absent_and_null_key_value_heads():
    assert read_config(CONFIG | {"num_key_value_heads": None}).num_kv_heads == 6
    assert read_config(without(CONFIG, "num_key_value_heads")).num_kv_heads == 6
    mistral = CONFIG | {"architectures": ["MistralForCausalLM"], "num_attention_heads": 16}
    assert read_config(without(mistral, "num_key_value_heads")).num_kv_heads == 8  # what its class says
    with pytest.raises(BadCheckpoint, match="6 attention heads can't share 4"):
        read_config(CONFIG | {"num_key_value_heads": 4})


# ---- windows


MIXED = ["sliding_attention", "full_attention"] * 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [None] * 4),
        ({"sliding_window": 5}, [None] * 4),
        ({"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0}, [None] * 4),
        ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3}, [None, None, None, 5]),
        ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, [5] * 4),
        ({"use_sliding_window": True, "sliding_window": 5}, [None] * 4),  # its class says 28
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, [None] * 4),
        ({"use_sliding_window": True, "max_window_layers": 2}, [None, None, 4096, 4096]),
        ({"use_sliding_window": True, "sliding_window": 5, "layer_types": MIXED}, [5, None, 5, None]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwens_windows(family: str, changes: dict[str, Any], expected: list[int | None]):
    assert windows(read_config(QWEN2 | {"architectures": [family]} | changes)) == expected


def test_mistrals_and_phi3s_windows():
    mistral = CONFIG | {"architectures": ["MistralForCausalLM"]}
    assert windows(read_config(mistral)) == [4096] * 3
    assert windows(read_config(mistral | {"sliding_window": None})) == [None] * 3
    assert windows(read_config(mistral | {"sliding_window": 4})) == [4] * 3
    phi3 = CONFIG | {"architectures": ["Phi3ForCausalLM"]}
    assert windows(read_config(phi3)) == [None] * 3
    assert windows(read_config(phi3 | {"sliding_window": 7})) == [7] * 3


def test_llama_has_no_windows_whatever_was_left_in_its_config():
    assert windows(read_config(CONFIG | {"sliding_window": 4})) == [None] * 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [4096] * 5 + [None] + [4096] * 2),
        ({"sliding_window": 4}, [4] * 5 + [None] + [4] * 2),
        ({"sliding_window": 4, "sliding_window_pattern": 3}, [4, 4, None] * 2 + [4, 4]),
        ({"sliding_window": 4, "sliding_window_pattern": 1}, [None] * 8),
        ({"sliding_window": None}, [None] * 8),
        ({"layer_types": ["full_attention"] * 7 + ["sliding_attention"], "sliding_window": 4}, [None] * 7 + [4]),
        (
            {"layer_types": ["sliding_attention"] * 8, "sliding_window": 4, "sliding_window_pattern": 2},
            [4] * 8,
        ),
    ],
)
def test_gemma3s_windows(changes: dict[str, Any], expected: list[int | None]):
    assert windows(read_config(GEMMA3 | changes)) == expected


def test_gemma3s_two_kinds_of_rotation():
    """A window's layers turn at their own base. In version 4's form they are not stretched; in 5's their block says."""
    old = read_config(
        GEMMA3 | {"rope_scaling": {"type": "linear", "factor": 8.0}, "rope_theta": 2e6, "rope_local_base_freq": 5e3}
    )
    full, sliding = old.layers[5].rope, old.layers[0].rope
    assert (full.theta, full.kind, full.factor) == (2e6, "linear", 8.0)
    assert (sliding.theta, sliding.kind, sliding.factor) == (5e3, "default", 1.0)
    new = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    }
    assert read_config(GEMMA3 | {"rope_parameters": new}) == old
    unsaid = read_config(GEMMA3)
    assert (unsaid.layers[5].rope.theta, unsaid.layers[0].rope.theta) == (1e6, 1e4)
    assert read_config(GEMMA3 | {"rope_parameters": {"full_attention": None, "sliding_attention": {}}}) == unsaid


def test_gemma3_inside_a_model_that_also_sees():
    """What published configs leave to the class: heads, their size, the vocabulary."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 6, "sliding_window": 1024}
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106]}
    facts = read_config(outer | {"text_config": text | {"eos_token_id": 1}, "vision_config": {"hidden_size": 9}})
    assert (facts.num_heads, facts.num_kv_heads, facts.head_dim, facts.vocab_size) == (8, 4, 256, 262_208)
    assert facts.hidden_size == 2560
    assert facts.tied
    assert facts.activation == "gelu_tanh"
    assert (facts.attention_scale, facts.embedding_scale) == (1 / 16, math.sqrt(2560))
    assert windows(facts) == [1024] * 5 + [None]
    assert facts.eos_ids == (1, 106, 1)


def test_soft_caps():
    facts = read_config(GEMMA3 | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30})
    assert (facts.attention_softcap, facts.logit_softcap) == (None, 30.0)  # transformers stores the first, unused
    for off in (None, 0, 0.0):
        facts = read_config(GEMMA3 | {"attn_logit_softcapping": off, "final_logit_softcapping": off})
        assert (facts.attention_softcap, facts.logit_softcap) == (None, None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("silu", "silu"),
        ("swish", "silu"),
        ("gelu", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("relu", "relu"),
        (None, "silu"),
    ],
)
def test_activations(given: Any, expected: str):
    assert read_config(CONFIG | {"hidden_act": given}).activation == expected


@pytest.mark.parametrize("name", ["quick_gelu", "SiLU", 3, ["silu"], {}, True])
def test_activations_that_are_unknown(name: Any):
    with pytest.raises(UnsupportedModel, match="unknown activation"):
        read_config(CONFIG | {"hidden_act": name})


# ---- keys of one family


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        # the names that published configs have beside those of today's classes
        ("bloom-alibi", {"hidden_size": None, "n_embed": 64, "n_head": None, "num_attention_heads": 4}, {}),
        ("bloom-alibi", {"max_position_embeddings": None, "seq_length": 256}, {}),
        ("gpt2", {"n_embd": None, "hidden_size": 64, "n_layer": None, "num_hidden_layers": 3}, {}),
        ("gpt2", {"n_inner": 40}, {"intermediate_size": 40}),
        ("gpt2", {"scale_attn_weights": False}, {"attention_scale": 1.0}),
        ("falcon", {"ffn_hidden_size": None}, {}),
        ("falcon", {"multi_query": False}, {"num_kv_heads": 4}),
        ("falcon", {"num_kv_heads": 2}, {}),
        ("falcon", {"num_kv_heads": 2, "new_decoder_architecture": True}, {"num_kv_heads": 2, "layer_norms": BEFORE}),
        ("falcon", {"parallel_attn": False}, {"parallel": False, "layer_norms": BEFORE}),
        ("falcon", {"bias": True}, {"qkv_bias": True, "output_bias": True, "mlp_bias": True}),
        ("mpt-alibi", {"attn_config": None}, {}),
        ("mpt-alibi", {"attn_config": {"clip_qkv": 6}}, {"qkv_clip": 6.0}),
        ("mpt-alibi", {"attn_config": {"softmax_scale": 0.5}}, {"attention_scale": 0.5}),
        ("mpt-alibi", {"attn_config": {"alibi_bias_max": 4}}, {"alibi": (1 / 2, 1 / 4, 1 / 8, 1 / 16)}),
        ("stablelm", {"use_parallel_residual": True}, {"parallel": True, "layer_norms": BEFORE[:1]}),
        ("stablelm", {"qk_layernorm": True, "use_qkv_bias": False}, {"qk_norm": "each head", "qkv_bias": False}),
        ("phi", {"qk_layernorm": True}, {"qk_norm": "head"}),
        (
            "cohere",
            {"use_qk_norm": True, "attention_bias": True},
            {"qk_norm": "each head", "qkv_bias": True, "output_bias": True},
        ),
        ("gemma", {"hidden_act": "gelu"}, {}),
        ("gemma2", {"hidden_act": "gelu"}, {}),  # its key is another
        ("gemma2", {"attn_logit_softcapping": None}, {"attention_softcap": None}),
        ("granite", {"logits_scaling": None, "residual_multiplier": None}, {"logit_scale": 1.0, "residual_scale": 1.0}),
        ("glm4", {"attention_bias": False}, {"qkv_bias": False}),
        ("ernie4-5", {"use_bias": True}, {"qkv_bias": True, "output_bias": True, "mlp_bias": True}),
        ("opt", {"enable_bias": False}, {"qkv_bias": False, "output_bias": False, "mlp_bias": False}),
        ("olmo", {"clip_qkv": None}, {"qkv_clip": None}),
        ("olmo2", {"clip_qkv": 1.0}, {}),
        ("mixtral", {"num_local_experts": None, "num_experts": 4}, {}),
        ("qwen3-moe", {"num_local_experts": None, "num_experts": 6}, {}),
        ("qwen3-moe", {"norm_topk_prob": False}, {"experts": Experts(6, 2, 48)}),
        ("deepseek-v2-mla", {"q_lora_rank": None}, {"latent": Latent(32, None, 16, 16, 16, Norm(1e-6))}),
        ("deepseek-v2-mla", {"n_shared_experts": None}, {"experts": Experts(4, 2, 32)}),
        (
            "deepseek-v2-mla",
            {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1},
            {"experts": Experts(4, 2, 32, 32, groups=2, used_groups=1)},
        ),
        ("deepseek-v3-mla", {"rope_interleave": False}, {"rope_interleaved": False}),
    ],
)  # fmt: skip
def test_keys_of_one_family(name: str, changes: dict[str, Any], expected: dict[str, Any]):
    config = golden(name)
    changed = {key: value for key, value in (config | changes).items() if value is not None or key not in NAMED_ELSE}
    before, after = read_config(config), read_config(changed)
    assert after == dataclasses.replace(before, **expected)


# keys that are taken away where they are None above; others are null
NAMED_ELSE = {"hidden_size", "n_head", "n_embd", "n_layer", "max_position_embeddings", "num_local_experts"}


ABSENT = {
    "bloom-alibi": ["layer_norm_epsilon"],
    "cohere": ["layer_norm_eps", "logit_scale", "use_qk_norm", "attention_bias"],
    "deepseek-v2-mla": ["topk_method", "norm_topk_prob", "routed_scaling_factor", "n_group", "num_key_value_heads"],
    "deepseek-v3-mla": ["norm_topk_prob", "routed_scaling_factor", "rope_interleave"],
    "exaone4": ["layer_types", "sliding_window_pattern"],
    "falcon": ["multi_query", "parallel_attn", "new_decoder_architecture", "alibi", "bias", "activation"],
    "glm4": ["attention_bias", "rms_norm_eps"],
    "gpt-neox": ["use_parallel_residual", "attention_bias", "layer_norm_eps"],
    "gpt-oss": ["swiglu_alpha", "swiglu_limit", "attention_bias", "layer_types"],
    "gpt2": ["activation_function", "scale_attn_weights", "layer_norm_epsilon", "tie_word_embeddings"],
    "mixtral": ["sliding_window", "head_dim", "num_experts_per_tok", "rms_norm_eps"],
    "nemotron": ["hidden_act", "norm_eps", "attention_bias"],
    "olmo3": ["layer_types", "rms_norm_eps"],
    "opt": ["enable_bias", "do_layer_norm_before", "activation_function"],
    "phi": ["hidden_act", "layer_norm_eps", "qk_layernorm"],
    "qwen3-moe": ["decoder_sparse_step", "mlp_only_layers", "use_sliding_window", "sliding_window"],
    "smollm3": ["no_rope_layers", "layer_types", "no_rope_layer_interval"],
    "stablelm": ["use_parallel_residual", "qk_layernorm", "layer_norm_eps"],
    "starcoder2": ["use_bias", "norm_epsilon", "hidden_act"],
}


@pytest.mark.parametrize("name", ABSENT)
def test_keys_that_say_what_the_class_says(name: str):
    """The golden configs spell out what transformers' classes have by default; most published ones do not."""
    config = golden(name)
    assert read_config(without(config, *ABSENT[name])) == read_config(config)


@pytest.mark.parametrize(
    ("name", "dims"), [("phi", 8), ("stablelm", 4), ("nemotron", 8), ("glm4", 8), ("gpt-neox", 4), ("llama", 16)]
)
def test_the_share_that_turns_where_it_is_not_said(name: str, dims: int):
    config = golden(name)
    del config["rope_parameters"]
    assert read_config(config).layers[0].rope.dims == dims


def test_gpt_oss_stretches_where_nothing_is_said():
    rope = read_config(without(golden("gpt-oss"), "rope_parameters")).layers[0].rope
    assert (rope.kind, rope.theta, rope.factor, rope.original_length) == ("yarn", 150_000.0, 32.0, 4096)
    assert not rope.truncate


@pytest.mark.parametrize(("mscale", "growth"), [(0.707, (0.0707 * math.log(40) + 1) ** 2), (None, 1.0), (0, 1.0)])
def test_deepseeks_stretched_rotation_grows_its_scores(mscale: float | None, growth: float):
    config = golden("deepseek-v2-mla")
    plain = read_config(config).attention_scale
    rope = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "mscale_all_dim": mscale}
    config = without(config, "rope_parameters") | {"rope_scaling": rope, "rope_theta": 10_000}
    assert read_config(config).attention_scale == pytest.approx(plain * growth, rel=1e-12)
    assert (
        read_config(golden("llama") | {"rope_parameters": rope}).attention_scale == 0.25
    )  # its class has no such rule


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16])
def test_alibi_slopes(heads: int):
    """As the paper says: 2^-8/n, 2^-16/n, ... for powers of two; else those and every second of twice as many."""
    powers = 2 ** int(math.log2(heads))
    expected = [2 ** (-8 * (i + 1) / powers) for i in range(powers)]
    expected += [2 ** (-8 * (i + 1) / (2 * powers)) for i in range(0, 2 * powers, 2)][: heads - powers]
    config = golden("bloom-alibi") | {"n_head": heads, "hidden_size": 16 * heads}
    assert read_config(config).alibi == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "changes", "shown"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: True"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before: False"),
        ("bloom-alibi", {"apply_residual_connection_post_layernorm": True}, "post_layernorm: True"),
        ("mpt-alibi", {"attn_config": {"alibi": False}}, r"attn_config\.alibi: False"),
        ("mpt-alibi", {"attn_config": {"qk_ln": True}}, r"attn_config\.qk_ln: True"),
        ("mpt-alibi", {"logit_scale": "inv_sqrt_d_model"}, "logit_scale: 'inv_sqrt_d_model'"),
        ("deepseek-v2-mla", {"topk_method": "noaux_tc"}, "topk_method: 'noaux_tc'"),
        ("deepseek-v2-mla", {"norm_topk_prob": True}, "norm_topk_prob: True"),
        ("deepseek-v3-mla", {"scoring_func": "softmax"}, "scoring_func: 'softmax'"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_what_a_family_may_say_and_is_not_supported(name: str, changes: dict[str, Any], shown: str):
    with pytest.raises(UnsupportedModel, match=shown):
        read_config(golden(name) | changes)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt2", {"n_embd": 0}, "n_embd should be a whole number from 1"),
        ("gpt2", {"n_head": 2**30}, r"n_head is 1,073,741,824; the limit is 10,000"),
        ("bloom-alibi", {"n_layer": MAX_LAYERS + 1}, r"n_layer is 1,001; the limit is 1,000"),
        ("mpt-alibi", {"attn_config": [1]}, r"attn_config should be a JSON object, found \[1\]"),
        ("mpt-alibi", {"attn_config": {"clip_qkv": -1}}, r"attn_config\.clip_qkv should be a number"),
        ("nemotron", {"norm_eps": 0}, "norm_eps should be a number"),
        ("starcoder2", {"use_bias": 1}, "use_bias should be true or false"),
        ("mixtral", {"num_local_experts": 1}, "1 experts can't be used 2 at a time"),
        ("deepseek-v3-mla", {"n_group": 3}, "8 experts can't be used 2 at a time from 1 of 3 groups"),
        ("deepseek-v3-mla", {"topk_group": 3}, "8 experts can't be used 2 at a time from 3 of 2 groups"),
        ("deepseek-v3-mla", {"num_experts_per_tok": 5}, "8 experts can't be used 5 at a time from 1 of 2 groups"),
        ("deepseek-v2-mla", {"num_experts_per_tok": None}, "num_experts_per_tok should be a whole number from 1"),
        ("smollm3", {"no_rope_layers": [1, 1]}, "no_rope_layers should list 0 or 1 for each of 4 layers"),
        ("smollm3", {"no_rope_layers": [1, 1, 2, 0]}, "no_rope_layers should list 0 or 1"),
        ("gpt-neox", {"num_attention_heads": 65}, "head_dim should be a whole number"),
    ],
)
def test_values_that_make_no_sense_are_named_as_they_stand(name: str, changes: dict[str, Any], message: str):
    with pytest.raises(BadCheckpoint, match=f"^config.json: {message}"):
        read_config(golden(name) | changes)


# ---- what is refused by name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"),
        ("Gemma3nForConditionalGeneration", "Gemma3ForConditionalGeneration"),
        ("Mixtral", "MixtralForCausalLM"),
        ("", None),
        ("x" * 100_000, None),
    ],
)
def test_an_unknown_architecture_is_named_with_the_nearest(name: str, near: str | None):
    with pytest.raises(UnsupportedModel, match="unknown architecture") as error:
        read_config(CONFIG | {"architectures": [name]})
    assert repr(name)[:70] in str(error.value)
    assert near is None or f"that are known is {near!r}" in str(error.value)
    assert len(str(error.value)) < 600


def test_a_config_that_says_nothing():
    with pytest.raises(BadCheckpoint, match="neither architectures nor model_type says what kind of model"):
        read_config({})


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_keys_of_other_families_say_nothing(name: str):
    config = golden(name)
    family = FAMILIES[config["architectures"][0]]
    read = Keys(config, {}, names_of(family))
    others = {
        "max_window_layers": 1, "sliding_window_pattern": 2, "routed_scaling_factor": 3.0, "clip_qkv": 0.5,
        "logit_scale": 0.1, "query_pre_attn_scalar": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 2.0,
        "n_shared_experts": 3, "embedding_scale": 2.0, "residual_scale": 2.0, "partial_rotary_factor": 0.25,
        "attention_scale": 0.3, "gate_slope": 2.0, "parallel": True, "norm_topk_prob": True, "n_group": 2,
    }  # fmt: skip
    known = {key for fact in [*others, "qkv_clip"] for key in read._names(fact)} | set(family.refused)
    foreign = {key: value for key, value in others.items() if key not in known}
    assert len(foreign) > 8
    assert read_config(config | foreign) == read_config(config)


def test_two_blocks_of_rotary_settings_are_refused_where_they_differ():
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    with pytest.raises(BadCheckpoint, match=r"rope_scaling .*'yarn'.* beside rope_parameters"):
        read_config(golden("qwen2") | {"rope_scaling": yarn})
    for same in (None, {}, golden("qwen2")["rope_parameters"]):
        assert read_config(golden("qwen2") | {"rope_scaling": same}) == read_config(golden("qwen2"))


def test_a_setting_may_have_to_equal_another():
    assert read_config(golden("opt") | {"word_embed_proj_dim": golden("opt")["hidden_size"]})
    with pytest.raises(UnsupportedModel, match="word_embed_proj_dim: 3 is not supported yet"):
        read_config(golden("opt") | {"word_embed_proj_dim": 3})


@pytest.mark.parametrize("named", [["LlamaForCausalLM"] * 2, "LlamaForCausalLM", [1], [None], {"a": 1}, 7, [["Llama"]]])
def test_architectures_that_are_no_list_of_one_name(named: Any):
    with pytest.raises(BadCheckpoint, match="architectures should be a list of one name"):
        read_config(CONFIG | {"architectures": named})


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("quantization_config", {"quant_method": "eetq", "bits": 4}, "eetq"),
        ("quantization_config", {"bits": 4}, "unnamed"),
        ("quantization_config", [1], "unnamed"),
    ],
)
def test_quantized_weights_are_refused(key: str, value: Any, shown: str):
    with pytest.raises(UnsupportedModel, match=f"quantized by .*{shown}"):
        read_config(CONFIG | {key: value})


@pytest.mark.parametrize("value", [None, {}, {"quant_method": "gptq", "bits": 4}])
def test_how_weights_are_stored_says_nothing_of_the_model(value: Any):
    assert read_config(CONFIG | {"quantization_config": value}) == read_config(CONFIG)


@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
)
def test_sizes_that_must_be_said(key: str):
    for config in (without(CONFIG, key), CONFIG | {key: None}):
        with pytest.raises(BadCheckpoint, match=f"{key} should be a whole number from 1 .* found nothing"):
            read_config(config)


SIZES = [
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
]  # fmt: skip
NO_SIZES = [0, -1, 2**31, 2**63, 10**400, 1.0, 1e3, math.nan, "8", "", True, False, [8], [], {}, {"a": 1}]


@pytest.mark.parametrize("value", NO_SIZES, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("key", SIZES)
def test_values_that_are_no_sizes(key: str, value: Any):
    with pytest.raises(BadCheckpoint, match=f"{key} should be a whole number from 1") as error:
        read_config(CONFIG | {key: value})
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("key", ["rms_norm_eps", "query_pre_attn_scalar", "final_logit_softcapping", "rope_theta"])
@pytest.mark.parametrize("value", [-1, 1e-320, 1e39, math.inf, -math.inf, math.nan, 10**400, "1", True, [1], {}])
def test_values_that_are_no_numbers(key: str, value: Any):
    config = without(CONFIG, "rope_parameters") | {"architectures": ["Gemma2ForCausalLM"]}  # which has them all
    with pytest.raises(BadCheckpoint, match=f"{key} should be a number"):
        read_config(config | {key: value})


@pytest.mark.parametrize("key", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
@pytest.mark.parametrize("value", ["false", "", 0, 1, 0.0, [], {}])
def test_values_that_are_neither_true_nor_false(key: str, value: Any):
    with pytest.raises(BadCheckpoint, match=f"{key} should be true or false"):
        read_config(CONFIG | {key: value})


@pytest.mark.parametrize("value", [[], ["full_attention"], "full_attention", 3, {"a": 1}])
def test_layer_types_that_are_no_list_of_all_layers(value: Any):
    with pytest.raises(BadCheckpoint, match="layer_types should list 8 layers"):
        read_config(GEMMA3 | {"layer_types": value})


@pytest.mark.parametrize("kind", ["chunked_attention", None, 3, [], {}])
def test_kinds_of_layers_that_are_unknown(kind: Any):
    with pytest.raises(UnsupportedModel, match="unknown layer type"):
        read_config(GEMMA3 | {"layer_types": ["full_attention"] * 7 + [kind]})


@pytest.mark.parametrize("value", ["x", -1, 1.5, [], True])
def test_max_window_layers_that_is_no_number(value: Any):
    with pytest.raises(BadCheckpoint, match="max_window_layers should be a whole number from 0"):
        read_config(QWEN2 | {"use_sliding_window": True, "max_window_layers": value})


def test_too_many_layers():
    assert read_config(CONFIG | {"num_hidden_layers": MAX_LAYERS}).num_layers == MAX_LAYERS
    with pytest.raises(BadCheckpoint, match="the limit is 1,000"):
        read_config(CONFIG | {"num_hidden_layers": MAX_LAYERS + 1})


# ---- end-of-sequence ids


@pytest.mark.parametrize(("value", "expected"), [(None, ()), (0, (0,)), (2, (2,)), ([], ()), ([1, 106], (1, 106))])
def test_end_of_sequence_ids(value: Any, expected: tuple[int, ...]):
    assert read_config(CONFIG | {"eos_token_id": value}).eos_ids == expected
    assert token_ids(value, "here") == expected


@pytest.mark.parametrize("value", [-1, "2", 2.0, True, [True], [1, None], [[1]], {}, {"id": 2}])
def test_end_of_sequence_ids_that_are_none(value: Any):
    with pytest.raises(BadCheckpoint, match="eos_token_id: expected a token id or a list of them"):
        read_config(CONFIG | {"eos_token_id": value})


# ---- anything at all


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
    | st.sampled_from([0, 1, 2, 3, 8, 2**31, 10**400, 1e308, -1, "linear", "yarn", "sliding_attention"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
ROPE_KEYS = [
    "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "low_freq_factor",
    "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate",
    "short_factor", "long_factor", "partial_rotary_factor", "full_attention", "sliding_attention",
]  # fmt: skip
KINDS = st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn", "longrope", "su"])
PAIRS = st.lists(st.floats(0.1, 100), min_size=5, max_size=5)
NUMBERS = st.floats(1e-6, 1e6) | st.integers(1, 1000)
PLAUSIBLE = {"rope_type": KINDS, "type": KINDS, "short_factor": PAIRS, "long_factor": PAIRS, "truncate": st.booleans()}
PLAUSIBLE_ROPES = st.fixed_dictionaries({}, optional={key: PLAUSIBLE.get(key, NUMBERS) for key in ROPE_KEYS[:-2]})
ROPES = PLAUSIBLE_ROPES | st.dictionaries(st.sampled_from(ROPE_KEYS), JUNK) | JUNK
KEYS = [
    *SIZES, "architectures", "model_type", "text_config", "quantization_config", "eos_token_id", "rms_norm_eps",
    "hidden_act", "hidden_activation", "tie_word_embeddings", "attention_bias", "mlp_bias", "query_pre_attn_scalar",
    "sliding_window", "sliding_window_pattern", "layer_types", "use_sliding_window", "max_window_layers", "rope_theta",
    "rope_local_base_freq", "partial_rotary_factor", "original_max_position_embeddings", "attn_logit_softcapping",
    "n_embd", "n_head", "n_layer", "d_model", "n_heads", "ffn_dim", "ffn_hidden_size", "attn_config", "alibi",
    "num_kv_heads", "multi_query", "parallel_attn", "new_decoder_architecture", "use_parallel_residual", "clip_qkv",
    "logit_scale", "logits_scaling", "num_experts", "num_local_experts", "num_experts_per_tok", "n_group",
    "topk_group", "topk_method", "moe_intermediate_size", "n_shared_experts", "first_k_dense_replace",
    "mlp_only_layers", "decoder_sparse_step", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim",
    "no_rope_layers", "no_rope_layer_interval", "swiglu_limit", "use_qk_norm", "layer_norm_eps",
]  # fmt: skip


def read_or_refuse(config: dict[str, Any]) -> tuple[ModelConfig | None, str]:
    try:
        return read_config(config), ""
    except TinyinferError as error:
        return None, str(error)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(list(FAMILIES)),
    st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=3),
    st.dictionaries(st.sampled_from(["rope_parameters", "rope_scaling"]), ROPES),
)
def test_whatever_stands_in_config_json_loads_or_is_refused(family: str, junk: dict, ropes: dict):
    """In a sentence of bearable length. And what loads can turn any position: speeds and magnitudes are finite."""
    small = without(CONFIG, "rope_parameters") | {"architectures": [family], "max_position_embeddings": 8192}
    facts, refusal = read_or_refuse(small | ropes | junk)
    if facts is None:
        assert 20 < len(refusal) < 700
        return
    for rope in {layer.rope for layer in facts.layers if layer.rope}:
        if rope.dims > 10_000:
            continue
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            for array in reference.rotary_angles(rope, np.array([0, 5, 100_000]), 100_001):
                assert np.isfinite(array).all()


@settings(max_examples=100, deadline=None)
@given(JUNK | st.dictionaries(st.sampled_from(KEYS), JUNK))
def test_configs_of_junk_alone(junk: Any):
    if isinstance(junk, dict):
        with pytest.raises(TinyinferError):
            read_config(junk)

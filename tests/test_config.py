"""config.json: both of its forms, what is left unsaid in it, and whatever else may stand there."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny_models import ARCHITECTURES, CONFIG, GOLDEN, random_model, version4
from tinyinfer import reference
from tinyinfer.config import FAMILIES, MAX_LAYERS, ModelConfig, read_config, token_ids
from tinyinfer.errors import BadCheckpoint, TinyinferError, UnsupportedModel
from tinyinfer.model.names import collect_tensors

GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 97, "hidden_size": 40,
    "intermediate_size": 56, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
QWEN2 = CONFIG | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 4}


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / name / "config.json").read_text())


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def with_rope(rope: Any, **changes: Any) -> dict[str, Any]:
    return without(CONFIG, "rope_parameters") | {"rope_scaling": rope} | changes


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.window for layer in config.layers]


# ---- both forms


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_both_forms_of_config_json_load_to_the_same(name: str):
    config = golden(name)
    old = version4(config)
    assert "rope_parameters" not in old
    assert read_config(old) == read_config(config)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_architecture_may_be_told_by_model_type_alone(name: str):
    config = golden(name)
    assert read_config(without(config, "architectures")) == read_config(config)
    assert read_config(config | {"architectures": None}) == read_config(config)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_the_golden_models_are(name: str):
    config, facts = golden(name), read_config(golden(name))
    assert facts.head_dim == config.get("head_dim", 16)
    assert facts.num_layers == config["num_hidden_layers"]
    assert facts.qkv_bias == (name in ("qwen2", "llama-mqa-bias"))
    assert facts.output_bias == facts.mlp_bias == (name == "llama-mqa-bias")
    assert facts.qk_norm == (name in ("qwen3", "gemma3"))
    assert facts.eos_ids == (2,)
    assert facts.tied == config["tie_word_embeddings"]


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


@pytest.mark.parametrize("name", ["relu2", "SiLU", 3, ["silu"], {}, True])
def test_activations_that_are_unknown(name: Any):
    with pytest.raises(UnsupportedModel, match="unknown activation"):
        read_config(CONFIG | {"hidden_act": name})


# ---- what is refused by name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ("Qwen2MoeForCausalLM", "Qwen2ForCausalLM"),
        ("Gemma3nForConditionalGeneration", "Gemma3ForConditionalGeneration"),
        ("Mixtral", "MistralForCausalLM"),
        ("", None),
        ("x" * 100_000, None),
    ],
)
def test_an_unknown_architecture_is_named_with_the_nearest(name: str, near: str | None):
    with pytest.raises(UnsupportedModel, match="unknown architecture") as error:
        read_config(CONFIG | {"architectures": [name]})
    assert repr(name)[:70] in str(error.value)
    assert near is None or f"the nearest known is {near!r}" in str(error.value)
    assert len(str(error.value)) < 600


def test_a_config_that_says_nothing():
    with pytest.raises(UnsupportedModel, match="unknown architecture"):
        read_config({})


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
    with pytest.raises(BadCheckpoint, match=f"{key} should be a number"):
        read_config(without(CONFIG, "rope_parameters") | {key: value})


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
    for rope in {layer.rope for layer in facts.layers}:
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

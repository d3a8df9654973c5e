"""The arithmetic of sizes, against counts done by hand."""

import json

import pytest

from tests.tiny_models import ARCHITECTURES, GOLDEN, VARIANTS, golden_folder
from tinyinfer.cache import KV_DTYPES, KVCache
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.config import read_config
from tinyinfer.model.footprint import kv_bytes, kv_bytes_per_token, parameters, tokens_that_fit
from tinyinfer.model.layers import refuse_unsupported

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    "max_position_embeddings": 50, "tie_word_embeddings": False,
}  # fmt: skip
# embedding, head, last norm; then a layer: q and o 16x24, k and v 16x12, gate, up and down 16x24, two norms
LLAMA_LAYER = 2 * 16 * 24 + 2 * 16 * 12 + 3 * 16 * 24 + 2 * 16
LLAMA_PARAMETERS = 2 * 100 * 16 + 16 + 2 * LLAMA_LAYER


def config(**changes):
    return read_config({**LLAMA, **changes})


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({}, 0),
        ({"tie_word_embeddings": True}, -100 * 16),
        ({"attention_bias": True}, 2 * (24 + 12 + 12 + 16)),
        ({"mlp_bias": True}, 2 * (24 + 24 + 16)),
        ({"architectures": ["Qwen2ForCausalLM"]}, 2 * (24 + 12 + 12)),
        ({"architectures": ["Qwen3ForCausalLM"]}, 2 * (6 + 6)),
        ({"architectures": ["Gemma3ForCausalLM"]}, 2 * (6 + 6 + 2 * 16)),
    ],
)
def test_parameters(changes, difference):
    assert parameters(config(**changes)) == LLAMA_PARAMETERS + difference


@pytest.mark.parametrize("name", ARCHITECTURES + VARIANTS)
def test_parameters_are_what_checkpoints_hold(name: str):
    """Golden folders hold no buffers; a tied head is not there, or not counted."""
    checkpoint = open_checkpoint(golden_folder(name))
    facts = read_config(checkpoint.config)
    sizes = {key: array.size for key, array in checkpoint.tensors.items()}
    assert parameters(facts) == sum(size for key, size in sizes.items() if not (facts.tied and "lm_head" in key))


PUBLISHED = json.loads((GOLDEN.parent / "published" / "sizes.json").read_text())


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_in_the_wild_say_what_transformers_makes_of_them(name: str):
    """Of which much is said by the keys of one family, and much by none."""
    expected = PUBLISHED[name]
    facts = read_config(expected["config"])
    assert parameters(facts) == expected["parameters"]
    assert {layer.rope.theta for layer in facts.layers if layer.rope} <= {expected["rope"]}
    assert refuse_unsupported(facts) is None


def test_short_vectors_are_kept_for_all_heads():
    """Once as keys and once as values: of 32 and 16 numbers, in 3 layers."""
    facts = read_config(open_checkpoint(golden_folder("deepseek-v3-mla")).config)
    assert kv_bytes_per_token(facts, "float16") == 3 * 2 * (32 + 16) * 2
    assert kv_bytes_per_token(facts, "int8") == 3 * 2 * (32 + 16 + 4)
    cache = KVCache(facts, block_size=10, dtype="float32")
    cache.sequence().reserve(30)
    assert cache.nbytes == kv_bytes(facts, 30, "float32")


def test_keys_and_values_grow_with_every_token():
    # 2 layers, keys and values, 2 heads of 6 dimensions
    assert kv_bytes_per_token(config()) == kv_bytes_per_token(config(), "float16") == 2 * 2 * 2 * 6 * 2
    assert kv_bytes_per_token(config(), "float32") == 2 * 2 * 2 * 6 * 4
    assert kv_bytes_per_token(config(), "int8") == 2 * 2 * 2 * (6 + 4)
    assert kv_bytes(config(), 10) == 10 * kv_bytes_per_token(config())
    assert kv_bytes(config(), 0) == 0


def test_a_layer_with_a_window_stops_growing():
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
    windowed = config(architectures=["Gemma3ForCausalLM"], **layers)
    one_layer = 2 * 2 * 6 * 2
    assert kv_bytes(windowed, 3) == 2 * 3 * one_layer
    assert kv_bytes(windowed, 10) == (4 + 10) * one_layer
    assert kv_bytes(windowed, 10, "float32") == 2 * (4 + 10) * one_layer


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_the_cache_takes_what_was_said(kv_dtype):
    cache = KVCache(config(), block_size=10, dtype=kv_dtype)
    cache.sequence().reserve(30)
    assert cache.nbytes == kv_bytes(config(), 30, kv_dtype)


def test_what_fits():
    per_token = kv_bytes_per_token(config())
    assert tokens_that_fit(config(), 10 * per_token) == 10
    assert tokens_that_fit(config(), 10 * per_token - 1) == 9
    assert tokens_that_fit(config(), 10 * per_token, users=4) == 2
    assert tokens_that_fit(config(), per_token - 1) == 0
    assert tokens_that_fit(config(), 0) == 0
    assert tokens_that_fit(config(), 10**12) == 50  # no more than the model's context

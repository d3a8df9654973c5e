"""Bytes and multiply-adds of a pass, against counts done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tiny_models import CONFIG, GOLDEN, WINDOWED, random_model
from tinyinfer.cache import KVCache
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.config import read_config
from tinyinfer.lab.cost import cache_bytes, multiply_adds, tensor_bytes, weight_bytes, weight_forms
from tinyinfer.model.tensors import collect_tensors
from tinyinfer.quant import quantize

# CONFIG: 3 layers, hidden 40, feed-forward 56, 6 heads and 2 for keys and values of 10, vocabulary 97
Q, KV, HIDDEN, INNER, VOCAB = 60, 20, 40, 56, 97
LAYER = HIDDEN * (Q + 2 * KV) + Q * HIDDEN + 3 * HIDDEN * INNER
NORMS = 3 * 2 * HIDDEN + HIDDEN
HEAD = VOCAB * HIDDEN


def runtime(convert=lambda name, tensor: tensor, **changes):
    config, tensors = random_model(None, 0, **changes)
    facts = read_config(config)
    return collect_tensors(facts, {name: convert(name, tensor) for name, tensor in tensors.items()})


def test_an_untied_model_reads_its_head_and_a_row_a_token():
    for tokens in (1, 5):
        assert weight_bytes(runtime(), tokens) == 4 * (3 * LAYER + NORMS + HEAD + tokens * HIDDEN)


def test_a_tied_head_counts_once():
    for tokens in (1, 5):
        assert weight_bytes(runtime(tie_word_embeddings=True), tokens) == 4 * (3 * LAYER + NORMS + HEAD)


def test_biases_count():
    biases = 3 * (Q + 2 * KV)
    changes = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True}
    assert weight_bytes(runtime(**changes), 1) == 4 * (3 * LAYER + NORMS + HEAD + biases)


def test_half_matrices_and_norms_that_the_kernels_read_in_float32():
    tensors = runtime(lambda name, tensor: tensor.astype(np.float16), tie_word_embeddings=True)
    assert weight_bytes(tensors, 1) == 2 * (3 * LAYER + HEAD) + 4 * NORMS
    assert weight_forms(tensors) == {"float16": 2 * (3 * LAYER + HEAD), "float32": 4 * NORMS}
    assert list(weight_forms(tensors)) == ["float16", "float32"]  # the most first


def test_quantized_matrices():
    def convert(name, tensor):
        return quantize(tensor, "int4") if "mlp" in name and tensor.ndim == 2 else tensor

    tensors = runtime(convert)
    # 16 bytes of codes, a scale and a minimum of 2 for each group of 32; rows in blocks of 8
    gate = INNER * -(-HIDDEN // 32) * 20
    down = HIDDEN * -(-INNER // 32) * 20
    floats = 3 * (LAYER - 3 * HIDDEN * INNER) + NORMS + HEAD
    assert weight_forms(tensors) == {"float32": 4 * floats, "int4-g32": 3 * (2 * gate + down)}
    assert weight_bytes(tensors, 2) == 4 * floats + 3 * (2 * gate + down) + 2 * 4 * HIDDEN
    macs = multiply_adds(tensors, 5, 2)
    assert macs["int8"] == 5 * 3 * 3 * HIDDEN * INNER
    assert macs["float32"] == 5 * 3 * (LAYER - 3 * HIDDEN * INNER) + 2 * HEAD


def test_of_experts_those_that_are_used_are_read():
    """Two of four by each token: half of them by one token, three quarters by two that choose at random."""
    checkpoint = open_checkpoint(GOLDEN / "mixtral")
    tensors = collect_tensors(read_config(checkpoint.config), checkpoint.tensors)
    hidden, inner, q, kv, vocab, layers = 64, 96, 64, 32, 320, 3
    experts = layers * 4 * 3 * hidden * inner
    shared = layers * (2 * hidden * (q + kv) + 4 * hidden) + vocab * hidden  # and routers
    norms = hidden * (2 * layers + 1)
    assert weight_bytes(tensors, 1) == 2 * (shared + experts / 2 + hidden) + 4 * norms
    assert weight_bytes(tensors, 2) == 2 * (shared + experts * 3 / 4 + 2 * hidden) + 4 * norms
    assert multiply_adds(tensors, 5, 1)["float32"] == 5 * (shared - vocab * hidden + experts / 2) + vocab * hidden


def test_quantized_scales_are_read_as_floats():
    packed = quantize(np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32), "nf4-g64-double")
    assert tensor_bytes(packed) == 8 * 128 // 2 + 4 * 8 * 2


def held(config, length: int, dtype: str = "float32") -> KVCache:
    cache = KVCache(config, dtype=dtype)
    sequence = cache.sequence()
    sequence.reserve(length)
    sequence.advance(length)
    return cache


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_cache_is_read_as_it_is_held(dtype):
    cache = held(read_config(CONFIG), 50, dtype)
    a_token = 3 * 2 * KV * np.dtype(dtype).itemsize
    assert cache_bytes(cache, 1) == a_token
    assert cache_bytes(cache, 50) == 50 * a_token
    assert cache_bytes(cache, 50, 20) == 50 * a_token


def test_windows_bound_what_is_read():
    config, _ = random_model(None, 0, **WINDOWED)
    cache = held(read_config(config), 50)
    a_layer = 2 * KV * 4
    assert cache_bytes(cache, 3) == 3 * 3 * a_layer
    assert cache_bytes(cache, 50) == (4 + 4 + 50) * a_layer  # windows of 4 in two layers
    assert cache_bytes(cache, 50, 20) == (23 + 23 + 50) * a_layer

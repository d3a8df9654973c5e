"""The plain transformer against transformers' own numbers, and its equations against float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests import float64_model
from tests.tiny_models import (
    ARCHITECTURES,
    CONFIG,
    GOLDEN,
    LLAMA_LIKE,
    VARIANTS,
    WINDOWED,
    golden_folder,
    random_model,
    version4,
)
from tinyinfer import reference
from tinyinfer.checkpoint.safetensors import open_safetensors, to_float32
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.config import ACTIVATIONS, ModelConfig, Rope, read_config
from tinyinfer.model import rope as cached_rope
from tinyinfer.model.tensors import ModelTensors, collect_tensors

# Float32 through a few layers is about 1e-6 away from exact (gemma3, with its large embedding scale, 5e-6); the golden
# README's bound of 5e-5 leaves room for other ways of summing, and is far below what any wrong equation makes.
TOLERANCE = 5e-5
NEAR_TIE = 1e-3  # the golden README's word for two tokens that either may come first


# ---- whole models


def golden(name: str) -> tuple[ModelConfig, ModelTensors, Mapping[str, np.ndarray]]:
    folder = golden_folder(name)
    checkpoint = open_checkpoint(folder)
    config = read_config(checkpoint.config)
    return config, collect_tensors(config, checkpoint.tensors), open_safetensors(folder / "golden.safetensors")


@pytest.mark.parametrize("name", ARCHITECTURES + VARIANTS)
def test_golden_logits(name: str):
    config, tensors, expected = golden(name)
    found = reference.forward(config, tensors, expected["input_ids"])
    assert found.dtype == np.float32
    assert np.abs(found - expected["logits"]).max() < TOLERANCE


# what was cached goes by transformers' rule for it, see test_forward.py
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "llama-rope-dynamic"])
def test_golden_greedy_continuations(name: str):
    """Each token is the best after those before it, or nearly so; at once, but where angles go by the whole length."""
    config, tensors, expected = golden(name)
    ids = expected["greedy_from_20"]
    if name == "phi3-longrope":
        logits = np.stack([reference.forward(config, tensors, ids[:end])[-1] for end in range(20, 60)])
    else:
        logits = reference.forward(config, tensors, ids[:-1])[19:]
    short = logits.max(axis=1) - logits[np.arange(40), ids[20:]]
    assert short.max() < NEAR_TIE
    assert (short == 0).mean() > 0.9


@pytest.mark.parametrize("name", LLAMA_LIKE)
def test_the_second_opinion_agrees_with_transformers_too(name: str):
    """So that it may be believed where there is no golden file."""
    checkpoint, golden = open_checkpoint(GOLDEN / name), open_safetensors(GOLDEN / name / "golden.safetensors")
    tensors = {tensor: to_float32(array) for tensor, array in checkpoint.tensors.items()}
    found = float64_model.logits(checkpoint.config, tensors, golden["input_ids"])
    assert np.abs(found - golden["logits"]).max() < TOLERANCE


RANDOM: dict[str, dict[str, Any]] = {
    "llama": {},
    "one head of keys": {"num_key_value_heads": 1},
    "a key head for each": {"num_key_value_heads": 6},
    "part of a head": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.4}},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen2 window": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 1},
    "gemma3": WINDOWED | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3"},
}  # fmt: skip


@pytest.mark.parametrize("length", [1, 2, 21])
@pytest.mark.parametrize("case", RANDOM)
def test_random_models_against_float64(case: str, length: int):
    config, tensors = random_model(seed=3, **RANDOM[case])
    facts = read_config(config)
    ids = np.random.default_rng(length).integers(0, facts.vocab_size, length)
    found = reference.forward(facts, collect_tensors(facts, tensors), ids)
    assert np.abs(found - float64_model.logits(config, tensors, ids)).max() < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "llama-rope-yarn", "gemma3", "phi3-longrope"])
def test_version_4s_form_gives_identical_logits(name: str):
    checkpoint = open_checkpoint(GOLDEN / name)
    ids = np.arange(40)
    found = []
    for config in (checkpoint.config, version4(checkpoint.config)):
        facts = read_config(config)
        found.append(reference.forward(facts, collect_tensors(facts, checkpoint.tensors), ids))
    assert np.array_equal(*found)


# ---- rotary angles


ROPES = {
    "default": {"rope_type": "default"},
    "a part": {"rope_type": "default", "partial_rotary_factor": 0.5},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn of a long context": {"rope_type": "yarn", "factor": 32.0, "rope_theta": 1e6},
    "longrope": {
        "rope_type": "longrope", "factor": 32.0,
        "short_factor": [1 + 0.1 * i for i in range(32)], "long_factor": [1.5**i for i in range(32)],
    },
}  # fmt: skip


def angles_of(case: str, original: int, positions: list[int], length: int) -> tuple[Rope, np.ndarray, np.ndarray]:
    """A rope, the float64 turns at some positions, and the angles they stand for."""
    settings = {"rope_theta": 10000.0, "original_max_position_embeddings": original} | ROPES[case]
    if settings["rope_type"] == "dynamic":
        del settings["original_max_position_embeddings"]
    config = CONFIG | {"head_dim": 64, "max_position_embeddings": original, "rope_parameters": settings}
    turns = np.stack([float64_model.turns(settings, 64, original, p, length) for p in positions])
    dims = int(64 * settings.get("partial_rotary_factor", 1))
    speeds = [float64_model.speed(settings, dims, original, pair, length) for pair in range(dims // 2)]
    return read_config(config).layers[0].rope, turns, np.outer(positions, speeds)


@pytest.mark.parametrize("original", [64, 1024, 8192])
@pytest.mark.parametrize("case", ROPES)
def test_rotary_angles_against_formulas_in_float64(case: str, original: int):
    """Within and beyond the original length. An angle is a float32 product of a float32 speed: each step may be off by
    half a unit in the last place (2^-24 of the angle), and a speed takes up to four. Cosine, sine and magnitude add a
    few of their own, of values near one.
    """
    positions = [0, 1, 100, 5000]
    for length in (50, 101, 5001):
        rope, turns, angles = angles_of(case, original, positions, length)
        cos, sin = reference.rotary_angles(rope, np.array(positions), length)
        assert cos.dtype == sin.dtype == np.float32
        bound = (6 * angles + 4) * 2.0**-24 * rope.magnitude
        assert (np.abs(cos - turns.real) <= bound).all()
        assert (np.abs(sin - turns.imag) <= bound).all()


@pytest.mark.parametrize("case", ROPES)
def test_the_cached_pass_has_the_same_angles_bit_for_bit(case: str):
    for length in (10, 64, 65, 300):
        rope, _, _ = angles_of(case, 64, [0], length)
        expected = reference.rotary_angles(rope, np.arange(length - 7, length), length)
        found = cached_rope.rotary_angles(rope, length - 7, 7, length)
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_dynamic_scaling_begins_beyond_the_original_length():
    rope = angles_of("dynamic", 64, [0], 1)[0]
    plain = reference.rotary_speeds(Rope(10000.0, 64), 1)
    assert np.array_equal(reference.rotary_speeds(rope, 64), plain)
    assert (reference.rotary_speeds(rope, 65)[1:] < plain[1:]).all()
    # stretched so that the slowest pair is slowed by exactly the growth, 2 * 128 / 64 - 1
    assert reference.rotary_speeds(rope, 128)[-1] == pytest.approx(plain[-1] / 3, rel=1e-6)


def test_which_lengths_need_keys_of_their_own():
    plain, dynamic, longrope = (angles_of(case, 64, [0], 1)[0] for case in ("yarn", "dynamic", "longrope"))
    assert cached_rope.keys_fit([plain], 1, 10**6)
    assert cached_rope.keys_fit([dynamic, longrope], 1, 64)
    assert not cached_rope.keys_fit([dynamic], 64, 65)
    assert not cached_rope.keys_fit([dynamic], 100, 101)
    assert not cached_rope.keys_fit([plain, longrope], 64, 65)
    assert cached_rope.keys_fit([longrope], 65, 1000)
    assert not cached_rope.keys_fit([longrope], 65, 64)


def test_turning_keeps_lengths_and_sees_only_distance():
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 1, 1, 12)).astype(np.float32)
    rope = Rope(10000.0, 8)  # the last four of twelve dimensions stay

    def at(x: np.ndarray, position: int) -> np.ndarray:
        return reference.rotate(x, *reference.rotary_angles(rope, np.array([position]), position + 1))

    assert np.array_equal(at(query, 0), query)
    assert np.array_equal(at(query, 9)[..., 8:], query[..., 8:])
    assert np.linalg.norm(at(query, 9)) == pytest.approx(np.linalg.norm(query), rel=1e-6)
    products = [float((at(query, p + 3) * at(key, p)).sum()) for p in (0, 1, 50)]
    assert products == pytest.approx([products[0]] * 3, abs=1e-5)  # float32 angles of 50: 50 * 2^-24, twelve terms


# ---- equations


def test_softmax_of_anything_finite():
    scores = np.float32([[1e38, -1e38, 0], [-np.inf, 5, -np.inf], [3, 3, 3], [-1e38, -1e38, -1e38]])
    assert reference.softmax(scores) == pytest.approx(
        np.array([[1, 0, 0], [0, 1, 0], [1 / 3] * 3, [1 / 3] * 3]), abs=1e-7
    )


@pytest.mark.parametrize(
    ("window", "expected"),
    [(None, "1000 1100 1110 1111"), (2, "1000 1100 0110 0011"), (1, "1000 0100 0010 0001"), (9, "1000 1100 1110 1111")],
)
def test_what_a_token_sees(window: int | None, expected: str):
    assert " ".join("".join(str(int(seen)) for seen in row) for row in reference.visible(4, window)) == expected


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS.values())))
def test_activations_against_float64(name: str):
    """Tanh and erf are good to a few units in the last place of one, and are multiplied by arguments up to 12."""
    x = np.linspace(-12, 12, 999, dtype=np.float32)
    exact = {
        "silu": lambda v: v / (1 + math.exp(-v)),
        "relu": lambda v: max(v, 0.0),
        "relu2": lambda v: max(v, 0.0) ** 2,
        "gelu": lambda v: v * (1 + math.erf(v / math.sqrt(2))) / 2,
        "gelu_tanh": lambda v: v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2,
    }[name]
    found = reference.activation(name, x)
    assert found.dtype == np.float32
    expected = np.array([exact(float(v)) for v in x])
    assert (np.abs(found - expected) < 2e-6 + 1e-7 * np.abs(expected)).all()
    for far in np.float32([-1e4, 1e4]):
        assert reference.activation(name, far) == (max(far, 0) ** 2 if name == "relu2" else max(far, 0))


def test_soft_caps():
    scores = np.float32([-1e30, -1, 0, 0.001, 1e30])
    assert reference.softcap(scores, None) is scores
    assert reference.softcap(scores, 2.0) == pytest.approx([-2, -2 * math.tanh(0.5), 0, 0.001, 2], rel=1e-6)


def test_norms_of_nothing_and_of_much():
    x = np.float32([[0, 0, 0, 0], [1e15, -1e15, 1e15, 1e15], [1e-20, 0, 0, 0]])
    weight = np.float32([1, 2, 3, 4])
    found = reference.rms_norm(x, weight, 1e-6)
    assert found[:2] == pytest.approx(np.array([[0, 0, 0, 0], [1, -2, 3, 4]]), rel=1e-6)
    assert found[2] == pytest.approx([1e-17, 0, 0, 0], rel=1e-5)  # below eps, the norm only scales by 1000

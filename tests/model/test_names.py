"""Which tensors a model takes from a checkpoint: tied heads, fused parts, strangers, and every fault by name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny_models import ARCHITECTURES, GOLDEN, WINDOWED, random_model
from tinyinfer import reference
from tinyinfer.cache import KVCache
from tinyinfer.checkpoint.safetensors import to_bfloat16
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.config import read_config
from tinyinfer.errors import BadCheckpoint, TinyinferError, UnsupportedModel
from tinyinfer.model.forward import Chunk, Model
from tinyinfer.model.names import collect_tensors, floats
from tinyinfer.quant import quantize

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
IDS = np.arange(5)

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3"},
    "gemma3": WINDOWED,
}


def collect(config: dict[str, Any], tensors: dict[str, np.ndarray]):
    return collect_tensors(read_config(config), tensors)


def logits(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> np.ndarray:
    facts = read_config(config)
    return reference.forward(facts, collect_tensors(facts, tensors), IDS)


def renamed(tensors: dict[str, np.ndarray], old: str, new: str) -> dict[str, np.ndarray]:
    return {new + name[len(old) :] if name.startswith(old) else name: array for name, array in tensors.items()}


# ---- the head: tied or not, there or not


def test_tied_and_absent_takes_the_embedding():
    config, tensors = random_model(tie_word_embeddings=True)
    assert HEAD not in tensors
    found = collect(config, tensors)
    assert found.head is found.embedding
    copied = logits(config | {"tie_word_embeddings": False}, tensors | {HEAD: tensors[EMBEDDING]})
    assert np.array_equal(logits(config, tensors), copied)


@pytest.mark.parametrize("same", [True, False])
def test_tied_and_present_uses_what_is_present(same: bool):
    """A head that differs from the embedding was put there for a reason."""
    config, tensors = random_model(tie_word_embeddings=True)
    head = tensors[EMBEDDING].copy() if same else tensors[EMBEDDING][::-1].copy()
    found = collect(config, tensors | {HEAD: head})
    assert found.head is head
    assert found.unused == ()
    expected = logits(config, tensors)
    found = logits(config, tensors | {HEAD: head})
    # rows of a product may be summed in another order where they stand elsewhere: float32, values of order 1
    assert np.abs(found - (expected if same else expected[:, ::-1])).max() < 1e-5


def test_untied_and_present():
    config, tensors = random_model()
    assert collect(config, tensors).head is tensors[HEAD]


def test_untied_and_absent_is_an_error_that_names_the_head():
    config, tensors = random_model()
    del tensors[HEAD]
    with pytest.raises(BadCheckpoint, match=r"tensor 'lm_head\.weight' is missing; expected shape \[97, 40\]"):
        collect(config, tensors)


def test_absent_ties_are_those_of_the_family():
    config, tensors = random_model(**WINDOWED, tie_word_embeddings=True)
    del config["tie_word_embeddings"]  # Gemma 3 ties where nothing is said
    found = collect(config, tensors)
    assert found.head is found.embedding


# ---- all names


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_golden_models_use_all_they_have(name: str):
    checkpoint = open_checkpoint(GOLDEN / name)
    assert collect_tensors(read_config(checkpoint.config), checkpoint.tensors).unused == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_each_tensor_that_is_missing_is_named(family: str):
    config, tensors = random_model(num_hidden_layers=3, **FAMILIES[family])
    for name in tensors:
        rest = {other: array for other, array in tensors.items() if other != name}
        with pytest.raises(BadCheckpoint) as error:
            collect(config, rest)
        assert str(error.value) == f"tensor {name!r} is missing; expected shape {list(tensors[name].shape)}"


WRONG_SHAPES = {
    "transposed": lambda array: array.T if array.ndim == 2 and len(set(array.shape)) == 2 else array[None],
    "a row short": lambda array: array[:-1],
    "a column too many": lambda array: np.concatenate([array, array[..., :1]], axis=-1),
    "a dimension too many": lambda array: array[..., None],
    "flat": lambda array: array.reshape(-1) if array.ndim == 2 else array.reshape(2, -1),
    "a scalar": lambda array: array.reshape(-1)[0].reshape(()),
    "nothing": lambda array: array[:0],
}


@pytest.mark.parametrize("fault", WRONG_SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_tensor_that_is_misshapen_is_named(family: str, fault: str):
    config, tensors = random_model(num_hidden_layers=3, **FAMILIES[family])
    for name, array in tensors.items():
        wrong = WRONG_SHAPES[fault](array)
        with pytest.raises(BadCheckpoint) as error:
            collect(config, tensors | {name: wrong})
        expected = f"tensor {name!r}: expected shape {list(array.shape)}, found {list(wrong.shape)}"
        assert str(error.value) == expected


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint32", "bool"])
def test_weights_that_are_no_floats_are_named(dtype: str):
    config, tensors = random_model()
    for name, array in tensors.items():
        with pytest.raises(UnsupportedModel) as error:
            collect(config, tensors | {name: np.zeros(array.shape, dtype)})
        assert str(error.value) == f"tensor {name!r}: {dtype} weights can't be read yet"


def test_float_weights_may_be_mixed():
    config, tensors = random_model()
    expected = logits(config, tensors)
    kinds = [to_bfloat16, lambda a: a.astype(np.float16), lambda a: a.astype(np.float64), lambda a: a]
    mixed = {name: kinds[i % 4](array) for i, (name, array) in enumerate(tensors.items())}
    assert np.abs(logits(config, mixed) - expected).max() < 0.1  # rounded to 8 bits, so near and no more
    facts = read_config(config)
    model = Model(facts, collect_tensors(facts, mixed))
    found = model.forward([Chunk(KVCache(facts).sequence(), IDS, logits=slice(None))])
    assert np.abs(found - logits(config, mixed)).max() < 5e-5  # float32, see test_forward.py


# ---- strangers, and models inside models


def test_extra_tensors_are_listed_once_and_change_nothing():
    config, tensors = random_model()
    strangers = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(5, np.float32),
        "model.layers.3.input_layernorm.weight": np.ones(40, np.float32),  # of a layer that the config has not
        "vision_tower.patch.weight": np.ones((2, 2), np.int8),
        "model.layers.0.self_attn.q_proj.bias": np.ones(60, np.float32),  # that the config does not call for
    }
    found = collect(config, strangers | tensors)
    assert sorted(found.unused) == sorted(strangers)
    assert np.array_equal(logits(config, strangers | tensors), logits(config, tensors))


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model.", "lm_head.weight"),
        ("language_model.model.", "language_model.lm_head.weight"),
        ("model.language_model.", "lm_head.weight"),
    ],
)
def test_a_text_model_inside_one_that_also_sees(prefix: str, head: str):
    config, tensors = random_model(**WINDOWED)
    inner = renamed(renamed(tensors, "model.", prefix), HEAD, head)
    seen = {"vision_tower.encoder.weight": np.ones(3, np.float32), "multi_modal_projector.w": np.ones(3, np.float32)}
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": config}
    found = collect(outer, seen | inner)
    assert sorted(found.unused) == sorted(seen)
    assert np.array_equal(logits(outer, seen | inner), logits(config, tensors))


def test_no_tensors_at_all():
    with pytest.raises(BadCheckpoint, match=r"'model\.embed_tokens\.weight' is missing"):
        collect(random_model()[0], {})


# ---- fused tensors


def test_fused_tensors_are_views_of_their_rows():
    config, tensors = random_model(**FAMILIES["phi3"])
    layer = collect(config, tensors).layers[1]
    fused = tensors["model.layers.1.self_attn.qkv_proj.weight"]
    for name, rows in {"query": slice(0, 60), "key": slice(60, 80), "value": slice(80, 100)}.items():
        assert np.shares_memory(layer[name], fused)
        assert np.array_equal(layer[name], fused[rows])
    both = tensors["model.layers.1.mlp.gate_up_proj.weight"]
    assert np.array_equal(layer["gate"], both[:56])
    assert np.array_equal(layer["up"], both[56:])


def test_a_fused_model_says_what_the_same_model_says_in_parts():
    fused_config, fused = random_model(**FAMILIES["phi3"])
    config, parts = random_model()
    for i in range(3):
        stem = f"model.layers.{i}."
        qkv = np.split(fused[f"{stem}self_attn.qkv_proj.weight"], [60, 80])
        gate_up = np.split(fused[f"{stem}mlp.gate_up_proj.weight"], 2)
        parts |= {f"{stem}self_attn.{n}_proj.weight": part for n, part in zip("qkv", qkv, strict=True)}
        parts |= {f"{stem}mlp.{n}_proj.weight": part for n, part in zip(("gate", "up"), gate_up, strict=True)}
    parts |= {name: array for name, array in fused.items() if name in parts}
    assert np.array_equal(logits(config, parts), logits(fused_config, fused))


# ---- anything


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_checkpoint_of_a_sound_config_is_taken_or_refused(data: st.DataObject):
    config, tensors = random_model(**FAMILIES[data.draw(st.sampled_from(list(FAMILIES)))])
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(list(tensors)))
        shape = data.draw(st.lists(st.integers(0, 60), max_size=3))
        dtype = data.draw(st.sampled_from(["float32", "float16", "int8", "complex64", "U3"]))
        tensors[data.draw(st.sampled_from([name, name + "x", "lm_head.weight"]))] = np.zeros(shape, dtype)
    with suppress(TinyinferError):  # and nothing else
        collect(config, tensors)


SIZE_KEYS = ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"]


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(SIZE_KEYS), st.integers(1, 2**31 - 1) | st.integers(1, 100), min_size=1))
def test_sizes_that_contradict_the_tensors_are_refused(changes: dict[str, int]):
    """However large, they size nothing before they are compared."""
    config, tensors = random_model()
    same = all(config[key] == value for key, value in changes.items())
    if same:
        collect(config, tensors)
    else:
        with pytest.raises(TinyinferError):
            collect(config | changes, tensors)


@pytest.mark.parametrize("heads", [3, 4])
def test_a_fused_quantized_tensor_is_taken_apart_wherever_its_parts_begin(heads: int):
    """Parts of 12 and 16 rows: the first do not begin at whole blocks of 8, and are widened."""
    config = {"architectures": ["Phi3ForCausalLM"], "num_attention_heads": heads, "num_key_value_heads": heads}
    config |= {
        "hidden_size": 4 * heads,
        "head_dim": 4,
        "intermediate_size": 20,
        "vocab_size": 9,
        "num_hidden_layers": 1,
    }
    facts = read_config(config)
    rng = np.random.default_rng(0)
    shapes = {"self_attn.qkv_proj": (12 * heads, 4 * heads), "self_attn.o_proj": (4 * heads, 4 * heads)}
    shapes |= {"mlp.gate_up_proj": (40, 4 * heads), "mlp.down_proj": (4 * heads, 20)}
    fused = {name: quantize(rng.standard_normal(shape).astype(np.float32), "int8") for name, shape in shapes.items()}
    tensors: dict = {f"model.layers.0.{name}.weight": tensor for name, tensor in fused.items()}
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        tensors[f"model.{name}.weight"] = np.ones(4 * heads, np.float32)
    tensors |= {name: np.zeros((9, 4 * heads), np.float32) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    layer = collect_tensors(facts, tensors).layers[0]
    apart = np.concatenate([floats(layer[name]) for name in ("query", "key", "value")])
    assert np.array_equal(apart, floats(fused["self_attn.qkv_proj"]))
    Model(facts, collect_tensors(facts, tensors))

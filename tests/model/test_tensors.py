"""Which tensors a model takes from a checkpoint: tied heads, fused parts, strangers, and every fault by name."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny_models import ARCHITECTURES, VARIANTS, WINDOWED, golden_folder, random_model
from tinyinfer import reference
from tinyinfer.cache import KVCache
from tinyinfer.checkpoint.safetensors import to_bfloat16, to_float32
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.config import FAMILIES as FACTS_OF_FAMILIES
from tinyinfer.config import read_config
from tinyinfer.errors import BadCheckpoint, TinyinferError, UnsupportedModel
from tinyinfer.model.forward import Chunk, Model
from tinyinfer.model.names import NAMES
from tinyinfer.model.tensors import collect_tensors, floats
from tinyinfer.quant import FORMS, dequantize, from_arrays, quantize, take_rows

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


def golden(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    checkpoint = open_checkpoint(golden_folder(name))
    return checkpoint.config, dict(checkpoint.tensors)


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


def test_every_family_has_names():
    assert set(NAMES) == set(FACTS_OF_FAMILIES)


@pytest.mark.parametrize("name", ARCHITECTURES + VARIANTS)
def test_golden_models_use_all_they_have(name: str):
    checkpoint = open_checkpoint(golden_folder(name))
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
        "model.layers.3.input_layernorm.weight": np.ones(40, np.float32),  # of a layer that the config has not
        "vision_tower.patch.weight": np.ones((2, 2), np.int8),
        "model.layers.0.self_attn.q_proj.bias": np.ones(60, np.float32),  # that the config does not call for
    }
    found = collect(config, strangers | tensors)
    assert sorted(found.unused) == sorted(strangers)
    assert np.array_equal(logits(config, strangers | tensors), logits(config, tensors))


BUFFERS = {
    "llama": ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"],
    "gpt2": ["transformer.h.0.attn.bias", "transformer.h.2.attn.masked_bias", "h.1.attn.bias"],
    "gpt-neox": ["gpt_neox.layers.0.attention.bias", "gpt_neox.layers.1.attention.masked_bias"],
}


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_that_models_work_out_for_themselves_are_no_strangers(name: str):
    config, tensors = golden(name)
    buffers = {buffer: np.ones((1, 1, 8, 8), bool) for buffer in BUFFERS[name]}
    odd = {"transformer.h.0.attn.biases": np.ones(3, np.float32)}
    assert collect(config, tensors | buffers | odd).unused == tuple(odd)


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


# the first layer, one of the last with experts, and what stands outside
NAMED = re.compile(r"\.(0|2)\.|^[^0-9]*$")


@pytest.mark.parametrize("name", ARCHITECTURES + VARIANTS)
def test_each_tensor_of_a_golden_model_is_named_where_it_is_missing_or_misshapen(name: str):
    config, tensors = golden(name)
    facts = read_config(config)
    heads = {"lm_head.weight"} if facts.tied else set()
    for tensor, array in tensors.items():
        if not NAMED.search(tensor) or tensor in heads:
            continue
        shape = list(array.shape)
        with pytest.raises(BadCheckpoint) as error:
            collect_tensors(facts, {other: rest for other, rest in tensors.items() if other != tensor})
        # where a name is gone that tells one way of naming from another, the tensor is missed under the usual name
        assert "is missing; expected shape" in str(error.value)
        assert f"tensor {tensor!r}" in str(error.value) or tensor.endswith(("ln_attn.weight", "embed_tokens.weight"))
        with pytest.raises(BadCheckpoint) as error:
            collect_tensors(facts, tensors | {tensor: array[:-1]})
        wrong = [shape[0] - 1, *shape[1:]]
        assert str(error.value) == f"tensor {tensor!r}: expected shape {shape}, found {wrong}"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("gpt2", "transformer.", ""),
        ("bloom-alibi", "transformer.", ""),
        ("falcon-grouped", "transformer.", ""),
        ("gpt-neox", "gpt_neox.", ""),
        ("opt", "model.decoder.", "decoder."),
    ],
)
def test_models_published_without_a_prefix(name: str, old: str, new: str):
    config, tensors = golden(name)
    found = collect(config, renamed(tensors, old, new))
    assert found.unused == ()
    assert np.array_equal(found.outer["final_norm"], collect(config, tensors).outer["final_norm"])


# ---- experts


def stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts in one array of all, as transformers 5 holds them, from one tensor each, as version 4 wrote them."""
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    found, layers = {}, sorted({name.split(".experts.")[0] for name in tensors if ".experts." in name})
    for name, array in tensors.items():
        if ".experts." not in name:
            found[name.replace("block_sparse_moe", "mlp")] = array
    for layer in layers:
        parts = {}
        for part, other in names.items():
            each = [f"{layer}.experts.{{}}.{part}.weight", f"{layer}.experts.{{}}.{other}.weight"]
            form = each[0] if each[0].format(0) in tensors else each[1]
            count = sum(form.format(i) in tensors for i in range(100))
            parts[part] = np.stack([to_float32(tensors[form.format(i)]) for i in range(count)])
        stem = layer.replace("block_sparse_moe", "mlp")
        found[f"{stem}.experts.gate_up_proj"] = np.concatenate([parts["gate_proj"], parts["up_proj"]], axis=1)
        found[f"{stem}.experts.down_proj"] = parts["down_proj"]
    return found


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "olmoe", "deepseek-v2-mla", "deepseek-v3-mla"])
def test_experts_in_one_array_are_the_same_experts(name: str):
    config, tensors = golden(name)
    together = stacked(tensors)
    assert len(together) < len(tensors)
    assert collect(config, together).unused == ()
    assert np.array_equal(logits(config, together), logits(config, tensors))


def test_a_missing_expert_is_named():
    config, tensors = golden("mixtral")
    name = "model.layers.1.block_sparse_moe.experts.3.w3.weight"
    del tensors[name]
    with pytest.raises(BadCheckpoint, match=f"tensor '{name}' is missing"):
        collect(config, tensors)


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


# where the rows of each are: taken in turns, turned in pairs side by side, transposed, and one after the other
REORDERED = [
    "falcon-grouped",
    "gpt-neox",
    "cohere",
    "glm4",
    "deepseek-v2-groups",
    "deepseek-v3-mla",
    "gpt2",
    "phi3",
]


@pytest.mark.parametrize("form", ["int4-g32", "int8-row", "nf4-g64-double"])
@pytest.mark.parametrize("name", REORDERED)
def test_quantized_tensors_come_apart_as_floats_do(name: str, form: str):
    """Codes and scales move with their rows: the very numbers that dequantizing first would give."""
    config, tensors = golden(name)
    matrix = re.compile(r"(attn|attention|mlp).*weight$")
    packed = {
        key: quantize(to_float32(array), form) if array.ndim == 2 and matrix.search(key) else array
        for key, array in tensors.items()
    }
    apart = collect(config, packed).layers
    first = collect(config, {key: floats(tensor) for key, tensor in packed.items()}).layers
    for quantized, plain in zip(apart, first, strict=True):
        assert list(quantized) == list(plain)
        for part in plain:
            assert np.array_equal(floats(quantized[part]), floats(plain[part])), part


def test_rows_of_a_quantized_matrix_stay_quantized():
    """Whichever are asked for, and although they do not fill the last block."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((43, 70)).astype(np.float32)
    for form in FORMS.values():
        if form.double:
            with pytest.raises(ValueError, match="can't be taken apart"):
                take_rows(quantize(matrix, form), np.arange(3))
            continue
        packed = quantize(matrix, form)
        for ids in (np.arange(43), rng.permutation(43), np.array([42, 0, 7]), np.array([], int)):
            taken = take_rows(packed, ids)
            assert (taken.form, taken.shape) == (form, (len(ids), 70))
            from_arrays(form, taken.shape, taken.arrays())
            assert np.array_equal(dequantize(taken), dequantize(packed)[ids])

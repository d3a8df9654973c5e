"""GGUF tensors that stay quantized: what llama.cpp's reference gives where that is promised, else within a bound."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.checkpoint import ggml_blocks
from tests.checkpoint.gguf_files import TYPES, write_model, write_types
from tests.quant import slow
from tinyinfer.checkpoint.gguf import read_gguf
from tinyinfer.checkpoint.gguf_file import BLOCKS, FLOATS, GgufTensor, open_gguf
from tinyinfer.checkpoint.gguf_packed import is_exact, pack, packed_form, type_outlooks
from tinyinfer.checkpoint.quantized import quantize_checkpoint, quantize_folder, write_quantized
from tinyinfer.checkpoint.source import (
    dequantized,
    open_checkpoint,
    plain_rows,
    rounded_names,
    stored_bytes,
    tensor_forms,
    tensor_layout,
    write_folder,
)
from tinyinfer.errors import BadCheckpoint
from tinyinfer.quant import FORMS, PackedWeight, dequantize, quantize, relative_error

FORM = {
    "Q4_0": "int4-g32-symmetric", "Q4_1": "int4-g32", "Q4_K": "int4-g32", "Q5_0": "int5-g32-symmetric",
    "Q5_1": "int5-g32", "Q5_K": "int5-g32", "Q6_K": "int8-g32", "Q8_0": "int8-g32",
}  # fmt: skip
EXACT = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def random_tensor(kind: str, rows: int = 11, blocks: int = 3, seed: int = 0) -> GgufTensor:
    data = ggml_blocks.random_blocks(kind, rows, blocks, np.random.default_rng(seed))
    return GgufTensor("blk.0.x.weight", kind, (rows, blocks * ggml_blocks.BLOCKS[kind][1]), data)


def reference(tensor: GgufTensor) -> np.ndarray:
    return gguf.quants.dequantize(tensor.data, TYPES[tensor.type])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", EXACT)
def test_exact_types(kind: str, seed: int):
    tensor = random_tensor(kind, seed=seed)
    packed = pack(tensor)
    assert packed.form.name == FORM[kind]
    assert np.array_equal(dequantize(packed), reference(tensor))
    size, values, read, _ = ggml_blocks.BLOCKS[kind]
    block = [read(tensor.data[10, size : 2 * size].tobytes())]
    assert np.array_equal(slow.dequantized(packed)[10:, values : 2 * values], block)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K"])
def test_what_is_off_by_the_rounding_of_scale_and_minimum(kind: str, seed: int):
    tensor = random_tensor(kind, seed=seed)
    packed = pack(tensor)
    exact = reference(tensor)
    assert packed.form.name == FORM[kind]
    scale = np.abs([[slow.scale_of(packed, n, k) for k in range(768)] for n in range(11)])
    minimum = np.abs([[float(packed.minimums[n // 8, k // 32, n % 8]) for k in range(768)] for n in range(11)])
    # half a unit of float16 of each: 2^-11 of a number, or 2^-25 of those below the normal range
    bound = (15 if kind == "Q4_K" else 31) * (scale * 2.0**-11 + 2.0**-25) + minimum * 2.0**-11 + 2.0**-25
    assert (np.abs(dequantize(packed) - exact) <= bound * 1.001).all()
    assert not np.array_equal(dequantize(packed), exact)  # the docstring says that it is not exact


@pytest.mark.parametrize("seed", range(3))
def test_q6_k_becomes_the_nearest_of_255_steps(seed: int):
    tensor = random_tensor("Q6_K", seed=seed)
    packed, exact = pack(tensor), reference(tensor)
    assert packed.form.name == FORM["Q6_K"]
    largest = np.abs(exact.reshape(11, -1, 32)).max(axis=-1, keepdims=True)
    off = np.abs(dequantize(packed) - exact).reshape(11, -1, 32)
    # half of the coarsest step that is tried, 1/96; and 127 times 2^-11 of one where float16 has rounded it down
    assert (off <= largest / 192 * 1.15 + 127 * 2.0**-25).all()


def test_every_type_that_is_read_has_a_place():
    assert set(FORM) == set(BLOCKS) - set(FLOATS)
    tensors = {name: random_tensor(name) for name in FORM}
    assert {name: packed_form(tensor).name for name, tensor in tensors.items()} == FORM
    assert [name for name, tensor in tensors.items() if is_exact(tensor)] == EXACT


def test_minus_128_is_kept():
    tensor = random_tensor("Q8_0", rows=1, blocks=1)
    data = tensor.data.copy()
    data[0, 2:4] = 0x80
    tensor = GgufTensor("x", "Q8_0", tensor.shape, data)
    assert np.array_equal(dequantize(pack(tensor)), reference(tensor))


@pytest.mark.parametrize("kind", FORM)
@pytest.mark.parametrize("half", [np.inf, np.nan])
def test_scales_that_are_not_finite(kind: str, half: float):
    tensor = random_tensor(kind, rows=2, blocks=1)
    data = tensor.data.copy()
    at = ggml_blocks.BLOCKS[kind][3][0]
    data[1, at : at + 2] = np.array([half], "<f2").view(np.uint8)
    with pytest.raises(BadCheckpoint, match=r"blk\.0\.x\.weight"):
        pack(GgufTensor(tensor.name, kind, tensor.shape, data))


def test_a_product_beyond_float16():
    tensor = random_tensor("Q4_K", rows=1, blocks=1)
    data = tensor.data.copy()
    data[0, :2] = np.array([60000], "<f2").view(np.uint8)
    data[0, 4] = 63
    with pytest.raises(BadCheckpoint, match="not finite in float16"):
        pack(GgufTensor("x", "Q4_K", tensor.shape, data))


def test_vectors_and_floats_are_not_packed():
    assert packed_form(GgufTensor("x", "Q8_0", (32,), np.zeros((1, 34), np.uint8))) is None
    assert packed_form(GgufTensor("x", "F16", (4, 32), np.zeros((4, 64), np.uint8))) is None


# ---- whole files


@pytest.mark.parametrize("form", EXACT)
@pytest.mark.parametrize(("name", "arch"), [("llama", "llama"), ("gemma3", "gemma3")])
def test_the_same_model_either_way(tmp_path: Path, name: str, arch: str, form: str):
    """Rows of q and k are put in order in both; both are exact."""
    write_model(tmp_path / "m.gguf", name, arch, form)
    packed = read_gguf(tmp_path / "m.gguf")
    plain = dequantized(packed)
    assert packed.config == plain.config
    assert tensor_layout(packed.tensors) == tensor_layout(plain.tensors)
    assert rounded_names(packed.tensors) == set()
    forms = tensor_forms(packed.tensors)
    for tensor, expected in plain.tensors.items():
        found = packed.tensors[tensor]
        if expected.ndim == 2:
            assert isinstance(found, PackedWeight)
            assert found.form == forms[tensor] == FORMS[FORM[form]]
            found = dequantize(found)
        else:
            assert tensor not in forms
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected), tensor


def test_floats_in_a_packed_file_keep_their_dtype(tmp_path: Path):
    write_model(tmp_path / "m.gguf", "llama", "llama", "BF16")
    checkpoint = read_gguf(tmp_path / "m.gguf")
    assert not tensor_forms(checkpoint.tensors)
    assert set(stored_bytes(checkpoint.tensors)) == {"bfloat16", "float32"}


def test_convert_dequantizes_and_write_quantized_does_not(tmp_path: Path):
    write_model(tmp_path / "m.gguf", "llama", "llama", "Q4_1")
    packed = read_gguf(tmp_path / "m.gguf")
    plain = dequantized(packed)
    write_folder(packed, tmp_path / "converted")
    write_quantized(packed, tmp_path / "kept")
    converted, kept = open_checkpoint(tmp_path / "converted"), open_checkpoint(tmp_path / "kept")
    assert "quantization_config" not in converted.config
    assert tensor_forms(kept.tensors) == tensor_forms(packed.tensors)
    assert kept.config["quantization_config"]["form"] == "int4-g32"
    for name, expected in plain.tensors.items():
        assert np.array_equal(converted.tensors[name], expected)
        found = kept.tensors[name]
        assert np.array_equal(dequantize(found) if expected.ndim == 2 else found, expected)


def test_quantizing_a_file_keeps_what_is_in_that_form_already(tmp_path: Path):
    write_model(tmp_path / "m.gguf", "llama", "llama", "Q8_0")
    source = open_checkpoint(tmp_path / "m.gguf")
    quantize_folder(source, tmp_path / "out", keep="down_proj")
    found = open_checkpoint(tmp_path / "out").tensors
    up, down = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
    assert found[up].form == FORMS["int4-g32"]
    for name in ("model.embed_tokens.weight", "lm_head.weight", down):
        assert found[name].form == FORMS["int8-g32"]
        assert np.array_equal(dequantize(found[name]), dequantize(source.tensors[name]))


def test_stored_bytes_count_what_is_stored(tmp_path: Path):
    write_model(tmp_path / "m.gguf", "llama", "llama", "Q8_0")
    tensors = read_gguf(tmp_path / "m.gguf").tensors
    expected = sum(tensor.nbytes for name in tensors if isinstance(tensor := tensors[name], PackedWeight))
    assert stored_bytes(tensors)["int8-g32"] == expected


# ---- types that no form holds exactly

Q, DOWN, HEAD = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight"


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A layer with q in Q4_K, whose rows llama.cpp reorders, and down in Q6_K; the head in Q8_0, the rest in floats."""
    kinds = {"blk.0.attn_q": "Q4_K", "blk.0.ffn_down": "Q6_K", "output": "Q8_0", "token_embd": "BF16"}
    write_types(tmp_path / "mixed.gguf", kinds)
    return tmp_path / "mixed.gguf"


def test_what_is_rounded_widens_exactly(mixed: Path):
    checkpoint = read_gguf(mixed)
    file = open_gguf(mixed)
    assert rounded_names(checkpoint.tensors) == {Q, DOWN}
    exact = dequantized(checkpoint).tensors
    heads = file.tensors["blk.0.attn_q.weight"].values().reshape(4, 32, 2, 256)  # half a head's rows alternate
    expected = {Q: heads.swapaxes(1, 2).reshape(256, 256), DOWN: file.tensors["blk.0.ffn_down.weight"].values()}
    for name, values in expected.items():
        assert np.array_equal(exact[name], values)
        ids = np.array([250, 0, 3])
        assert np.array_equal(plain_rows(checkpoint.tensors, name, ids), values[ids])
        assert 0 < relative_error(values, dequantize(checkpoint.tensors[name])) < 0.01
    assert np.array_equal(exact[HEAD], dequantize(checkpoint.tensors[HEAD]))


def test_a_folder_says_what_rounding_cost(mixed: Path, tmp_path: Path):
    checkpoint = read_gguf(mixed)
    write_quantized(checkpoint, tmp_path / "out")
    facts = open_checkpoint(tmp_path / "out").config["quantization_config"]
    exact = dequantized(checkpoint).tensors
    errors = {form: relative_error(exact[name], dequantize(checkpoint.tensors[name])) for name, form in
              ((Q, "int4-g32"), (DOWN, "int8-g32"))}  # fmt: skip
    assert facts["relative_error"] == pytest.approx(errors, rel=1e-3)  # four digits are written


def test_another_form_is_made_from_the_exact_values(mixed: Path):
    made = quantize_checkpoint(read_gguf(mixed), scheme="int4", group_size=64).tensors
    exact = dequantized(read_gguf(mixed)).tensors
    for name in (Q, DOWN):
        assert np.array_equal(dequantize(made[name]), dequantize(quantize(exact[name], "int4-g64")))


def test_what_becomes_of_each_type(mixed: Path):
    found = {(one.type, one.form): one for one in type_outlooks(open_gguf(mixed))}
    assert set(found) == {
        ("Q4_K", "int4-g32"), ("Q6_K", "int8-g32"), ("Q8_0", "int8-g32"), ("BF16", "bfloat16"), ("F32", "float32"),
    }  # fmt: skip
    six = found["Q6_K", "int8-g32"]
    assert (six.tensors, six.weights, six.file_bytes) == (1, 256 * 256, 256 * 210)
    assert (six.bytes, six.bits_per_weight) == (256 * 256 * 8.5 / 8, 8.5)
    tensors, exact = read_gguf(mixed).tensors, dequantized(read_gguf(mixed)).tensors
    for kind, name in ((("Q6_K", "int8-g32"), DOWN), (("Q4_K", "int4-g32"), Q)):
        # from 16 of 256 rows
        whole = relative_error(exact[name], dequantize(tensors[name]))
        assert found[kind].relative_error == pytest.approx(whole, rel=0.3)
    assert {one.relative_error for kind, one in found.items() if kind[0] in ("Q8_0", "BF16", "F32")} == {0.0}
    assert found["BF16", "bfloat16"].bytes == 2 * 40 * 256
    assert sum(one.bytes for one in found.values()) == sum(stored_bytes(tensors).values())

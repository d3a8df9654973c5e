"""tinyinfer's quantized folders: what becomes of each tensor, that reading is mapping, and files that lie."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny_models import golden_folder, random_model
from tinyinfer.checkpoint.quantized import (
    quantization_plan,
    quantize_checkpoint,
    quantize_folder,
    write_quantized,
)
from tinyinfer.checkpoint.safetensors import (
    BFLOAT16,
    dtype_name,
    open_safetensors,
    read_metadata,
    to_float32,
    write_safetensors,
)
from tinyinfer.checkpoint.source import (
    Checkpoint,
    LazyTensors,
    dequantized,
    open_checkpoint,
    stored_bytes,
    tensor_forms,
    tensor_layout,
    write_folder,
)
from tinyinfer.errors import BadCheckpoint, BadRequest, TinyinferError, UnsupportedModel
from tinyinfer.quant import FORMS, Form, PackedWeight, dequantize, dequantize_rows, quantize, relative_error

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
UP, DOWN = "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def model(tmp_path: Path) -> Checkpoint:
    """Two of the sizes are no multiples of 32; heads have a bias."""
    random_model(tmp_path / "model", dtype="bfloat16", attention_bias=True, vocab_size=97)
    return open_checkpoint(tmp_path / "model")


@pytest.fixture
def tied(tmp_path: Path) -> Checkpoint:
    random_model(tmp_path / "tied", tie_word_embeddings=True)
    return open_checkpoint(tmp_path / "tied")


def kinds(checkpoint: Checkpoint, **choices: Any) -> dict[str, str]:
    plan = quantization_plan(checkpoint.tensors, **choices)
    return {name: kind.name if isinstance(kind, Form) else dtype_name(kind) for name, kind in plan.items()}


KEPT = {
    "gpt2": ["transformer.wpe.weight", "transformer.h.0.attn.c_attn.weight", "transformer.h.1.mlp.c_proj.weight"],
    "opt": ["model.decoder.embed_positions.weight"],
    "mixtral": ["model.layers.0.block_sparse_moe.gate.weight"],
    "deepseek-v3-mla": ["model.layers.1.mlp.gate.weight"],
    "gpt-oss": ["model.layers.0.mlp.router.weight"],
    "cohere-qk-norm": ["model.layers.0.self_attn.q_norm.weight"],
}
ENDS = {
    "gpt2": ("transformer.wte.weight", None),
    "gpt-neox": ("embed_out.weight", "gpt_neox.embed_in.weight"),
    "bloom-alibi": ("lm_head.weight", "transformer.word_embeddings.weight"),
}


@pytest.mark.parametrize("name", sorted({*KEPT, *ENDS, "starcoder2"}))
def test_what_other_families_call_their_tensors(name: str):
    found = kinds(open_checkpoint(golden_folder(name)), scheme="int4")
    for kept in KEPT.get(name, []):
        assert found[kept] == "bfloat16"
    head, embedding = ENDS.get(name, (None, None))
    assert head is None or found[head] == "int8-g32"
    assert embedding is None or found[embedding] == "bfloat16"
    maps = [key for key in found if key.endswith(("fc1.weight", "dense.weight", "down_proj.weight", "o_proj.weight"))]
    if name == "starcoder2":
        maps += ["model.layers.0.mlp.c_fc.weight", "model.layers.0.mlp.c_proj.weight"]
    assert all(found[key] == "int4-g32" for key in maps)
    assert maps or name == "gpt2"


# ---- what becomes of each tensor


def test_what_becomes_of_what(model: Checkpoint):
    found = kinds(model)
    assert {found.pop(name) for name in (EMBEDDING,)} == {"bfloat16"}
    assert found.pop(HEAD) == "int8-g32"
    for name, kind in found.items():
        assert kind == ("int4-g32" if model.tensors[name].ndim == 2 else "float32"), name


def test_an_embedding_without_a_head_is_the_head(tied: Checkpoint):
    assert HEAD not in tied.tensors
    assert kinds(tied)[EMBEDDING] == "int8-g32"
    assert kinds(tied, head="int8-row")[EMBEDDING] == "int8-row"
    assert kinds(tied, head="bfloat16")[EMBEDDING] == "bfloat16"
    with pytest.raises(BadRequest, match="embedding: this model has no head beside it, and it takes what head says"):
        kinds(tied, embedding="nf4")


def test_choices(model: Checkpoint):
    assert kinds(model, scheme="nf4", double=True)[UP] == "nf4-g64-double"
    assert kinds(model, group_size=128, symmetric=True)[UP] == "int4-g128-symmetric"
    assert kinds(model, scheme="int8", group_size=0)[UP] == "int8-row"
    assert kinds(model, embedding="int8")[EMBEDDING] == "int8-g32"
    assert kinds(model, head="float16")[HEAD] == "float16"


def test_keep_finds_names(model: Checkpoint):
    found = kinds(model, keep=r"layers\.0\..*proj|lm_head")
    assert found["model.layers.0.mlp.up_proj.weight"] == found[HEAD] == "bfloat16"
    assert found["model.layers.0.input_layernorm.weight"] == "float32"
    assert found[UP] == "int4-g32"


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"scheme": "int6"}, "scheme should be one of"),
        ({"group_size": 16}, "groups of 16"),
        ({"head": "int6"}, "head should be one of int4, int5, int8"),
        ({"embedding": "float8"}, "embedding should be one of"),
        ({"keep": "("}, "regular expression"),
        ({"keep": "nothing like this"}, "no tensor has a name"),
        ({"keep": "weight"}, "no matrix to quantize"),
    ],
)
def test_impossible_choices(model: Checkpoint, tmp_path: Path, choices: dict[str, Any], words: str):
    with pytest.raises(BadRequest, match=words):
        quantize_folder(model, tmp_path / "out", **choices)
    assert not (tmp_path / "out").exists()


# ---- there and back


@pytest.mark.parametrize(
    "choices",
    [{}, {"group_size": 64, "symmetric": True, "head": "int8-row"}, {"scheme": "nf4", "double": True, "head": "int4"},
     {"scheme": "int8", "embedding": "int8", "head": "bfloat16"}],
)  # fmt: skip
def test_a_folder_holds_what_quantize_gives(model: Checkpoint, tmp_path: Path, choices: dict[str, Any]):
    quantize_folder(model, tmp_path / "out", **choices)
    found = open_checkpoint(tmp_path / "out")
    in_memory = quantize_checkpoint(model, **choices)
    assert found.config == in_memory.config
    assert set(found.tensors) == set(model.tensors) == set(in_memory.tensors)
    plan = quantization_plan(model.tensors, **choices)
    for name, kind in plan.items():
        exact = to_float32(model.tensors[name])
        if name not in tensor_forms(found.tensors):
            # float32 holds bfloat16, and nothing else is rounded here
            for tensor in (found.tensors[name], in_memory.tensors[name]):
                assert tensor.dtype == kind
                assert np.array_equal(to_float32(tensor), exact)
            continue
        expected = quantize(exact, kind)
        for tensor in (found.tensors[name], in_memory.tensors[name]):
            assert isinstance(tensor, PackedWeight)
            assert tensor.form == kind
            for a, b in zip(tensor.arrays().values(), expected.arrays().values(), strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                assert np.array_equal(a, b)


def test_config_says_what_was_done(model: Checkpoint, tmp_path: Path):
    quantize_folder(model, tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    others = {EMBEDDING: "bfloat16", HEAD: "int8-g32"}
    assert {key: facts[key] for key in ("quant_method", "version", "form", "others")} == {
        "quant_method": "tinyinfer", "version": 1, "form": "int4-g32", "others": others,
    }  # fmt: skip
    found = open_checkpoint(tmp_path / "out").tensors
    packed = {name: found[name] for name in tensor_forms(found)}
    weights = sum(tensor.shape[0] * tensor.shape[1] for tensor in packed.values())
    assert facts["bits_per_weight"] == pytest.approx(
        8 * sum(tensor.nbytes for tensor in packed.values()) / weights, abs=1e-4
    )
    assert set(facts["relative_error"]) == {"int4-g32", "int8-g32"}
    head = relative_error(to_float32(model.tensors[HEAD]), dequantize(found[HEAD]))
    assert facts["relative_error"]["int8-g32"] == pytest.approx(head, rel=1e-3)


def test_reading_is_mapping(model: Checkpoint, tmp_path: Path):
    quantize_folder(model, tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    tensors = open_checkpoint(tmp_path / "out").tensors
    for tensor in tensors.values():
        for array in tensor.arrays().values() if isinstance(tensor, PackedWeight) else [tensor]:
            base = array
            while isinstance(base.base, np.ndarray):
                base = base.base
            assert isinstance(base, np.memmap)
            assert Path(base.filename) == path
            assert not array.flags.writeable
            assert array.flags.aligned or array.dtype == BFLOAT16
    # the codes begin on a cache line of the file
    first = open_safetensors(path)[next(iter(tensor_forms(tensors))) + ".codes"]
    assert first.ctypes.data % 64 == 0


def test_a_tied_embedding_is_looked_up_by_row(tied: Checkpoint, tmp_path: Path):
    quantize_folder(tied, tmp_path / "out")
    table = open_checkpoint(tmp_path / "out").tensors[EMBEDDING]
    ids = np.array([96, 0, 5, 5, 31])
    # 8 bits, groups of 32: half of 1/127 of a row's largest weight
    assert np.abs(dequantize_rows(table, ids) - tied.tensors[EMBEDDING][ids]).max() < 4 / 250


def test_tokenizer_and_template_come_along(model: Checkpoint, tmp_path: Path):
    full = Checkpoint(
        model.source, model.config, model.tensors, {"eos_token_id": 2}, '{"version": "1.0"}', {"a": 1}, "{{ messages }}"
    )
    quantize_folder(full, tmp_path / "out")
    found = open_checkpoint(tmp_path / "out")
    assert (found.generation_config, found.tokenizer_config) == ({"eos_token_id": 2}, {"a": 1})
    assert (found.tokenizer_json, found.chat_template) == ('{"version": "1.0"}', "{{ messages }}")


def test_dequantized_again(model: Checkpoint, tmp_path: Path):
    quantize_folder(model, tmp_path / "out")
    packed = open_checkpoint(tmp_path / "out")
    plain = dequantized(packed)
    write_folder(packed, tmp_path / "half", "bfloat16")
    written = open_checkpoint(tmp_path / "half")
    for config in (plain.config, written.config):
        assert "quantization_config" not in config
        assert config["hidden_size"] == model.config["hidden_size"]
    assert tensor_layout(plain.tensors)[UP] == (np.dtype("<f4"), model.tensors[UP].shape)
    assert np.array_equal(plain.tensors[UP], dequantize(packed.tensors[UP]))
    assert {array.dtype for array in written.tensors.values()} == {BFLOAT16}
    assert dequantized(model) is model


def test_what_is_quantized_already_is_kept_or_made_anew(model: Checkpoint, tmp_path: Path):
    first = quantize_checkpoint(model)
    again = quantize_checkpoint(first)
    assert all(again.tensors[name] is first.tensors[name] for name in tensor_forms(first.tensors))
    assert again.config["quantization_config"]["relative_error"] == {}
    smaller = quantize_checkpoint(first, group_size=128, keep=DOWN)
    assert smaller.tensors[UP].form == FORMS["int4-g128"]
    assert smaller.tensors[DOWN] is first.tensors[DOWN]
    write_quantized(smaller, tmp_path / "out")
    assert tensor_forms(open_checkpoint(tmp_path / "out").tensors) == tensor_forms(smaller.tensors)


def test_a_model_without_quantized_tensors_is_written_as_it_is(model: Checkpoint, tmp_path: Path):
    write_quantized(model, tmp_path / "out")
    found = open_checkpoint(tmp_path / "out")
    assert "quantization_config" not in found.config
    assert tensor_layout(found.tensors) == tensor_layout(model.tensors)


def test_stored_bytes(model: Checkpoint, tmp_path: Path):
    quantize_folder(model, tmp_path / "out")
    found = stored_bytes(open_checkpoint(tmp_path / "out").tensors)
    data = sum(array.nbytes for array in open_safetensors(tmp_path / "out" / "model.safetensors").values())
    assert sum(found.values()) == data
    assert set(found) == {"int4-g32", "int8-g32", "bfloat16", "float32"}
    assert found["bfloat16"] == 2 * 97 * 40


def test_one_tensor_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tinyinfer.quant.layout.VALUES_AT_ONCE", 1 << 14)  # so that work space is small beside it
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(12)]
    made = []

    def make(name: str) -> np.ndarray:
        made.append(name)
        return np.random.default_rng(len(made)).standard_normal((1024, 1024), np.float32)  # 4.2 MB

    tensors = LazyTensors({name: (np.dtype("<f4"), (1024, 1024)) for name in names}, make)
    tracemalloc.start()
    quantize_folder(Checkpoint(tmp_path, {}, tensors), tmp_path / "out")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made == names
    # a tensor, its result of 0.7 MB, and work space on each of up to four threads; all results alone would be 8 MB
    assert peak < 4.2e6 + 0.7e6 + 3e6


def test_progress_counts_every_byte(model: Checkpoint, tmp_path: Path):
    seen = []

    class Bar:
        def __init__(self, description: str, total: int, unit: str):
            self.total, self.done = total, 0
            seen.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *error: object):
            return None

        def update(self, n: int):
            self.done += n

    quantize_folder(model, tmp_path / "out", Bar)
    quantize_checkpoint(model, Bar)
    expected = sum(stored_bytes(open_checkpoint(tmp_path / "out").tensors).values())
    assert [(bar.done, bar.total) for bar in seen] == [(expected, expected)] * 2


# ---- whole or not at all


def test_a_tensor_that_can_not_be_quantized_leaves_nothing_behind(tmp_path: Path):
    _, tensors = random_model()
    tensors[DOWN][3, 3] = np.nan
    with pytest.raises(BadCheckpoint, match=rf"'{DOWN}'.*NaN"):
        quantize_folder(Checkpoint(tmp_path, {}, tensors), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_not_touched(model: Checkpoint, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(BadRequest, match="already there"):
        quantize_folder(model, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


# ---- files that lie


Arrays = dict[str, np.ndarray]


def rewrite(folder: Path, change: Callable[[Arrays, dict[str, Any], dict[str, str], dict[str, Any]], None]) -> None:
    """Change the arrays, the facts in the metadata, the metadata itself, or config.json's quantization_config."""
    path = folder / "model.safetensors"
    arrays = {name: np.array(array) for name, array in open_safetensors(path).items()}
    metadata, config = read_metadata(path), json.loads((folder / "config.json").read_text())
    facts = json.loads(metadata["weights"])
    change(arrays, facts, metadata, config["quantization_config"])
    if metadata.get("weights") is not None and facts is not None:
        metadata["weights"] = json.dumps(facts) if metadata["weights"].startswith("{") else metadata["weights"]
    layout = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    write_safetensors(path, layout, arrays.items(), metadata)
    (folder / "config.json").write_text(json.dumps(config))


LIES: dict[str, tuple[Callable, type, str]] = {
    "codes missing": (lambda a, f, m, c: a.pop(f"{UP}.codes"), BadCheckpoint, rf"'{UP}' in int4-g32: codes is missing"),
    "minimums missing": (lambda a, f, m, c: a.pop(f"{UP}.minimums"), BadCheckpoint, "minimums is missing"),
    "scales too few": (
        lambda a, f, m, c: a.update({f"{UP}.scales": a[f"{UP}.scales"][:-1]}), BadCheckpoint, "scales: expected",
    ),
    "codes of another type": (
        lambda a, f, m, c: a.update({f"{UP}.codes": a[f"{UP}.codes"].view(np.int8)}), BadCheckpoint, "expected uint8",
    ),
    "scales of another type": (
        lambda a, f, m, c: a.update({f"{UP}.scales": a[f"{UP}.scales"].view(np.uint16)}), BadCheckpoint, "found uint16",
    ),
    "more rows than there are": (lambda a, f, m, c: f[UP].update(shape=[57, 40]), BadCheckpoint, "codes: expected"),
    "huge": (lambda a, f, m, c: f[UP].update(shape=[2**31 - 1, 2**31 - 1]), BadCheckpoint, "codes: expected"),
    "negative": (lambda a, f, m, c: f[UP].update(shape=[-8, 40]), BadCheckpoint, "shape of two numbers from 1"),
    "a shape of words": (lambda a, f, m, c: f[UP].update(shape="56x40"), BadCheckpoint, "shape of two numbers"),
    "a true shape": (lambda a, f, m, c: f[UP].update(shape=[True, 40]), BadCheckpoint, "shape of two numbers"),
    "no shape": (lambda a, f, m, c: f[UP].pop("shape"), BadCheckpoint, "found None"),
    "an unknown form": (lambda a, f, m, c: f[UP].update(form="int3-g8"), UnsupportedModel, "'int3-g8'; known are"),
    "a form of lists": (lambda a, f, m, c: f[UP].update(form=[]), UnsupportedModel, "known are"),
    "another form": (lambda a, f, m, c: f[UP].update(form="int4-g64"), BadCheckpoint, "config.json says 'int4-g32'"),
    "another form in config": (lambda a, f, m, c: c.update(form="nf4-g64"), BadCheckpoint, "says 'nf4-g64'"),
    "others of another type": (lambda a, f, m, c: c.update(others=[]), BadCheckpoint, "config.json says"),
    "bits of words": (lambda a, f, m, c: c.update(bits_per_weight="5"), BadCheckpoint, "numbers from 0, found 5"),
    "errors of words": (lambda a, f, m, c: c.update(relative_error={"int4-g32": []}), BadCheckpoint, "be numbers"),
    "no errors": (lambda a, f, m, c: c.pop("relative_error"), BadCheckpoint, "numbers from 0, found .* and None"),
    "bits of NaN": (lambda a, f, m, c: c.update(bits_per_weight=float("nan")), BadCheckpoint, "from 0, found nan"),
    "bits without end": (lambda a, f, m, c: c.update(bits_per_weight=float("inf")), BadCheckpoint, "from 0, found inf"),
    "bits beyond floats": (lambda a, f, m, c: c.update(bits_per_weight=10**400), BadCheckpoint, "from 0, found 1000"),
    "true bits": (lambda a, f, m, c: c.update(bits_per_weight=True), BadCheckpoint, "from 0, found True"),
    "errors below 0": (lambda a, f, m, c: c.update(relative_error={"int4-g32": -1.0}), BadCheckpoint, "numbers from 0"),
    "minimums of a form without": (
        lambda a, f, m, c: (f[UP].update(form="int4-g32-symmetric"), c["others"].update({UP: "int4-g32-symmetric"})),
        BadCheckpoint, f"{UP}.minimums is there, but tensor '{UP}' in int4-g32-symmetric has none",
    ),
    "twice": (lambda a, f, m, c: a.update({UP: np.zeros((56, 40), np.float32)}), BadCheckpoint, "there twice"),
    "a tensor that is not there": (
        lambda a, f, m, c: f.update({"x": {"form": "int4-g32", "shape": [8, 32]}}), BadCheckpoint, "'x' in int4-g32",
    ),
    "facts that are no objects": (lambda a, f, m, c: f.update({UP: 3}), BadCheckpoint, "map names to objects"),
    "facts that are a list": (lambda a, f, m, c: m.update(weights="[]"), BadCheckpoint, "map names to objects"),
    "facts that are no JSON": (lambda a, f, m, c: m.update(weights="nope"), BadCheckpoint, "not valid JSON"),
    "facts nested deep": (lambda a, f, m, c: m.update(weights="[" * 200_000), BadCheckpoint, "not valid JSON"),
    "no metadata": (lambda a, f, m, c: m.clear(), BadCheckpoint, "the file does not"),
    "no claim": (lambda a, f, m, c: c.clear(), BadCheckpoint, "expected quantization_config|no quantization_config"),
    "a later file": (lambda a, f, m, c: m.update(version="2"), UnsupportedModel, "version '2'"),
    "a later config": (lambda a, f, m, c: c.update(version=2), UnsupportedModel, "version 2|version '2'"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused(model: Checkpoint, tmp_path: Path, lie: str):
    change, error, words = LIES[lie]
    quantize_folder(model, tmp_path / "out")
    rewrite(tmp_path / "out", change)
    tracemalloc.start()
    with pytest.raises(error, match=words) as caught:
        open_checkpoint(tmp_path / "out")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(tmp_path / "out") in str(caught.value)
    assert peak < 5e6


def test_an_honest_rewrite_is_read(model: Checkpoint, tmp_path: Path):
    """What the test above rewrites with changes nothing by itself."""
    quantize_folder(model, tmp_path / "out")
    before = {name: dequantize(tensor) for name, tensor in open_packed(tmp_path / "out").items()}
    rewrite(tmp_path / "out", lambda *parts: None)
    assert all(
        np.array_equal(dequantize(tensor), before[name]) for name, tensor in open_packed(tmp_path / "out").items()
    )


def open_packed(folder: Path) -> dict[str, PackedWeight]:
    tensors = open_checkpoint(folder).tensors
    return {name: tensors[name] for name in tensor_forms(tensors)}


def test_truncated(model: Checkpoint, tmp_path: Path):
    quantize_folder(model, tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TinyinferError, match="truncated"):
        open_checkpoint(tmp_path / "out")


def test_a_foreign_quantization_config_does_not_make_it_ours(tmp_path: Path):
    random_model(tmp_path / "model", quantization_config={"quant_method": "gptq"})
    with pytest.raises(BadCheckpoint, match="says that gptq quantized the weights"):
        open_checkpoint(tmp_path / "model")

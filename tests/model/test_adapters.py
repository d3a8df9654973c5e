"""Adapters over the tiny models: live and merged they give what PEFT computed, alone and beside each other."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.checkpoint.test_adapters import ADAPTERS, changed, prefixed, rewritten, tensors_of
from tests.kernels.tapes import run_by
from tests.tiny_models import GOLDEN
from tinyinfer import reference
from tinyinfer.cached_sequence import CachedSequence
from tinyinfer.checkpoint.safetensors import open_safetensors
from tinyinfer.checkpoint.source import Checkpoint, open_checkpoint, write_folder
from tinyinfer.config import ModelConfig, read_config
from tinyinfer.errors import BadCheckpoint, BadRequest, UnsupportedModel
from tinyinfer.model.adapters import Adapter, open_adapter
from tinyinfer.model.forward import Chunk, Model
from tinyinfer.model.merge import merged
from tinyinfer.model.tensors import collect_tensors, floats

TOLERANCE = 5e-5  # what golden logits are held to everywhere; both are float32, and 2e-6 apart here
BASES = {
    "llama-all": "llama", "llama-patterns": "llama", "qwen2-half": "qwen2", "phi3-fused": "phi3", "gpt2-conv": "gpt2",
    "gpt-neox-turns": "gpt-neox", "cohere-interleaved": "cohere", "mixtral-attention": "mixtral",
    "deepseek-v2-latent": "deepseek-v2-mla", "deepseek-v3-latent": "deepseek-v3-mla", "glm4-fused": "glm4",
    "falcon-one-norm": "falcon", "granite-scaled": "granite",
}  # fmt: skip


@cache
def base(name: str) -> tuple[Checkpoint, ModelConfig]:
    checkpoint = open_checkpoint(GOLDEN / name)
    return checkpoint, read_config(checkpoint.config)


def adapter(name: str) -> Adapter:
    return open_adapter(ADAPTERS / name, base(BASES[name])[1])


def golden(name: str) -> dict[str, np.ndarray]:
    return open_safetensors(ADAPTERS / name / "golden.safetensors")


@cache
def model_of(name: str) -> Model:
    checkpoint, config = base(name)
    return Model(config, collect_tensors(config, checkpoint.tensors))


def logits(model: Model, ids: np.ndarray, adapters=(), size: int = 24) -> np.ndarray:
    sequence, rows = model.new_cache().sequence(), []
    for begin in range(0, len(ids), size):
        part = ids[begin : begin + size]
        rows.append(model.forward([Chunk(sequence, part, len(ids), slice(None), adapters)]))
    return np.concatenate(rows)


# ---- PEFT's numbers


@pytest.mark.parametrize("name", BASES)
def test_live_logits(name: str):
    model, one, expected = model_of(BASES[name]), adapter(name), golden(name)
    model.set_adapters([one])
    plain = logits(model, expected["input_ids"])
    assert np.abs(plain - expected["logits"]).max() > 0.01  # the adapter does something
    for size in (24, 7, 1):
        found = logits(model, expected["input_ids"], [(one, 1.0)], size)
        assert np.abs(found - expected["logits"]).max() < TOLERANCE


@pytest.mark.parametrize("name", BASES)
def test_live_logits_without_compiled_kernels(name: str, monkeypatch: pytest.MonkeyPatch):
    run_by(monkeypatch, None)
    test_live_logits(name)


def test_two_adapters_at_once():
    model, expected = model_of("llama"), golden("llama-patterns")
    pair = adapter("llama-all"), adapter("llama-patterns")
    model.set_adapters(pair)
    for size in (24, 1):
        found = logits(model, expected["input_ids"], [(pair[1], 1.0), (pair[0], 1.0)], size)
        assert np.abs(found - expected["logits_with_llama-all"]).max() < TOLERANCE


@pytest.mark.parametrize("name", BASES)
def test_merged_logits(name: str):
    """Of the base widened to float32, as PEFT had it; by the reference, which runs all families."""
    checkpoint, config = base(BASES[name])
    wide = replace(checkpoint, tensors={name: floats(tensor) for name, tensor in checkpoint.tensors.items()})
    tensors = merged(wide, config, [(adapter(name), 1.0)]).tensors
    expected = golden(name)
    found = reference.forward(config, collect_tensors(config, tensors), expected["input_ids"])
    assert np.abs(found - expected["merged"]).max() < TOLERANCE


# ---- merged folders


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("dtype", [None, "float32", "float16"])
def test_a_merged_folder_holds_the_sums_rounded_once(tmp_path: Path, name: str, dtype: str | None):
    """What is merged differs by half a last place from the sum in float64; what is not, in nothing."""
    checkpoint, config = base(BASES[name])
    one, stored = adapter(name), open_safetensors(ADAPTERS / name / "adapter_model.safetensors")
    write_folder(merged(checkpoint, config, [(one, 0.75)], dtype), tmp_path / "out", dtype)
    found = open_checkpoint(tmp_path / "out")
    assert read_config(found.config) == config
    assert found.tensors.keys() == checkpoint.tensors.keys()
    relative = {None: 2.0**-8, "float32": 2.0**-24, "float16": 2.0**-11}[dtype]
    scales = {key.removesuffix(".T"): pair.scale for key, pair in one.tensors.items()}
    for tensor, before in checkpoint.tensors.items():
        after, before = floats(found.tensors[tensor]), floats(before)
        module = f"base_model.model.{tensor.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" in stored:
            scale = next(scale for key, scale in scales.items() if tensor.endswith(f".{key}"))
            a, b = (floats(stored[f"{module}.lora_{which}.weight"]).astype(np.float64) for which in "AB")
            more = 0.75 * scale * b @ a
            exact = before + (more.T if name == "gpt2-conv" else more)
            assert (np.abs(after - exact) <= 1.01 * relative * np.abs(exact) + 3e-7).all()  # float32's own sums of r
            assert np.abs(after - before).max() > 0.01
        else:
            assert np.array_equal(after, before.astype(dtype or "float32"))


@pytest.mark.parametrize("name", BASES)
def test_a_merged_model_runs_as_the_adapter_live(tmp_path: Path, name: str):
    """In float32 but for rounding; in bfloat16 weights are off by up to 2^-8 of themselves.

    That moves logits of order 1 a little, and may send a token or two of 24 to another expert.
    """
    checkpoint, config = base(BASES[name])
    one, ids = adapter(name), golden(name)["input_ids"]
    model = model_of(BASES[name])
    model.set_adapters([one])
    live = logits(model, ids, [(one, 1.0)])
    for dtype, bound in (("float32", TOLERANCE), ("bfloat16", 0.03)):
        write_folder(merged(checkpoint, config, [(one, 1.0)], dtype), tmp_path / dtype, dtype)
        tensors = open_checkpoint(tmp_path / dtype).tensors
        found = logits(Model(config, collect_tensors(config, tensors)), ids)
        differences = np.sort(np.abs(found - live).max(axis=1))
        assert differences[-1 if dtype == "float32" else -3] < bound


# ---- beside each other


def test_rows_of_one_step_with_other_adapters():
    """Each text of a mixed step gives what it gives alone: with one adapter, another, both at other scales, none."""
    model, ids = model_of("llama"), golden("llama-all")["input_ids"]
    one, other = adapter("llama-all"), adapter("llama-patterns")
    model.set_adapters([one, other])
    wishes = [(), ((one, 1.0),), ((other, 1.0),), ((one, 0.5), (other, -1.5)), ((other, 1.0),)]
    texts = [np.roll(ids, i)[: 10 + 3 * i] for i in range(5)]
    alone = [logits(model, text, wish) for text, wish in zip(texts, wishes, strict=True)]
    assert min(np.abs(alone[0][:5] - found[:5]).max() for found in alone[1:]) > 0.05
    cached = model.new_cache()
    sequences, done = [cached.sequence() for _ in texts], [0] * 5
    for counts in ([4, 1, 7, 3, 1], [1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [0, 9, 1, 1, 5], [4, 2, 7, 14, 14]):
        chunks, expected = [], []
        for i, count in enumerate(counts):
            if count:
                part = slice(done[i], done[i] + count)
                chunks.append(Chunk(sequences[i], texts[i][part], None, slice(None), wishes[i]))
                expected.append(alone[i][part])
                done[i] += count
        assert np.abs(model.forward(chunks) - np.concatenate(expected)).max() < TOLERANCE
    assert done == [10, 13, 16, 19, 22]


def test_without_adapters_the_tape_is_as_it_was():
    checkpoint, config = base("llama")
    model = Model(config, collect_tensors(config, checkpoint.tensors))
    before = list(model._tape._names)
    model.set_adapters([adapter("llama-all")])
    assert {*model._tape._names} - {*before} == {"narrow_row", "widen_part"}
    model.set_adapters([])
    assert model._tape._names == before


def test_an_adapter_that_is_not_at_hand():
    model, one = model_of("llama"), adapter("llama-all")
    model.set_adapters([])
    with pytest.raises(BadRequest, match="llama-all is not loaded, or no longer"):
        logits(model, np.arange(3), [(one, 1.0)])


def test_keys_and_values_of_other_adapters_are_not_used():
    model, ids = model_of("llama"), golden("llama-all")["input_ids"].tolist()
    one, other = adapter("llama-all"), adapter("llama-patterns")
    model.set_adapters([one, other])
    held = CachedSequence(model)
    for wish, again in [((), 0), ((), 23), (((one, 1.0),), 0), (((one, 1.0),), 23), (((one, 0.5),), 0),
                        (((other, 0.5),), 0), (((other, 0.5), (one, 1.0)), 0), ((), 0)]:  # fmt: skip
        found, kept = held.prefill(ids, wish)
        assert kept == again
        assert np.abs(found - logits(model, np.array(ids), wish)[-1]).max() < TOLERANCE
    held.prefill(ids[:-1], ((one, 1.0),))
    assert np.abs(held.step(ids[-1]) - golden("llama-all")["logits"][-1]).max() < TOLERANCE


def test_keys_computed_anew_go_through_the_adapter_too():
    """LongRoPE's, where the text outgrows the original context."""
    model, config = model_of("phi3-longrope"), base("phi3-longrope")[1]
    one = open_adapter(ADAPTERS / "phi3-fused", config)
    model.set_adapters([one])
    original = config.layers[0].rope.original_length
    ids = np.random.default_rng(0).integers(3, 300, original + 2).tolist()
    held = CachedSequence(model)
    held.prefill(ids[:-2], ((one, 1.0),))
    for length in (original + 1, original + 2):
        found, text = held.step(ids[length - 1]), np.array(ids[:length])
        assert np.abs(found - logits(model, text, [(one, 1.0)], length)[-1]).max() < TOLERANCE
        assert np.abs(found - logits(model, text, (), length)[-1]).max() > 0.01


# ---- what does not fit


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [
        ("llama-all", "phi3", "mlp.gate_proj' is no module of Phi3ForCausalLM; its layers have mlp.down"),
        ("gpt2-conv", "llama", "'transformer.h.0.attn.c_attn' is no module of LlamaForCausalLM"),
        ("phi3-fused", "llama", "mlp.gate_up_proj' is no module"),
        ("llama-all", "llama-mqa-bias", "the model's weight asks for"),
        ("qwen2-half", "gpt-neox", "is no module of GPTNeoXForCausalLM"),
    ],
)
def test_another_base(name: str, model: str, words: str):
    with pytest.raises(BadCheckpoint) as error:
        open_adapter(ADAPTERS / name, base(model)[1])
    assert words in str(error.value)
    assert name in str(error.value)


def test_a_base_of_another_class(tmp_path: Path):
    with pytest.raises(BadCheckpoint, match="made for MistralForCausalLM, but the model is LlamaForCausalLM"):
        open_adapter(changed(tmp_path, auto_mapping={"base_model_class": "MistralForCausalLM"}), base("llama")[1])


def test_tensors_that_do_not_fit(tmp_path: Path):
    folder = changed(tmp_path, target_modules=r".*")
    stored = tensors_of(folder)
    a, b = prefixed("1.self_attn.q_proj.lora_A"), prefixed("1.self_attn.q_proj.lora_B")

    def moved(module: str) -> dict[str, np.ndarray]:
        others = {name: array for name, array in stored.items() if name not in (a, b)}
        stem = f"base_model.model.{module}"
        return others | {f"{stem}.lora_A.weight": stored[a], f"{stem}.lora_B.weight": stored[b]}

    layers = "model.layers"
    cases = [
        (moved(f"{layers}.3.self_attn.q_proj"), BadCheckpoint, "is of layer 3, but the model has 3 layers"),
        (moved(f"{layers}.{'9' * 5000}.self_attn.q_proj"), BadCheckpoint, "is of layer 999999999999, but"),
        (moved(f"{layers}.1.self_attn.qq_proj"), BadCheckpoint, "q_proj' is no module of LlamaForCausalLM; its layers"),
        (moved(f"{layers}.1.self_attn.q_norm"), UnsupportedModel, "q_norm' can't be adapted in LlamaForCausalLM"),
        (moved(f"{layers}.x.self_attn.q_proj"), BadCheckpoint, "is no module of LlamaForCausalLM"),
        (moved(f"{layers}.01.self_attn.q_proj"), BadCheckpoint, "is no module of LlamaForCausalLM"),
        (stored | moved("layers.0.self_attn.q_proj"), BadCheckpoint, "self_attn.q_proj' is there twice"),
        (moved("lm_head"), UnsupportedModel, "'lm_head': only maps inside of layers can be adapted"),
        (moved("model.embed_tokens"), UnsupportedModel, "only maps inside of layers"),
        (stored | {a: stored[a][:, :63].copy()}, BadCheckpoint, "asks for A [4, 64] and B [64, 4], found [4, 63] and"),
        (stored | {b: stored[b][:40].copy()}, BadCheckpoint, "found [4, 64] and [40, 4]"),
        (
            {name: array for name, array in stored.items() if name not in (a, b)}, BadCheckpoint,
            "there are no matrices for 'model.layers.1.self_attn.q_proj', which adapter_config.json targets",
        ),
    ]  # fmt: skip
    for tensors, kind, words in cases:
        rewritten(folder, tensors)
        with pytest.raises(kind) as error:
            open_adapter(folder, base("llama")[1])
        assert words in str(error.value)
        assert len(str(error.value)) < 6000


def test_an_adapter_of_the_model_without_its_head(tmp_path: Path):
    """Trained on transformers' base class, whose modules' names are shorter."""
    folder = changed(tmp_path)
    rewritten(folder, {name.replace("model.model.model.", "model.model."): a for name, a in tensors_of(folder).items()})
    one, expected, model = open_adapter(folder, base("llama")[1]), golden("llama-all"), model_of("llama")
    model.set_adapters([one])
    assert np.abs(logits(model, expected["input_ids"], [(one, 1.0)]) - expected["logits"]).max() < TOLERANCE


def test_routers_need_not_be_there(tmp_path: Path):
    """An expression may fit their names, though PEFT found no linear map there."""
    folder = changed(tmp_path, "mixtral-attention", target_modules=r".*(q_proj|o_proj|gate)")
    assert len(open_adapter(folder, base("mixtral")[1]).tensors) == 5


def test_experts_are_refused(tmp_path: Path):
    folder = changed(tmp_path, "mixtral-attention", target_modules=r".*", exclude_modules=None)
    stored = tensors_of(folder)
    stem = "base_model.model.model.layers.0.block_sparse_moe.experts.3.w1"
    more = {f"{stem}.lora_A.weight": np.zeros((4, 64), "f4"), f"{stem}.lora_B.weight": np.zeros((96, 4), "f4")}
    rewritten(folder, stored | more)
    with pytest.raises(UnsupportedModel, match=r"experts\.3\.w1' can't be adapted in MixtralForCausalLM"):
        open_adapter(folder, base("mixtral")[1])


def test_routers_and_what_all_tokens_share(tmp_path: Path):
    """PEFT finds no linear maps there in transformers 5, but did before; live they are as merged, by the reference."""
    checkpoint, config = base("deepseek-v3-mla")
    rng, tensors = np.random.default_rng(3), {}
    names = ["gate", *(f"shared_experts.{name}_proj" for name in ("gate", "up", "down"))]
    for layer in (1, 2):
        for name in names:
            rows, columns = checkpoint.tensors[f"model.layers.{layer}.mlp.{name}.weight"].shape
            stem = f"{layer}.mlp.{name}.lora_"
            tensors[prefixed(f"{stem}A")] = rng.standard_normal((3, columns)).astype("f4") / 8
            tensors[prefixed(f"{stem}B")] = rng.standard_normal((rows, 3)).astype("f4") / 4
    folder = changed(tmp_path, r=3, target_modules=[f"mlp.{name}" for name in names])
    rewritten(folder, tensors)
    one, ids = open_adapter(folder, config), golden("deepseek-v3-latent")["input_ids"]
    added = merged(checkpoint, config, [(one, 1.0)], "float32").tensors
    expected = reference.forward(config, collect_tensors(config, added), ids)
    model = model_of("deepseek-v3-mla")
    model.set_adapters([one])
    assert np.abs(logits(model, ids, [(one, 1.0)]) - expected).max() < TOLERANCE
    assert np.abs(logits(model, ids) - expected).max() > 0.01


def test_what_stands_for_keys_and_values_is_refused(tmp_path: Path):
    folder = changed(tmp_path, "deepseek-v3-latent", target_modules=r".*")
    stored = tensors_of(folder)
    stem = "0.self_attn.kv_b_proj.lora_"
    more = {prefixed(f"{stem}A"): np.zeros((4, 32), "f4"), prefixed(f"{stem}B"): np.zeros((128, 4), "f4")}
    rewritten(folder, stored | more)
    with pytest.raises(UnsupportedModel, match="kv_b_proj' can't be adapted in DeepseekV3ForCausalLM"):
        open_adapter(folder, base("deepseek-v3-mla")[1])


def test_a_merge_needs_its_tensor():
    checkpoint, config = base("llama")
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if "1.self_attn.q_proj" not in name}
    with pytest.raises(BadCheckpoint, match=r"'model\.layers\.1\.self_attn\.q_proj\.weight' is missing, to which"):
        merged(replace(checkpoint, tensors=tensors), config, [(adapter("llama-all"), 1.0)])


def test_a_merge_beyond_what_float16_holds(tmp_path: Path):
    checkpoint, config = base("llama")
    huge = merged(checkpoint, config, [(adapter("llama-all"), 1e9)], "float16")
    with pytest.raises(BadRequest, match="beyond float16's"):
        write_folder(huge, tmp_path / "out", "float16")
    assert not list(tmp_path.iterdir())


def test_the_files_of_a_merged_model_are_read_by_others(tmp_path: Path):
    checkpoint, config = base("llama")
    write_folder(merged(checkpoint, config, [(adapter("llama-all"), 1.0)], "float16"), tmp_path / "out", "float16")
    assert safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors").keys() == checkpoint.tensors.keys()

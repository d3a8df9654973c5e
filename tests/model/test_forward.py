"""The cached forward pass against transformers' numbers, the reference, and float64: however a text is fed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import float64_model
from tests.tiny_models import ARCHITECTURES, GOLDEN, WINDOWED, random_model, random_runtime, write_model
from tinyinfer import reference
from tinyinfer.cache import KVCache, Sequence
from tinyinfer.checkpoint.safetensors import open_safetensors
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.config import read_config
from tinyinfer.generate import CachedSequence
from tinyinfer.model.forward import Chunk, Model
from tinyinfer.model.names import collect_tensors

# As in test_reference.py: float32 is 1e-6 to 5e-6 away from exact here, and the golden README allows 5e-5.
TOLERANCE = 5e-5
NEAR_TIE = 1e-3  # the golden README's word for two tokens that either may come first


@cache
def golden_model(name: str) -> tuple[Model, dict[str, np.ndarray]]:
    checkpoint = open_checkpoint(GOLDEN / name)
    config = read_config(checkpoint.config)
    model = Model(config, collect_tensors(config, checkpoint.tensors))
    return model, open_safetensors(GOLDEN / name / "golden.safetensors")


def feed(model: Model, sequence: Sequence, ids: np.ndarray, sizes: int | list[int]) -> np.ndarray:
    """All logits of a text fed in chunks, of one size or several in turn; each chunk says the text's whole length."""
    sizes = [sizes] * len(ids) if isinstance(sizes, int) else sizes
    ends = np.minimum(np.cumsum(sizes), len(ids))
    rows = []
    for begin, end in zip([0, *ends], ends, strict=False):
        if begin < end:
            rows.append(model.forward([Chunk(sequence, ids[begin:end], len(ids), slice(None))]))
    return np.concatenate(rows)


# ---- transformers' numbers


@pytest.mark.parametrize("block_size", [1, 4, 32])
@pytest.mark.parametrize("size", [48, 7, 1])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_golden_logits(name: str, size: int, block_size: int):
    model, golden = golden_model(name)
    sequence = KVCache(model.config, block_size).sequence()
    found = feed(model, sequence, golden["input_ids"], size)
    assert found.dtype == np.float32
    assert np.abs(found - golden["logits"]).max() < TOLERANCE
    assert sequence.length == 48


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_golden_greedy_continuations(name: str):
    """Token by token from the first 20, with transformers' own rules for rotary embeddings that change with length."""
    model, golden = golden_model(name)
    expected = golden["greedy_from_20"].tolist()
    held = CachedSequence(model)
    logits, cached = held.prefill(expected[:20])
    assert cached == 0
    for i in range(20, 60):
        best = int(logits.argmax())
        if best != expected[i]:
            assert logits[best] - logits[expected[i]] < NEAR_TIE, f"token {i}"
            return
        logits = held.step(expected[i])
    assert held.ids == expected


def test_the_compiled_and_the_plain_products_agree(monkeypatch: pytest.MonkeyPatch):
    from tinyinfer.kernels import matmul

    model, golden = golden_model("llama")
    compiled = feed(model, KVCache(model.config).sequence(), golden["input_ids"], 1)
    monkeypatch.setattr(matmul, "_compiled_types", dict)
    plain = feed(model, KVCache(model.config).sequence(), golden["input_ids"], 1)
    assert np.abs(compiled - plain).max() < TOLERANCE


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_of_every_float_type(tmp_path, dtype: str):
    """Also where they lie at odd addresses, as they may after a tensor of a few bytes."""
    config, tensors = random_model(seed=5, dtype=dtype)
    ids = np.arange(20) * 4
    exact = float64_model.logits(config, tensors, ids)
    write_model(tmp_path / "even", config, tensors, dtype)
    raw = (tmp_path / "even" / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_bytes((tmp_path / "even" / "config.json").read_bytes())
    odd = length + 1 + length % 2  # the data begins at an odd byte
    moved = odd.to_bytes(8, "little") + raw[8 : 8 + length].ljust(odd) + raw[8 + length :]
    (tmp_path / "odd" / "model.safetensors").write_bytes(moved)
    for name in ("even", "odd"):
        checkpoint = open_checkpoint(tmp_path / name)
        facts = read_config(checkpoint.config)
        model = Model(facts, collect_tensors(facts, checkpoint.tensors))
        for size in (20, 3, 1):
            found = feed(model, KVCache(facts).sequence(), ids, size)
            assert np.abs(found - exact).max() < TOLERANCE
    assert checkpoint.tensors["model.norm.weight"].ctypes.data % 2 == 1


# ---- the reference


@cache
def windowed() -> tuple[Model, Callable[[np.ndarray], np.ndarray]]:
    config, tensors = random_model(seed=1, **WINDOWED)
    facts = read_config(config)
    return Model(facts, collect_tensors(facts, tensors)), lambda ids: float64_model.logits(config, tensors, ids)


@pytest.mark.parametrize("block_size", [1, 2, 3, 32])
@pytest.mark.parametrize("length", [3, 4, 5, 9, 40])
def test_windows_however_a_prompt_is_fed(length: int, block_size: int):
    """Window 4, layers [sliding, sliding, full]."""
    model, exact = windowed()
    ids = np.random.default_rng(length).integers(0, 97, length)
    expected = exact(ids)
    for size in (length, 3, 1):
        found = feed(model, KVCache(model.config, block_size).sequence(), ids, size)
        assert np.abs(found - expected).max() < TOLERANCE


def test_a_window_hides_what_is_before_it():
    """With windows in all layers, what three layers of window 4 can't pass on makes no difference: 9 tokens back."""
    config, tensors = random_runtime(
        architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=4, num_hidden_layers=3
    )
    model = Model(config, tensors)
    ids = np.arange(30)
    changed = ids.copy()
    changed[:20] = 50
    last, also, differs = (
        model.forward([Chunk(KVCache(config).sequence(), np.concatenate([text, ids[20:n]]))])[0]
        for text, n in ((ids[:20], 30), (changed[:20], 30), (changed[:20], 29))
    )
    assert np.abs(last - also).max() < TOLERANCE
    assert np.abs(last - differs).max() > 0.01


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=8, max_size=8), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_any_way_to_cut_a_prompt(sizes: list[int], block_size: int, seed: int):
    model, exact = windowed()
    ids = np.random.default_rng(seed).integers(0, 97, sum(sizes))
    found = feed(model, KVCache(model.config, block_size).sequence(), ids, sizes)
    assert np.abs(found - exact(ids)).max() < TOLERANCE


def test_the_reference_and_the_cached_pass_on_a_longer_text():
    """More than two tiles of queries."""
    config, tensors = random_runtime(seed=2, max_position_embeddings=512, num_hidden_layers=2)
    ids = np.random.default_rng(0).integers(0, 97, 300)
    model = Model(config, tensors)
    expected = reference.forward(config, tensors, ids)
    for sizes in ([300], [129, 128, 43], [1, 299]):
        assert np.abs(feed(model, KVCache(config).sequence(), ids, sizes) - expected).max() < TOLERANCE


# ---- several sequences in one step


def alone(model: Model, ids: list[int]) -> np.ndarray:
    return model.forward([Chunk(KVCache(model.config).sequence(), np.array(ids), logits=slice(None))])


@pytest.mark.parametrize("kind", ["full", "windowed"])
@pytest.mark.parametrize("block_size", [1, 3, 32])
def test_a_ragged_batch_equals_each_alone(kind: str, block_size: int):
    """Sequences that grow in turn, so that their blocks interleave: joined, left, mixed with prefill at each step."""
    model = windowed()[0] if kind == "windowed" else Model(*random_runtime(seed=4))
    cache = KVCache(model.config, block_size)
    rng = np.random.default_rng(7)
    texts = {name: rng.integers(0, 97, length) for name, length in {"a": 40, "b": 12, "c": 3, "d": 25}.items()}
    expected = {name: alone(model, ids) for name, ids in texts.items()}
    schedule = [
        {"a": 7}, {"a": 1, "b": 5}, {"b": 1, "a": 1, "c": 3}, {"d": 11, "b": 1, "a": 2}, {"d": 1, "a": 9, "b": 4},
        {"a": 1, "d": 1}, {"d": 12, "b": 1, "a": 19},
    ]  # fmt: skip
    sequences = {name: cache.sequence() for name in texts}
    for step in schedule:
        places = {name: slice(sequences[name].length, sequences[name].length + count) for name, count in step.items()}
        chunks = [Chunk(sequences[name], texts[name][place], logits=slice(None)) for name, place in places.items()]
        rows = np.split(model.forward(chunks), np.cumsum(list(step.values()))[:-1])
        for (name, place), found in zip(places.items(), rows, strict=True):
            assert np.abs(found - expected[name][place]).max() < TOLERANCE, (name, place)
    assert {name: sequence.length for name, sequence in sequences.items()} == {"a": 40, "b": 12, "c": 3, "d": 25}


def test_some_interleaved_blocks_really_are_not_in_a_row():
    """The test above would prove less if every sequence were lucky."""
    model = Model(*random_runtime(num_hidden_layers=1))
    cache = KVCache(model.config, 2)
    first, second = cache.sequence(), cache.sequence()
    for _ in range(3):
        model.forward([Chunk(first, np.arange(2)), Chunk(second, np.arange(2))])
    assert first.tables[0].blocks == [0, 2, 4]
    assert isinstance(first.tables[0].slots(0, 6), np.ndarray)
    assert isinstance(first.tables[0].slots(2, 4), slice)


def test_only_the_logits_asked_for():
    model = Model(*random_runtime())
    ids = np.arange(9)
    every = alone(model, ids)

    def ask(*slices: slice) -> np.ndarray:
        return model.forward([Chunk(KVCache(model.config).sequence(), ids, logits=rows) for rows in slices])

    assert ask(slice(-1, None)) == pytest.approx(every[-1:], abs=TOLERANCE)
    assert ask(slice(2, 5), slice(0, 0), slice(-1, None)) == pytest.approx(every[[2, 3, 4, 8]], abs=TOLERANCE)
    assert model.forward([Chunk(KVCache(model.config).sequence(), ids)]).shape == (1, 97)
    assert ask(slice(0, 0)).shape == (0, 97)


def test_a_rewound_sequence_goes_on_as_if_it_had_never_been_longer():
    model = Model(*random_runtime())
    ids = np.arange(20)
    expected = alone(model, ids)
    sequence = KVCache(model.config, 4).sequence()
    model.forward([Chunk(sequence, np.arange(50, 65))])
    sequence.rewind(0)
    model.forward([Chunk(sequence, ids[:8])])
    model.forward([Chunk(sequence, np.arange(70, 90))])
    sequence.rewind(8)
    found = model.forward([Chunk(sequence, ids[8:], logits=slice(None))])
    assert np.abs(found - expected[8:]).max() < TOLERANCE


def test_a_step_that_fails_half_way_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C in the middle of a layer: the sequence is as long as before and goes on rightly."""
    model = Model(*random_runtime())
    ids = np.arange(12)
    sequence = KVCache(model.config, 4).sequence()
    model.forward([Chunk(sequence, ids[:5])])
    with monkeypatch.context() as patch:
        patch.setattr(model.layers[1], "down", lambda x: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model.forward([Chunk(sequence, np.arange(50, 59))])
    assert sequence.length == 5
    found = model.forward([Chunk(sequence, ids[5:], logits=slice(None))])
    assert np.abs(found - alone(model, ids)[5:]).max() < TOLERANCE

"""The cached forward pass against transformers' numbers, the reference, and float64: however a text is fed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import float64_model
from tests.interrupts import interrupt
from tests.kernels.tapes import run_by
from tests.tiny_models import (
    ARCHITECTURES,
    GOLDEN,
    LLAMA_LIKE,
    VARIANTS,
    WINDOWED,
    golden_folder,
    random_model,
    random_runtime,
    write_model,
)
from tinyinfer import reference
from tinyinfer.cache import KVCache, Sequence
from tinyinfer.cached_sequence import CachedSequence
from tinyinfer.checkpoint.safetensors import open_safetensors, to_float32
from tinyinfer.checkpoint.source import open_checkpoint
from tinyinfer.config import AFTER, BEFORE, read_config
from tinyinfer.errors import UnsupportedModel
from tinyinfer.model.forward import MOST_ROWS, Chunk, Model
from tinyinfer.model.tensors import collect_tensors
from tinyinfer.model.tensors import floats as as_floats
from tinyinfer.quant import FORMS, quantize

# As in test_reference.py: float32 is 1e-6 to 5e-6 away from exact here, and the golden README allows 5e-5.
TOLERANCE = 5e-5
NEAR_TIE = 1e-3  # the golden README's word for two tokens that either may come first


@cache
def golden_model(name: str) -> tuple[Model, dict[str, np.ndarray]]:
    folder = golden_folder(name)
    checkpoint = open_checkpoint(folder)
    config = read_config(checkpoint.config)
    model = Model(config, collect_tensors(config, checkpoint.tensors))
    return model, open_safetensors(folder / "golden.safetensors")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations in NumPy, as with TINYINFER_KERNELS=numpy."""
    run_by(monkeypatch, None)


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


@pytest.mark.parametrize("name", ARCHITECTURES + VARIANTS)
def test_golden_logits_of_weights_in_float32(name: str):
    """Nothing is copied by widening then, so what the kernels see are views of the file's arrays."""
    checkpoint = open_checkpoint(golden_folder(name))
    tensors = {name: to_float32(array) for name, array in checkpoint.tensors.items()}
    config = read_config(checkpoint.config)
    model, golden = Model(config, collect_tensors(config, tensors)), golden_model(name)[1]
    found = feed(model, model.new_cache().sequence(), golden["input_ids"], 48)
    assert np.abs(found - golden["logits"]).max() < TOLERANCE


@pytest.mark.parametrize("size", [48, 7, 1])
@pytest.mark.parametrize("name", ARCHITECTURES + VARIANTS)
def test_golden_logits(name: str, size: int):
    """Whole, in chunks and token by token; the windows of 6 and 8 are longer and shorter than blocks."""
    model, golden = golden_model(name)
    sequence = KVCache(model.config, {48: 4, 7: 32, 1: 7}[size]).sequence()
    found = feed(model, sequence, golden["input_ids"], size)
    assert found.dtype == np.float32
    assert np.abs(found - golden["logits"]).max() < TOLERANCE
    assert sequence.length == len(golden["input_ids"])


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("olmo2", {"residual_scale": 0.5}, "a scale of what layers add, without norms before"),
        ("mixtral", {"gated": False}, "mixtures of experts with norms after or without gates"),
        ("mixtral", {"layer_norms": BEFORE + AFTER}, "mixtures of experts with norms after or without gates"),
    ],
)
def test_facts_that_no_family_has_together_are_refused(name: str, changes: dict, reason: str):
    model, _ = golden_model(name)
    with pytest.raises(UnsupportedModel, match=f"^{model.config.architecture}: {reason} can't be run yet"):
        Model(replace(model.config, **changes), model.tensors)


def test_no_text_goes_beyond_the_positions_that_were_learned():
    model, _ = golden_model("gpt2-unscaled")  # 128 of them
    sequence = KVCache(model.config).sequence()
    model.forward([Chunk(sequence, np.arange(124) % 64)])
    with pytest.raises(ValueError, match="the model has learned 128 positions, found a text of 129"):
        model.forward([Chunk(sequence, np.arange(5))])
    model.forward([Chunk(sequence, np.arange(4))])
    assert sequence.length == 128


@pytest.mark.parametrize("name", ["gpt2", "gpt-oss", "deepseek-v3-mla", "mpt-alibi", "falcon-grouped", "cohere2"])
def test_texts_beside_each_other_say_what_each_says_alone(name: str):
    """Positions, biases, sinks, experts and short vectors are each text's own, whatever stands in the same step."""
    model, golden = golden_model(name)
    ids, cache = golden["input_ids"], KVCache(model.config, 4)
    alone = feed(model, cache.sequence(), ids[:30], 30)
    texts = [cache.sequence() for _ in range(3)]
    for sequence, held in zip(texts, (0, 7, 20), strict=True):
        if held:
            model.forward([Chunk(sequence, ids[:held])])
    chunks = [Chunk(s, ids[s.length : s.length + 10], logits=slice(None)) for s in texts]
    found = model.forward(chunks)
    expected = np.concatenate([alone[:10], alone[7:17], alone[20:30]])
    assert np.abs(found - expected).max() < TOLERANCE


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


@pytest.mark.parametrize("size", [48, 1])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_golden_logits_without_compiled_kernels(name: str, size: int, plain: None):
    model, golden = golden_model(name)
    found = feed(model, KVCache(model.config, 4).sequence(), golden["input_ids"], size)
    assert np.abs(found - golden["logits"]).max() < TOLERANCE


def test_a_text_begun_compiled_goes_on_in_numpy_and_the_other_way(monkeypatch: pytest.MonkeyPatch):
    """Both keep the same cache."""
    model, golden = golden_model("gemma3")
    for first in (True, False):
        sequence, found = KVCache(model.config, 4).sequence(), []
        for part, compiled in ((slice(0, 20), first), (slice(20, 48), not first)):
            run_by(monkeypatch, 2 if compiled else None)
            found.append(model.forward([Chunk(sequence, golden["input_ids"][part], 48, slice(None))]))
        assert np.abs(np.concatenate(found) - golden["logits"]).max() < TOLERANCE


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
    assert second.tables[0].blocks == [1, 3, 5]


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


@pytest.mark.parametrize("done", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_a_step_that_fails_half_way_changes_nothing(monkeypatch: pytest.MonkeyPatch, done: float):
    """Ctrl-C in the middle of a layer: the sequence is as long as before and goes on rightly."""
    model = Model(*random_runtime())
    ids = np.arange(12)
    sequence = KVCache(model.config, 4).sequence()
    model.forward([Chunk(sequence, ids[:5])])
    with monkeypatch.context() as patch:
        interrupt(patch, model, KeyboardInterrupt, done)
        with pytest.raises(KeyboardInterrupt):
            model.forward([Chunk(sequence, np.arange(50, 59))])
    assert sequence.length == 5
    found = model.forward([Chunk(sequence, ids[5:], logits=slice(None))])
    assert np.abs(found - alone(model, ids)[5:]).max() < TOLERANCE


@pytest.mark.parametrize("counts", [[MOST_ROWS + 1], [MOST_ROWS, 1], [200, 200, 200]])
def test_more_tokens_than_a_step_takes_are_refused(counts: list[int]):
    model = Model(*random_runtime(num_hidden_layers=1, max_position_embeddings=1024))
    cache = KVCache(model.config)
    sequences = [cache.sequence() for _ in counts]
    chunks = [Chunk(s, np.zeros(n, int)) for s, n in zip(sequences, counts, strict=True)]
    with pytest.raises(ValueError, match=f"at most {MOST_ROWS} new tokens"):
        model.forward(chunks)
    assert cache.nbytes == 0
    assert all(sequence.length == 0 for sequence in sequences)
    assert model.forward([Chunk(sequences[0], np.zeros(MOST_ROWS, int))]).shape == (1, 97)


def test_two_chunks_of_one_sequence_are_refused():
    model = Model(*random_runtime(num_hidden_layers=1))
    sequence = KVCache(model.config).sequence()
    with pytest.raises(ValueError, match="of different sequences"):
        model.forward([Chunk(sequence, np.array([1])), Chunk(sequence, np.array([2]))])


@pytest.mark.parametrize("size", [1, 5, None])
def test_a_chunk_without_tokens_takes_no_part(monkeypatch: pytest.MonkeyPatch, size: int | None):
    run_by(monkeypatch, size)
    model = Model(*random_runtime())
    ids, none = np.arange(9), np.array([], int)
    cache = KVCache(model.config)
    sequences = [cache.sequence() for _ in range(3)]
    for chunks in ([none, ids, none], [none, none, none]):
        found = model.forward([Chunk(s, part, logits=slice(None)) for s, part in zip(sequences, chunks, strict=True)])
        assert np.abs(found - alone(model, ids)[: len(found)]).max(initial=0) < TOLERANCE
    assert [sequence.length for sequence in sequences] == [0, 9, 0]


# ---- long texts, whose past is looked at in stretches by as many threads as there are


def one_head(**changes) -> Model:
    """So few heads that every thread needs a stretch to have anything to do."""
    return Model(
        *random_runtime(3, max_position_embeddings=4096, num_attention_heads=2, num_key_value_heads=1, **changes)
    )


@cache
def long_models() -> dict[str, Model]:
    windows = WINDOWED | {"sliding_window": 300, "num_attention_heads": 2, "num_key_value_heads": 1}
    return {
        "full": one_head(num_hidden_layers=2),
        "windowed": Model(*random_runtime(4, **windows, max_position_embeddings=4096)),
    }


def decode(model: Model, lengths: list[int], team: int | None, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Logits of two tokens in turn after texts of these lengths, all in one step; None: in NumPy."""
    run_by(monkeypatch, team)
    kv = KVCache(model.config, 32)
    sequences = [kv.sequence() for _ in lengths]
    for sequence, length in zip(sequences, lengths, strict=True):
        ids = np.random.default_rng(length).integers(0, 97, length)
        for begin in range(0, length, MOST_ROWS):
            model.forward([Chunk(sequence, ids[begin : begin + MOST_ROWS])])
    return np.stack([model.forward([Chunk(sequence, np.array([id])) for sequence in sequences]) for id in (5, 6)])


@pytest.mark.parametrize("lengths", [[255], [256], [700], [2300], [900, 2], [1, 400, 31, 1300]], ids=str)
@pytest.mark.parametrize("kind", ["full", "windowed"])
def test_a_past_in_stretches_is_the_past_in_one(monkeypatch: pytest.MonkeyPatch, kind: str, lengths: list[int]):
    """More threads than heads, short texts beside long ones, windows that begin inside a stretch.

    Shares of a thousand keys, and logits of up to 8, are rounded twice as far as in the short texts above.
    """
    model = long_models()[kind]
    expected = decode(model, lengths, None, monkeypatch)
    for team in (1, 2, 3, 9):
        found = decode(model, lengths, team, monkeypatch)
        assert np.abs(found - expected).max() < 2 * TOLERANCE, team


def test_stretches_and_threads_do_not_change_the_last_bit_from_run_to_run(monkeypatch: pytest.MonkeyPatch):
    model = long_models()["full"]
    first = decode(model, [700], 3, monkeypatch)
    assert all(np.array_equal(decode(model, [700], 3, monkeypatch), first) for _ in range(5))


def test_one_thread_and_many_give_the_same_bits_where_nothing_is_split(monkeypatch: pytest.MonkeyPatch):
    model, golden = golden_model("llama")
    found = []
    for team in (1, 2, 5):
        run_by(monkeypatch, team)
        found.append(feed(model, KVCache(model.config).sequence(), golden["input_ids"], [20, 1, 7, 20]))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


# ---- quantized weights


@cache
def quantized_model(name: str, form: str) -> tuple[Model, np.ndarray, np.ndarray]:
    """A golden model with every matrix quantized, ids, and what float64 makes of the same weights."""
    checkpoint = open_checkpoint(GOLDEN / name)
    packed = {
        key: quantize(array, form) if array.ndim == 2 else array for key, array in dict(checkpoint.tensors).items()
    }
    floats = {key: as_floats(array) for key, array in packed.items()}
    config = read_config(checkpoint.config)
    ids = open_safetensors(GOLDEN / name / "golden.safetensors")["input_ids"][:20]
    exact = float64_model.logits(checkpoint.config, floats, ids)
    return Model(config, collect_tensors(config, packed)), ids, exact


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LLAMA_LIKE)
def test_quantized_weights_with_activations_in_8_bits(name: str, form: str):
    """A code is off by up to half a step of max / 127, 0.3 steps in the mean square.

    The largest of 32 normal numbers is about 2.1 of their size, of a long-tailed gate's up to 5, so each product is off
    by 0.5 % to 1 %. Errors of the four products in a row of each layer and of the head add up as squares: 1 % times
    sqrt(4 layers + 1) at most, of the size of the logits.
    """
    model, ids, exact = quantized_model(name, form)
    bound = 0.01 * np.sqrt(4 * model.config.num_layers + 1)
    for size in (20, 3, 1):
        found = feed(model, KVCache(model.config, 4).sequence(), ids, size)
        assert np.linalg.norm(found - exact) < bound * np.linalg.norm(exact)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3", "llama-mqa-bias"])
def test_quantized_weights_in_numpy_meet_activations_as_they_are(name: str, form: str, plain: None):
    """Dequantized weights of order 1 in float32, so as near as unquantized ones."""
    model, ids, exact = quantized_model(name, form)
    for size in (20, 1):
        found = feed(model, KVCache(model.config, 4).sequence(), ids, size)
        assert np.abs(found - exact).max() < 1e-4


OTHERS = [
    "gpt2", "cohere", "falcon-grouped", "gpt-neox", "phi", "olmo2", "mixtral", "qwen3-moe", "gpt-oss",
    "deepseek-v2-mla", "deepseek-v3-mla", "deepseek-v2-groups",
]  # fmt: skip


@pytest.mark.parametrize("form", ["int4-g32", "int8-row", "nf4-g64-double"])
@pytest.mark.parametrize("name", OTHERS)
def test_quantized_models_of_other_families(monkeypatch: pytest.MonkeyPatch, name: str, form: str):
    """Against the reference on the same codes: exactly where activations stay as they are, nearly where they do not.

    How near: see above; what goes to one expert goes through no more products, and norms after layers make what these
    are wrong by no smaller than x. What is rounded may send a row to another expert that is nearly as good, and then
    it is another row: half of the rows must be near.
    """
    checkpoint = open_checkpoint(golden_folder(name))
    matrix = re.compile(r"(?<!gate)(?<!router)\.weight$")
    packed = {
        key: quantize(as_floats(array), form) if array.ndim == 2 and matrix.search(key) else array
        for key, array in checkpoint.tensors.items()
    }
    config = read_config(checkpoint.config)
    tensors = collect_tensors(config, packed)
    ids = np.arange(20) * 3
    exact = reference.forward(config, tensors, ids)
    for team, bound in ((None, 1e-4), (2, 0.05)):
        run_by(monkeypatch, team)
        model = Model(config, tensors)
        for size in (20, 1):
            found = feed(model, KVCache(config, 4).sequence(), ids, size)
            off = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
            assert np.median(off) < bound
            assert team or off.max() < bound


def test_a_quantized_text_does_not_depend_on_how_it_is_fed_or_by_how_many_threads(monkeypatch: pytest.MonkeyPatch):
    """A row's codes do not depend on its neighbours; but float32 sums may, and then a code may fall to the next.

    Such a step is 1/127 of a group's largest, as one of hundreds that a logit is made of.
    """
    model, ids, exact = quantized_model("llama", "int4-g32")
    found = []
    for team, size in ((1, 20), (3, 20), (2, 7), (1, 1)):
        run_by(monkeypatch, team)
        found.append(feed(model, KVCache(model.config).sequence(), ids, size))
    assert np.array_equal(found[0], found[1])
    for other in found[2:]:
        assert np.linalg.norm(other - found[0]) < 0.005 * np.linalg.norm(exact)


def test_quantized_and_float_weights_side_by_side():
    """Query, key and value of different kinds: each product takes x as it needs it."""
    checkpoint = open_checkpoint(GOLDEN / "llama")
    tensors = dict(checkpoint.tensors)
    forms = {"q_proj": "int4-g32", "k_proj": "int8-row", "gate_proj": "nf4-g64", "down_proj": "int4-g128-symmetric"}
    for key, array in tensors.items():
        for part, form in forms.items():
            if part in key:
                tensors[key] = quantize(array, form)
    config = read_config(checkpoint.config)
    floats = {key: as_floats(array) for key, array in tensors.items()}
    ids = np.arange(20) * 7
    exact = float64_model.logits(checkpoint.config, floats, ids)
    found = feed(Model(config, collect_tensors(config, tensors)), KVCache(config).sequence(), ids, [9, 1, 10])
    assert np.linalg.norm(found - exact) < 0.03 * np.linalg.norm(exact)  # as above, and fewer products

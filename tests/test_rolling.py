"""Texts that outgrow their context: what stays, in which places, and that it is told.

The rule is computed a second time in float64, token by token, with the functions of `float64_model.py`: there keys are
kept as they were before rotation, and rotated anew for every token by where they stand then. Architectures that it does
not know are held to another rule: with one layer, keys and values depend on nothing but a token and its place, so that
a text that has rolled equals a cold run of what is left of it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyinfer
from tests import float64_model
from tests.chain_models import chain_checkpoint, say
from tests.float64_model import (
    attended,
    embedded,
    layer,
    projected,
    put_out,
    rope_of,
    scored,
    shape,
    turned,
    turns,
    window_of,
)
from tests.test_session import Random, common, text
from tests.tiny_models import ARCHITECTURES, LLAMA_LIKE, WINDOWED, golden_folder
from tinyinfer import LLM, cached_sequence
from tinyinfer.cached_sequence import CachedSequence
from tinyinfer.checkpoint.safetensors import open_safetensors, to_float32
from tinyinfer.errors import BadRequest, ContextOverflow
from tinyinfer.model.forward import Model
from tinyinfer.rolling import Rolling, check_rolling

TOLERANCE = 5e-5  # as in `test_session.py`: logits of order 1, a few layers of float32
CONTEXT = 20
ROLLING = Rolling(CONTEXT, 4)  # 4 stay, 8 of 16 go


def rolled_logits(config: dict[str, Any], tensors: dict, ids: list[int], rolling: Rolling) -> np.ndarray:
    """Logits after each token, float64 [n, vocab]: the rule, from config.json's keys."""
    w = {name: array.astype(np.float64) for name, array in tensors.items()}
    kept: list[tuple[list, list]] = [([], []) for _ in range(config["num_hidden_layers"])]
    found = []
    for id in ids:
        if len(kept[0][0]) == rolling.context:
            for lists in kept:
                for held in lists:
                    del held[rolling.keep : rolling.keep + rolling.drop]
        x = embedded(config, w, [id])
        for i, held in enumerate(kept):
            x = layer(config, w, i, x, lambda normed, i=i, held=held: look(config, w, i, normed, *held))
        found.append(scored(config, w, x)[0])
    return np.array(found)


def look(config: dict[str, Any], w: dict, index: int, x: np.ndarray, keys: list, values: list) -> np.ndarray:
    """One token's attention over lists of keys that nothing has rotated yet, and of values."""
    (query,), (key,), (value,) = projected(config, w, index, x)
    keys.append(key)
    values.append(value)
    place, rope, window = len(keys) - 1, rope_of(config, index), window_of(config, index)
    first = 0 if window is None else max(place - window + 1, 0)

    def at(p: int, row: np.ndarray) -> np.ndarray:
        return turned(row, turns(rope, shape(config)[2], config["max_position_embeddings"], p, place + 1))

    seen = np.array([at(p, keys[p]) for p in range(first, place + 1)])
    return put_out(w, index, attended(config, at(place, query), seen, np.array(values[first:]))[None])


KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "windows": WINDOWED,
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "some turn": {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0,
                                      "original_max_position_embeddings": 32}},
    "slower": {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}},
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def random(request: pytest.FixtureRequest) -> Random:
    return Random(**KINDS[request.param])


@pytest.fixture(scope="module")
def plain() -> Random:
    return Random()


def near(found: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


# ---- the rule


@pytest.mark.parametrize("rolling", [ROLLING, Rolling(19, 4), Rolling(20, 0), Rolling(20, 1), Rolling(20, 12)])
@pytest.mark.parametrize("prompt", [1, 20, 55])
def test_logits_are_those_of_the_rule(random: Random, rolling: Rolling, prompt: int):
    ids = text(1, 70)
    expected = rolled_logits(random.config, random.tensors, ids, rolling)
    held = random.held()
    near(held.prefill(ids[:prompt], rolling=rolling)[0], expected[prompt - 1])
    for n in range(prompt, len(ids)):
        near(held.step(ids[n]), expected[n])
    assert held.ids == ids
    rolls = -(-(70 - rolling.context) // rolling.drop)
    assert held.dropped == rolls * rolling.drop
    assert held.sequence.length == len(ids) - held.dropped


def test_without_more_than_the_context_nothing_happens(plain: Random):
    held = plain.held()
    near(held.prefill(text(1, CONTEXT), rolling=ROLLING)[0], plain.cold(text(1, CONTEXT)))
    assert held.dropped == 0
    assert plain.check(held, [*text(1, CONTEXT), 5]) == CONTEXT


@pytest.mark.parametrize("chunk", [1, 3, 7, 512])
def test_chunks_make_no_difference(random: Random, chunk: int, monkeypatch: pytest.MonkeyPatch):
    ids = text(2, 50)
    expected = rolled_logits(random.config, random.tensors, ids, ROLLING)
    monkeypatch.setattr(cached_sequence, "PREFILL_CHUNK", chunk)
    held = random.held()
    near(held.prefill(ids, rolling=ROLLING)[0], expected[-1])
    rows: list[np.ndarray] = []
    held.prefill(ids, read=lambda some: rows.append(some.copy()), rolling=ROLLING)
    near(np.concatenate(rows), expected)


@pytest.mark.parametrize("name", [name for name in LLAMA_LIKE if "dynamic" not in name and "longrope" not in name])
def test_golden_models(name: str):
    folder = golden_folder(name)
    llm = tinyinfer.load(folder, kv_dtype="float32")
    config = json.loads((folder / "config.json").read_text())
    files = [open_safetensors(file) for file in folder.glob("model*.safetensors")]
    tensors = {name: to_float32(array) for file in files for name, array in file.items()}
    ids = [id % llm.config.vocab_size for id in text(3, 50)]
    window = max([layer.window or 0 for layer in llm.config.layers])
    rolling = Rolling(max(CONTEXT, 2 * window + 6), 4)
    held = CachedSequence(llm.model)
    found = held.prefill(ids, rolling=rolling)[0]
    assert held.dropped
    near(found, rolled_logits(config, tensors, ids, rolling)[-1])


def one_layer(name: str) -> Model:
    """A golden model's first layer alone."""
    llm = tinyinfer.load(golden_folder(name), kv_dtype="float32")
    config = replace(llm.config, layers=llm.config.layers[:1])
    return Model(config, replace(llm.model.tensors, layers=llm.model.tensors.layers[:1]), kv_dtype="float32")


LEARNED = ["gpt2", "opt"]
STRETCHED = ["llama-rope-dynamic", "phi3-longrope"]


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in LEARNED + STRETCHED])
def test_one_layer_of_every_architecture_equals_a_cold_run_of_what_is_left(name: str):
    model = one_layer(name)
    ids = [id % model.config.vocab_size for id in text(4, 45)]
    rolling = Rolling(26, 4)
    check_rolling(model.config, rolling)
    held, cold = CachedSequence(model), CachedSequence(model)
    found, _ = held.prefill(ids, rolling=rolling)
    left = ids[:4] + ids[4 + held.dropped :]
    assert held.dropped == 22
    near(found, cold.prefill(left)[0])
    for id in text(5, 3):
        near(held.step(id % model.config.vocab_size), cold.step(id % model.config.vocab_size))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 0.03), ("int8", 0.6)])
def test_rounded_keys_are_rounded_once_more_and_not_more_often(random: Random, dtype: str, tolerance: float):
    """The largest errors seen are half of the tolerance, in Gemma's windows, whose logits reach 8, and a fifth in the
    others; they are as large before anything has rolled, and don't grow with every time that something does."""
    llm = LLM(random.llm.checkpoint, kv_dtype=dtype)
    ids = text(6, 120)
    held = CachedSequence(llm.model)
    found = [held.prefill(ids[:10], rolling=ROLLING)[0]] + [held.step(id) for id in ids[10:]]
    expected = rolled_logits(random.config, random.tensors, ids, ROLLING)[9:]
    errors = np.abs(np.array(found) - expected).max(1)
    assert errors.max() < tolerance
    assert np.median(errors[-30:]) < 2 * np.median(errors[:30])  # the last have rolled ten times more


# ---- edited texts


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["full", "windows"]),
    edits=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 30), st.integers(0, 12)), min_size=1, max_size=4),
)
def test_any_edits_of_a_text_that_rolls_equal_a_cold_run(kind: str, edits: list[tuple[int, int, int]]):
    random = RANDOM.setdefault(kind, Random(**KINDS[kind]))
    held = random.held()
    for number, (kept, added, answered) in enumerate(edits):
        ids = held.ids[:kept] + text(number, added)
        before = list(held.ids)
        logits, found = held.prefill(ids, rolling=ROLLING)
        assert found <= min(common(before, ids), len(ids) - 1)
        near(logits, random.held().prefill(ids, rolling=ROLLING)[0])
        for id in text(number + 100, answered):
            held.step(id)


RANDOM: dict[str, Random] = {}


def test_what_can_be_kept_of_a_text_that_has_rolled(plain: Random):
    held, ids = plain.held(), text(1, 42)
    assert held.prefill(ids[:41], rolling=ROLLING)[1] == 0
    assert held._dropped_at == 36  # at 20, 28, 36 tokens
    assert held.prefill(ids, rolling=ROLLING)[1] == 41  # the text goes on
    assert held.prefill([*ids[:38], 5], rolling=ROLLING)[1] == 38  # a change behind where it rolled last
    assert held.prefill([*ids[:30], 6], rolling=ROLLING)[1] == 4  # before: the first tokens have never moved
    assert held.prefill(ids, rolling=ROLLING)[1] == 30  # the text of 31 has rolled at 28
    assert held.prefill(ids, rolling=Rolling(CONTEXT, 3))[1] == 4  # another rule
    assert plain.check(held, ids) == 3  # and none
    assert held.dropped == 0


def test_a_fork_rolls_by_itself(random: Random):
    held, ids = random.held(), text(1, 30)
    held.prefill(ids, rolling=ROLLING)
    twin = held.fork()
    for n in range(15):
        near(twin.step(n), random.held().prefill(ids + list(range(n + 1)), rolling=ROLLING)[0])
    for n in range(15):
        near(held.step(99 - n), random.held().prefill(ids + [99 - m for m in range(n + 1)], rolling=ROLLING)[0])


@pytest.mark.parametrize("dtype", ["float16", "int8", "int8-int4"])
def test_a_text_that_has_rolled_goes_on_after_saving(random: Random, dtype: str):
    llm = LLM(random.llm.checkpoint, 24, kv_dtype=dtype)
    session, how = llm.session(), {"max_tokens": 30, "context_full": "roll", "temperature": 0, "ignore_eos": True}
    done = session.generate(text(1, 20), **how)
    loaded = llm.import_cache(llm.export_cache(session))
    assert (loaded._held.state, loaded.cached_ids) == (session._held.state, session.cached_ids)
    whole = text(1, 20) + done.ids
    one, other = session.generate(whole, **how), loaded.generate(whole, **how)
    assert (one.ids, one.dropped_tokens) == (other.ids, other.dropped_tokens)
    assert other.timings.cached_tokens == one.timings.cached_tokens == len(whole) - 1


@pytest.mark.parametrize("call", [1, 3, 6])
def test_an_interrupt_while_it_rolls_leaves_nothing_wrong(random: Random, call: int, monkeypatch: pytest.MonkeyPatch):
    held, ids, turns_made = random.held(), text(1, 27), []
    held.prefill(ids, rolling=ROLLING)
    turn = cached_sequence.turned_back

    def interrupted(*args: Any) -> np.ndarray:
        turns_made.append(1)
        if len(turns_made) == call:
            raise KeyboardInterrupt
        return turn(*args)

    with monkeypatch.context() as patch:
        patch.setattr(cached_sequence, "turned_back", interrupted)
        with pytest.raises(KeyboardInterrupt):
            held.prefill(ids + text(2, 30), rolling=ROLLING)
    assert held.ids == []
    near(held.prefill(ids, rolling=ROLLING)[0], random.held().prefill(ids, rolling=ROLLING)[0])
    for pool, table in zip(held.sequence.cache.pools, held.sequence.tables, strict=True):
        assert not set(table.blocks) & set(pool._free)


# ---- through sessions: said, and asked for


def test_the_default_is_to_stop(plain: Random):
    llm = LLM(plain.llm.checkpoint, CONTEXT, kv_dtype="float32")
    done = llm.generate(text(1, 10), max_tokens=50, ignore_eos=True)
    assert (len(done.ids), done.finish_reason, done.dropped_tokens) == (10, "length", 0)
    with pytest.raises(ContextOverflow, match="21 tokens, more than the context of 20"):
        llm.generate(text(1, 21))


def test_pieces_and_completion_say_what_was_dropped(plain: Random):
    llm = LLM(plain.llm.checkpoint, CONTEXT, kv_dtype="float32")
    how = {"max_tokens": 30, "ignore_eos": True, "temperature": 0, "context_full": "roll"}
    pieces = list(llm.stream(text(1, 10), **how))
    # the token drawn with 20 held sees them all; for the next, 8 go; and 8 more for each 8
    assert [piece.dropped_tokens for piece in pieces[:30]] == [0] * 11 + [8] * 8 + [16] * 8 + [24] * 3
    done = pieces[-1].completion
    assert (len(done.ids), done.finish_reason, done.dropped_tokens) == (30, "length", 24)
    expected, ids = [], text(1, 10)
    for _ in range(30):
        expected.append(int(rolled_logits(plain.config, plain.tensors, ids + expected, ROLLING)[-1].argmax()))
    assert done.ids == expected
    again = tinyinfer.SamplingParams.from_dict(done.sampling)
    assert llm.generate(text(1, 10), again).ids == done.ids


def test_a_prompt_longer_than_the_context(plain: Random):
    llm = LLM(plain.llm.checkpoint, CONTEXT, kv_dtype="float32")
    how = {"max_tokens": 3, "ignore_eos": True, "temperature": 0, "context_full": "roll"}
    session, ids = llm.session(), text(1, 50)
    done = session.generate(ids, **how, prompt_logprobs=1)
    assert (done.dropped_tokens, done.timings.cached_tokens, len(done.prompt_logprobs)) == (32, 0, 50)
    more = session.generate([*ids, *done.ids, 7, 8], **how)
    assert (more.dropped_tokens, more.timings.cached_tokens) == (40, 52)
    assert more.ids == llm.generate([*ids, *done.ids, 7, 8], **how).ids
    samples = llm.samples(ids, 2, **how)
    assert [sample.ids for sample in samples] == [done.ids] * 2
    assert [sample.dropped_tokens for sample in samples] == [32] * 2


def test_the_answer_ends_where_the_model_ends_it():
    llm = LLM(chain_checkpoint(say("bcd", after="a")), 8)
    done = llm.generate("xxxxxxxxxxxxxxxxxxa", context_full="roll", context_keep=2)
    assert (done.text, done.finish_reason, done.dropped_tokens) == ("bcd", "stop", 15)


# ---- refused


def refusal(config: Any, rolling: Rolling) -> BadRequest:
    with pytest.raises(BadRequest) as error:
        check_rolling(config, rolling)
    return error.value


@pytest.mark.parametrize("name", LEARNED)
def test_learned_positions_are_refused(name: str):
    llm = tinyinfer.load(golden_folder(name))
    with pytest.raises(BadRequest, match="positions are learned") as error:
        llm.stream([1, 2, 3], context_full="roll")
    assert error.value.parameter == "context_full"


@pytest.mark.parametrize("name", STRETCHED)
def test_scalings_that_go_by_the_length_are_refused_beyond_what_was_trained(name: str):
    llm = tinyinfer.load(golden_folder(name))
    original = llm.config.layers[0].rope.original_length
    kind = llm.config.layers[0].rope.kind
    assert f"{kind} scaling" in str(refusal(llm.config, Rolling(original + 1, 4)))
    check_rolling(llm.config, Rolling(original, 4))
    model = one_layer(name)
    rolling = Rolling(original, 4)
    ids = [id % model.config.vocab_size for id in text(4, 3 * original)]
    held = CachedSequence(model)
    found, _ = held.prefill(ids, rolling=rolling)
    near(found, CachedSequence(model).prefill(ids[:4] + ids[4 + held.dropped :])[0])
    near(held.step(3), CachedSequence(model).prefill([*ids[:4], *ids[4 + held.dropped :], 3])[0])


def test_windows_that_would_see_across_the_gap_are_refused():
    config = Random(**WINDOWED | {"sliding_window": 9}).llm.config
    assert "layers see 9 tokens, and only 7 stay beside the first 4" in str(refusal(config, Rolling(19, 4)))
    check_rolling(config, Rolling(20, 4))
    check_rolling(config, Rolling(8, 4))
    assert "a longer context would do" in str(refusal(config, Rolling(9, 4)))


@pytest.mark.parametrize("context", [8, 20, 21])
@pytest.mark.parametrize("size", [1, 4, 32])
def test_windows_at_the_edge_of_what_is_possible(context: int, size: int, monkeypatch: pytest.MonkeyPatch):
    random = Random(**WINDOWED | {"sliding_window": 9})
    rolling, ids = Rolling(context, 4), text(7, 60)
    expected = rolled_logits(random.config, random.tensors, ids, rolling)
    cache = random.llm.model.new_cache(size)
    held = CachedSequence(random.llm.model, cache.sequence())
    near(held.prefill(ids[:9], rolling=rolling)[0], expected[8])
    for n in range(9, 60):
        near(held.step(ids[n]), expected[n])


def test_numbers_that_leave_no_room(plain: Random):
    assert refusal(plain.llm.config, Rolling(20, 19)).parameter == "context_keep"
    for keep in (-1, 1.5, None, "4"):
        with pytest.raises(BadRequest, match="context_keep"):
            plain.llm.stream([1], context_keep=keep)
    for full in ("slide", None, True):
        with pytest.raises(BadRequest, match="context_full should be"):
            plain.llm.stream([1], context_full=full)
    held = plain.held()
    for n in range(40):  # as tight as it may be: one token stays beside the first ones
        held.step(n) if n else held.prefill([0], rolling=Rolling(6, 4))
    near(held.step(40), rolled_logits(plain.config, plain.tensors, list(range(41)), Rolling(6, 4))[-1])


def test_the_second_computation_is_the_first_where_nothing_rolls(plain: Random):
    ids = text(1, 15)
    expected = float64_model.logits(plain.config, plain.tensors, ids)
    near(rolled_logits(plain.config, plain.tensors, ids, ROLLING), expected, 1e-12)

"""Saved caches: what is loaded goes on as what was saved would, and what does not belong is refused.

Loaded numbers are the same bytes, so that logits are compared bit for bit with a session that was never saved; but for
BLAS, whose sums go by where arrays lie, so that a last bit of some 1e-6 may differ without compiled kernels. With a
cold run, in float64 by code of its own, they are compared as in `test_session.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyinfer
from tests.chain_models import TEMPLATE
from tests.checkpoint.test_adapters import ADAPTERS
from tests.test_session import KINDS, MORE, SYSTEM, USER1, USER2, Random, common, random_of, text
from tests.tiny_models import GOLDEN, golden_folder
from tinyinfer import LLM, Session, fingerprint
from tinyinfer.cache import KV_DTYPES
from tinyinfer.cached_sequence import CachedSequence
from tinyinfer.checkpoint.safetensors import parse_safetensors, safetensors_bytes, write_safetensors
from tinyinfer.errors import BadCheckpoint, BadRequest
from tinyinfer.kernels.tape import use_compiled

LATENT = ["deepseek-v2-mla", "deepseek-v3-mla"]
LAST_BIT = 0 if use_compiled() else 1e-5
HOW = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


def through_bytes(llm: LLM, held: CachedSequence) -> CachedSequence:
    session = llm.session()
    session._held = held
    return llm.import_cache(llm.export_cache(session))._held


@pytest.fixture(params=KINDS)
def random(request: pytest.FixtureRequest) -> Random:
    return random_of(request.param)


@pytest.fixture
def plain() -> Random:
    return random_of("full")


# ---- what is loaded goes on as what was saved

PROMPTS = {
    "A, then B": (SYSTEM + USER1, SYSTEM + USER2),
    "A, then A": (SYSTEM + USER1, SYSTEM + USER1),
    "A, then A and a turn": (SYSTEM + USER1, SYSTEM + USER1 + USER2),
    "A and a turn, then A": (SYSTEM + USER1 + USER2, SYSTEM + USER1),
    "an early token changed": (SYSTEM + USER1, [SYSTEM[0], 7, *SYSTEM[2:], *USER1]),
    "a shorter prompt": (SYSTEM + USER1, SYSTEM[:5]),
    "past every window": (SYSTEM + MORE, SYSTEM + MORE + USER1),
    "nothing in common": (SYSTEM + USER1, USER2),
}


@pytest.mark.parametrize("prompts", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("answered", [0, 5])
def test_after_loading_logits_are_those_of_a_session_that_was_never_saved(
    random: Random, prompts: tuple[list[int], list[int]], answered: int
):
    held = random.held()
    held.prefill(prompts[0])
    for id in text(9, answered):
        held.step(id)
    loaded = through_bytes(random.llm, held)
    assert loaded.ids == held.ids
    logits, kept = held.prefill(prompts[1])
    found, loaded_kept = loaded.prefill(prompts[1])
    assert loaded_kept == kept
    np.testing.assert_allclose(found, logits, rtol=0, atol=LAST_BIT)
    random.check(loaded, prompts[1])
    for id in text(8, 3):
        np.testing.assert_allclose(loaded.step(id), held.step(id), rtol=0, atol=LAST_BIT)


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("kind", ["full", "windows"])
def test_every_dtype(kind: str, dtype: str):
    llm = LLM(random_of(kind).llm.checkpoint, kv_dtype=dtype)
    session = llm.session()
    first = session.generate(SYSTEM + MORE, **HOW)
    loaded = llm.import_cache(llm.export_cache(session))
    for prompt in (SYSTEM + MORE + first.ids + USER1, SYSTEM + MORE + USER2, SYSTEM):
        done, other = session.generate(prompt, **HOW, logprobs=3), loaded.generate(prompt, **HOW, logprobs=3)
        assert (done.ids, done.logprobs) == (other.ids, other.logprobs)
        assert done.timings.cached_tokens == other.timings.cached_tokens


@pytest.mark.parametrize("name", LATENT)
def test_latent_attention(name: str):
    llm = tinyinfer.load(golden_folder(name))
    session = llm.session()
    ids = [id % llm.config.vocab_size for id in SYSTEM + USER1]
    session.generate(ids, **HOW)
    loaded = llm.import_cache(llm.export_cache(session))
    done, other = session.generate([*ids, 5], **HOW, logprobs=1), loaded.generate([*ids, 5], **HOW, logprobs=1)
    assert (done.ids, done.logprobs, len(ids)) == (other.ids, other.logprobs, other.timings.cached_tokens)


def test_cached_tokens_are_told_truly_after_loading(plain: Random, tmp_path: Path):
    session = plain.llm.session()
    session.generate(SYSTEM + USER1, **HOW)
    plain.llm.save_cache(session, tmp_path / "saved")
    for prompt in (SYSTEM + USER2, SYSTEM + USER1, SYSTEM[:4], [*SYSTEM, *USER1, 3]):
        done = plain.llm.load_cache(tmp_path / "saved").generate(prompt, **HOW)
        assert done.timings.cached_tokens == min(common(session.cached_ids, prompt), len(prompt) - 1)
        assert done.ids == plain.llm.generate(prompt, **HOW).ids


def test_keys_rotated_for_a_longer_text_are_known_after_loading():
    """What `test_session.py` shows of lengths holds across a file."""
    random, ids = random_of("dynamic"), text(1, 44)
    held = random.held()
    held.prefill(ids[:40])
    for id in ids[40:]:
        held.step(id)
    held = through_bytes(random.llm, held)
    assert random.check(held, [*ids[:43], 9]) == 0
    held = through_bytes(random.llm, held)
    assert random.check(held, [*ids[:43], 8]) == 43


def test_an_empty_session_can_be_saved(plain: Random):
    session = plain.llm.import_cache(plain.llm.export_cache(plain.llm.session()))
    assert session.cached_ids == []
    assert session.generate(SYSTEM, **HOW).ids == plain.llm.generate(SYSTEM, **HOW).ids


def test_an_interrupted_session_saves_what_it_holds(plain: Random):
    held = plain.held()
    held.prefill(SYSTEM + USER1)
    del held.ids[-3:]  # as where an interrupt came between the model's step and the note of it
    loaded = through_bytes(plain.llm, held)
    assert loaded.ids == (SYSTEM + USER1)[:-3]
    assert plain.check(loaded, SYSTEM + USER1) == len(SYSTEM + USER1) - 3


def test_another_process_goes_on_with_the_same_tokens(tmp_path: Path):
    llm = tinyinfer.load(GOLDEN / "llama")
    session = llm.session()
    ids = [id % llm.config.vocab_size for id in SYSTEM]
    llm.save_cache(session, tmp_path / "empty")
    first = session.generate(ids, **HOW)
    llm.save_cache(session, tmp_path / "saved")
    script = """
import sys, tinyinfer
llm = tinyinfer.load(sys.argv[1])
done = llm.load_cache(sys.argv[2]).generate(list(map(int, sys.argv[3].split())), max_tokens=6, temperature=0,
    ignore_eos=True)
print(*done.ids, done.timings.cached_tokens)
"""
    whole = ids + first.ids
    argv = [sys.executable, "-c", script, str(GOLDEN / "llama"), str(tmp_path / "saved"), " ".join(map(str, whole))]
    root = str(Path(__file__).parents[1])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": root})
    expected = llm.generate(whole, **HOW).ids
    assert done.stdout.split() == [str(n) for n in [*expected, len(whole) - 1]], done.stderr


def test_a_file_that_can_not_be_written_whole_leaves_the_one_before(
    plain: Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    session = plain.llm.session()
    session.generate(SYSTEM, **HOW)
    plain.llm.save_cache(session, tmp_path / "saved")
    before = (tmp_path / "saved").read_bytes()
    session.generate(USER2, **HOW)

    def arrays(sequence: Any) -> Any:
        yield "layers.0.keys", np.zeros(3)

    monkeypatch.setattr("tinyinfer.cache.arrays_of", arrays)
    with pytest.raises(ValueError, match="promised"):
        plain.llm.save_cache(session, tmp_path / "saved")
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]
    assert (tmp_path / "saved").read_bytes() == before


# ---- the key


def saved_by(llm: LLM) -> bytes:
    session = llm.session()
    session.generate([id % llm.config.vocab_size for id in SYSTEM], max_tokens=1)
    return llm.export_cache(session)


def one_row_changed(random: Random) -> dict[str, np.ndarray]:
    embedding = random.tensors["model.embed_tokens.weight"].copy()
    embedding[200, 3] += np.float32(1e-3)
    return random.tensors | {"model.embed_tokens.weight": embedding}


def test_what_belongs_to_another_model_is_refused_by_name(plain: Random):
    content, checkpoint = saved_by(plain.llm), plain.llm.checkpoint
    rope = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}}
    others = {
        "another model ('random'): expected ": {"tensors": one_row_changed(plain)},
        "another model": {"config": checkpoint.config | rope},
        "another tokenizer": {"tokenizer_config": {"eos_token": "<|im_start|>"}},
        "another tokenizer: expected none": {"tokenizer_json": None},
        "another chat template": {"chat_template": TEMPLATE + " "},
        "another chat template: expected none": {"chat_template": None},
    }
    for said, changes in others.items():
        llm = LLM(replace(checkpoint, **changes), kv_dtype="float32")
        with pytest.raises(BadRequest, match=r"^the saved cache: saved with another") as error:
            llm.import_cache(content)
        assert said in str(error.value)
        assert error.value.parameter == "prompt_cache"
    with pytest.raises(BadRequest, match="another dtype of keys and values: expected float16, found float32"):
        LLM(checkpoint).import_cache(content)
    again = LLM(replace(checkpoint, source=Path("elsewhere")), kv_dtype="float32").import_cache(content)
    assert again.cached_ids == SYSTEM


def test_only_sessions_of_the_same_model_are_saved(plain: Random, tmp_path: Path):
    other = LLM(plain.llm.checkpoint, kv_dtype="int8")
    for wrong, found in ((other.session(), "one of another"), (None, "NoneType"), ("cache.safetensors", "str")):
        for save in (plain.llm.export_cache, lambda session: plain.llm.save_cache(session, tmp_path / "cache")):
            with pytest.raises(BadRequest, match=f"session of this model, found {found}"):
                save(wrong)
    assert not list(tmp_path.iterdir())


def test_quantizing_makes_another_model():
    with pytest.raises(BadRequest, match="another model"):
        tinyinfer.load(GOLDEN / "llama", quantize="int4").import_cache(saved_by(tinyinfer.load(GOLDEN / "llama")))


def test_quantized_weights_that_meet_other_activations_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    llm = tinyinfer.load(GOLDEN / "llama", quantize="int8")
    content = saved_by(llm)
    other = tinyinfer.load(GOLDEN / "llama", quantize="int8")
    compiled = fingerprint.use_compiled()
    monkeypatch.setattr(fingerprint, "use_compiled", lambda: not compiled)
    with pytest.raises(BadRequest, match="another form of activations"):
        other.import_cache(content)
    floats = tinyinfer.load(GOLDEN / "llama")
    assert floats._fingerprints["activations"] == "f32"


def test_adapters_and_their_scales_are_part_of_the_key():
    llm = tinyinfer.load(GOLDEN / "llama", lora=ADAPTERS / "llama-all")
    llm.load_adapter(ADAPTERS / "llama-patterns", "other")
    ids = [id % llm.config.vocab_size for id in SYSTEM]
    wishes = [None, [], "other", {"other": 0.5}, ["other", "llama-all"], ["llama-all", "other"]]
    for wish in wishes:
        session = llm.session()
        session.generate(ids, adapters=wish, **HOW)
        content = llm.export_cache(session)
        for other in wishes:
            if other == wish:
                loaded = llm.import_cache(content, other)
                assert loaded.generate(ids, adapters=other, **HOW).timings.cached_tokens == len(ids) - 1
                assert loaded.generate(ids, adapters={"other": 0.25}, **HOW).timings.cached_tokens == 0
            else:
                with pytest.raises(BadRequest, match="another choice of adapters or scales"):
                    llm.import_cache(content, other)


# ---- hostile files


@pytest.fixture(scope="module")
def content() -> bytes:
    held = random_of("windows").held()
    held.prefill(SYSTEM + MORE)
    session = Session(random_of("windows").llm)
    session._held = held
    return session.llm.export_cache(session)


def refused(content: bytes) -> str:
    with pytest.raises(BadCheckpoint) as error:
        random_of("windows").llm.import_cache(content)
    return str(error.value)


def changed(content: bytes, arrays: dict[str, np.ndarray | None] | None = None, **facts: str | None) -> bytes:
    found, metadata = parse_safetensors(content)
    found = {name: array for name, array in (found | (arrays or {})).items() if array is not None}
    metadata = {name: value for name, value in (metadata | facts).items() if value is not None}
    layout = {name: (array.dtype, array.shape) for name, array in found.items()}
    return safetensors_bytes(layout, found.items(), metadata)


def test_a_damaged_file_is_refused_with_its_name(content: bytes):
    ids = np.array(SYSTEM + MORE, np.int32)
    cases: dict[str, dict[str, Any]] = {
        "not a saved cache, or of another version: expected 'tinyinfer cache 1', found 'nothing'": {"format": None},
        "found 'tinyinfer cache 9'": {"format": "tinyinfer cache 9"},
        "ids is missing": {"arrays": {"ids": None}},
        "ids: expected int32 of one dimension, found int64": {"arrays": {"ids": ids.astype(np.int64)}},
        "ids: expected int32 of one dimension, found int32 [1, 52]": {"arrays": {"ids": ids[None]}},
        "id -1 is outside the vocabulary of 275": {"arrays": {"ids": np.where(ids == ids[3], np.int32(-1), ids)}},
        "id 275 is outside": {"arrays": {"ids": np.where(ids == ids[3], np.int32(275), ids)}},
        "it holds 520 tokens, more than the model's 128": {"arrays": {"ids": np.tile(ids, 10)}},
        "state: context_keep should be a number up to 18": {"state": "52 52 20 19 0 0"},
        "layers.0.keys: expected at most 51 tokens, found the shape [52, 2, 10]": {"arrays": {"ids": ids[:-1]}},
        "layers.2.keys: 52 of 53 tokens, fewer than the layer looks at": {"arrays": {"ids": np.append(ids, ids[:1])}},
        "layers.1.values is missing": {"arrays": {"layers.1.values": None}},
        "'layers.3.keys' belongs to no layer": {"arrays": {"layers.3.keys": np.zeros((52, 2, 10), np.float32)}},
        "state: expected 6 whole numbers, found ''": {"state": None},
        "found '1 -2 0 0 0 0'": {"state": "1 -2 0 0 0 0"},
        "found '1 2 3'": {"state": "1 2 3"},
        "found '٣ 4 0 0 0 0'": {"state": "٣ 4 0 0 0 0"},
        "found '" + "9" * 80 + "'": {"state": "9" * 100_000},
        "state: '52 52 0 0 10 0' is none that 52 tokens can be in": {"state": "52 52 0 0 10 0"},
        "state: '52 52 20 4 9 20' is none": {"state": "52 52 20 4 9 20"},
        "state: '52 52 20 4 8 21' is none": {"state": "52 52 20 4 8 21"},
        "state: '52 52 60 4 28 60' is none": {"state": "52 52 60 4 28 60"},
        "state: '52 52 500 4 0 0' is none": {"state": "52 52 500 4 0 0"},
        "layers.0.keys: expected at most 44 tokens": {"state": "52 52 20 4 8 20"},
    }
    for said, changes in cases.items():
        found = refused(changed(content, **changes))
        assert said in found
        assert found.startswith("the saved cache: ")
        assert len(found) < 300
    for size in (0, 7, 100, len(content) - 1):
        assert refused(content[:size])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_are_loaded_or_refused(content: bytes, data: st.DataObject):
    end = 8 + int.from_bytes(content[:8], "little")
    where = st.integers(0, end - 1) | st.integers(0, len(content) - 1)
    spoiled = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        spoiled[data.draw(where)] = data.draw(st.integers(0, 255))
    random = random_of("windows")
    try:
        loaded = random.llm.import_cache(bytes(spoiled))
    except (BadCheckpoint, BadRequest):
        return
    logits, _ = loaded._held.prefill(SYSTEM + MORE + [3])
    assert logits.shape == (random.llm.config.vocab_size,)


def test_what_is_no_file_of_ours_is_refused_with_its_name(plain: Random, tmp_path: Path):
    (tmp_path / "text").write_text("hello, this is not a safetensors file")
    for path in (tmp_path / "text", tmp_path / "nowhere", tmp_path):
        with pytest.raises(BadCheckpoint, match=str(path)):
            plain.llm.load_cache(path)
    write_safetensors(tmp_path / "weights", {"ids": (np.dtype("<i4"), (1,))}, [("ids", np.zeros(1, np.int32))])
    with pytest.raises(BadCheckpoint, match="not a saved cache"):
        plain.llm.load_cache(tmp_path / "weights")


def test_without_a_tokenizer():
    random = Random()
    llm = LLM(replace(random.llm.checkpoint, tokenizer_json=None, chat_template=None))
    session = llm.session()
    session.generate(SYSTEM, **HOW)
    assert llm.import_cache(llm.export_cache(session)).cached_ids == session.cached_ids


def test_a_folder_is_no_place_for_a_file(plain: Random, tmp_path: Path):
    session = plain.llm.session()
    session.generate(SYSTEM, **HOW)
    with pytest.raises(BadRequest, match="a saved cache is a file, and a folder stands there"):
        plain.llm.save_cache(session, tmp_path)
    assert not list(tmp_path.parent.glob(".*partial"))

"""Adapters by name: what is loaded, what a request goes through, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinyinfer
from tests.checkpoint.gguf_files import write_model as write_gguf
from tests.checkpoint.test_adapters import ADAPTERS, changed
from tests.tiny_models import GOLDEN
from tinyinfer import LLM
from tinyinfer.checkpoint.safetensors import open_safetensors
from tinyinfer.errors import BadCheckpoint, BadRequest, ModelNotFound

TOLERANCE = 5e-5  # what golden logits are held to
ALL, PATTERNS = ADAPTERS / "llama-all", ADAPTERS / "llama-patterns"
IDS = open_safetensors(PATTERNS / "golden.safetensors")["input_ids"].tolist()


def load(**how: Any) -> LLM:
    return tinyinfer.load(GOLDEN / "llama", kv_dtype="float32", **how)


def golden(folder: Path, name: str = "logits") -> np.ndarray:
    return open_safetensors(folder / "golden.safetensors")[name]


@pytest.fixture(scope="module")
def llm() -> LLM:
    """With both at hand, and none in use unless a request says so."""
    llm = load()
    assert (llm.load_adapter(ALL), llm.load_adapter(PATTERNS, "other")) == ("llama-all", "other")
    return llm


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    return load().forward(IDS)


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.abs(found - expected).max() < TOLERANCE


# ---- what a request goes through


@pytest.mark.parametrize("wish", ["other", ["other"], ("other",), [("other", 1.0)], {"other": 1}], ids=str)
def test_ways_to_ask_for_one(llm: LLM, plain: np.ndarray, wish: Any):
    assert near(llm.forward(IDS, wish), golden(PATTERNS))
    assert not near(plain, golden(PATTERNS))


@pytest.mark.parametrize("wish", [["other", "llama-all"], {"llama-all": 1.0, "other": 1.0}], ids=str)
def test_both(llm: LLM, wish: Any):
    assert near(llm.forward(IDS, wish), golden(PATTERNS, "logits_with_llama-all"))


@pytest.mark.parametrize("wish", [None, [], {}, {"other": 0.0}], ids=str)
def test_none(llm: LLM, plain: np.ndarray, wish: Any):
    assert near(llm.forward(IDS, wish), plain)


def test_the_usual_ones():
    """What `load` is given holds until a request says otherwise."""
    for lora in (PATTERNS, str(PATTERNS), [PATTERNS]):
        llm = load(lora=lora)
        assert llm.adapters.names == ["llama-patterns"]
        assert near(llm.forward(IDS), golden(PATTERNS))
    both = load(lora={ALL: 1.0, PATTERNS: 1.0})
    assert near(both.forward(IDS), golden(PATTERNS, "logits_with_llama-all"))
    assert near(both.forward(IDS, "llama-patterns"), golden(PATTERNS))
    assert near(both.forward(IDS, []), load().forward(IDS))
    half = load(lora={PATTERNS: 0.5})
    assert near(half.forward(IDS), both.forward(IDS, {"llama-patterns": 0.5}))
    assert near(half.forward(IDS, "llama-patterns"), golden(PATTERNS))


def test_answers_are_those_of_the_adapter(llm: LLM):
    alone = load(lora=PATTERNS)
    how = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    expected = alone.generate(IDS, **how).ids
    assert llm.generate(IDS, adapters="other", **how).ids == expected
    assert [piece.ids for piece in llm.stream(IDS, adapters=["other"], **how)][:12] == [[id] for id in expected]
    assert llm.generate(IDS, **how).ids == load().generate(IDS, **how).ids != expected


def test_a_session_does_not_reuse_what_other_adapters_left(llm: LLM):
    session, how = llm.session(), {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    for wish, cached in [(None, 0), ("other", 0), ("other", 23), ({"other": 0.5}, 0), (None, 0), ([], 23)]:
        completion = session.generate(IDS, adapters=wish, **how)
        assert completion.ids == llm.generate(IDS, adapters=wish, **how).ids
        assert completion.timings.cached_tokens == cached


def test_threads_with_other_adapters_take_turns(llm: LLM):
    expected = {"other": golden(PATTERNS), "llama-all": llm.forward(IDS, "llama-all"), (): llm.forward(IDS)}
    found: list[bool] = []

    def ask(wish: Any) -> None:
        found.extend(near(llm.forward(IDS, wish), expected[wish]) for _ in range(5))

    threads = [threading.Thread(target=ask, args=(wish,)) for wish in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 15


def test_quantized_weights_with_an_adapter(llm: LLM):
    """What int8 costs is the same size as without the adapter: some hundredths of logits of order 1."""
    small = load(quantize="int8", lora=ALL)
    assert np.abs(small.forward(IDS) - llm.forward(IDS, "llama-all")).max() < 0.15
    assert np.abs(small.forward(IDS) - small.forward(IDS, [])).max() > 0.5


def test_a_base_in_a_gguf_file(tmp_path: Path):
    """Where rows of queries and keys lie in another order than the adapter's."""
    write_gguf(tmp_path / "llama.gguf", "llama", "llama", "F32")
    llm = tinyinfer.load(tmp_path / "llama.gguf", kv_dtype="float32", lora=PATTERNS)
    assert near(llm.forward(IDS), golden(PATTERNS))


# ---- coming and going


def test_names():
    llm = load()
    assert llm.load_adapter(ALL) == "llama-all"
    assert llm.load_adapter(ALL) == str(ALL)  # the folder's name is taken
    for name in (None, "llama-all"):
        with pytest.raises(BadRequest, match=r"there is an adapter of the name '.*llama-all' already"):
            llm.load_adapter(ALL, name)
    assert llm.adapters.names == ["llama-all", str(ALL)]


def test_unloading():
    llm = load(lora=PATTERNS)
    llm.load_adapter(ALL)
    stream = llm.stream(IDS, max_tokens=5, adapters="llama-patterns", ignore_eos=True)
    next(stream)
    llm.unload_adapter("llama-patterns")
    assert llm.adapters.names == ["llama-all"]
    assert near(llm.forward(IDS), load().forward(IDS))  # it was the usual one
    with pytest.raises(BadRequest, match=r"llama-patterns is not loaded, or no longer"):
        list(stream)
    with pytest.raises(BadRequest, match=r"there is no adapter 'llama-patterns'; loaded: llama-all"):
        llm.unload_adapter("llama-patterns")
    session = llm.session()
    session.generate(IDS, adapters="llama-all", max_tokens=1)
    llm.unload_adapter("llama-all")
    llm.load_adapter(PATTERNS, "llama-all")  # another of the same name
    completion = session.generate(IDS, adapters="llama-all", max_tokens=1)
    assert completion.timings.cached_tokens == 0


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("style", "there is no adapter 'style'; loaded: llama-all, other"),
        (["other", "other"], "'other' was asked for twice"),
        ([("other", 1.0), "other"], "'other' was asked for twice"),
        ({"other": "much"}, "the scale of adapter 'other' should be a number, found 'much'"),
        ({"other": float("nan")}, "found nan"),
        ({"other": True}, "found True"),
        ([3], "adapters should be names, or names with a scale, found 3"),
        ([("other",)], "names with a scale"),
        (3, "adapters should be names, found 3"),
    ],
    ids=str,
)
def test_wishes_that_are_none(llm: LLM, wish: Any, words: str):
    for ask in (lambda: llm.forward(IDS, wish), lambda: llm.stream(IDS, adapters=wish)):
        with pytest.raises(BadRequest) as error:
            ask()
        assert words in str(error.value)
        assert error.value.parameter == "adapters"


def test_adapters_that_do_not_fit_change_nothing(tmp_path: Path):
    llm = load(lora=PATTERNS)
    for folder, kind in [(tmp_path / "nowhere", ModelNotFound), (ADAPTERS / "gpt2-conv", BadCheckpoint),
                         (changed(tmp_path, r=5), BadCheckpoint)]:  # fmt: skip
        with pytest.raises(kind):
            llm.load_adapter(folder)
    assert llm.adapters.names == ["llama-patterns"]
    assert near(llm.forward(IDS), golden(PATTERNS))
    with pytest.raises(BadRequest, match="given twice"):
        load(lora=[ALL, ALL])
    with pytest.raises(BadRequest, match="lora should be folders of adapters, found 3"):
        load(lora=3)

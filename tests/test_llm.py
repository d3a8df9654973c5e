"""The Python API: loading, ids in and out, wrong arguments, timings, threads."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tinyinfer
from tests import float64_model
from tests.chain_models import END, VOCAB, chain_checkpoint, say, write_chain_model
from tests.checkpoint.gguf_files import write_model as write_gguf
from tests.cli.commands import environment
from tests.text.tiny_tokenizers import added_token, byte_level_tokenizer_json
from tests.tiny_models import GOLDEN, random_model
from tinyinfer import LLM, Completion, Piece, SamplingParams, Timings
from tinyinfer.checkpoint.quantized import quantize_folder, write_quantized
from tinyinfer.checkpoint.source import Checkpoint, dequantized, open_checkpoint, stored_bytes, write_folder
from tinyinfer.config import ModelConfig
from tinyinfer.errors import BadCheckpoint, BadRequest, ModelNotFound, UnsupportedModel
from tinyinfer.kernels.tape import use_compiled
from tinyinfer.quant import dequantize

TOLERANCE = 2e-5  # float32 against float64 over three layers, logits of order 1; 1e-6 is what we measure


def random_llm(tokenizer_json: str | None = None, **changes: Any) -> LLM:
    config, tensors = random_model(vocab_size=VOCAB, **changes)
    return LLM(Checkpoint(Path("random"), config, tensors, {}, tokenizer_json), kv_dtype="float32")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return random_llm(byte_level_tokenizer_json())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain_model(tmp_path_factory.mktemp("models") / "hi", say("bcd", after="a"))


# loading


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder(folder: Path, kind: type):
    llm = tinyinfer.load(kind(folder))
    assert isinstance(llm, tinyinfer.LLM)
    assert isinstance(llm.config, ModelConfig)
    assert (llm.path, llm.context, llm.stop_ids) == (folder, 512, {END})
    assert llm.generate("a").text == "bcd"


def test_a_name_and_a_repository_in_the_home(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINYINFER_HOME", str(folder.parent))
    assert tinyinfer.load("hi").generate("a").text == "bcd"
    write_folder(open_checkpoint(folder), folder.parent / "someone--something")
    assert tinyinfer.load("someone/something").generate("a").text == "bcd"


def test_a_model_that_is_not_there_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINYINFER_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name, command in {
        "smollm2-135m-instruct": "tinyinfer pull smollm2-135m-instruct",
        "someone/something": "tinyinfer pull someone/something",
        "smollm": "tinyinfer pull smollm2-135m-instruct",
        str(tmp_path / "nowhere"): "tinyinfer pull",
    }.items():
        with pytest.raises(ModelNotFound, match=command):
            tinyinfer.load(name)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_of_any_float_type_run_as_they_are(dtype: str, tmp_path: Path):
    config, tensors = random_model(tmp_path / "model", dtype=dtype)
    ids = list(range(3, 30))
    llm = tinyinfer.load(tmp_path / "model", kv_dtype="float32")
    expected = float64_model.logits(config, tensors, ids)
    np.testing.assert_allclose(llm.forward(ids), expected, rtol=0, atol=TOLERANCE)
    done = llm.generate(ids, max_tokens=5, ignore_eos=True)
    assert done.ids[0] == expected[-1].argmax()


@pytest.mark.parametrize(
    ("name", "arch"), [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("gemma3", "gemma3")]
)
def test_a_gguf_file_gives_what_the_folder_gives(name: str, arch: str, tmp_path: Path):
    extra = {"__attention__scale": 24**-0.5} if arch == "gemma3" else {}
    write_gguf(tmp_path / "model.gguf", name, arch, **extra)
    ids = list(range(5, 40))
    from_file, from_folder = tinyinfer.load(tmp_path / "model.gguf"), tinyinfer.load(GOLDEN / name)
    np.testing.assert_allclose(from_file.forward(ids), from_folder.forward(ids), rtol=0, atol=TOLERANCE)
    ask = {"max_tokens": 10, "ignore_eos": True}
    assert from_file.generate(ids, **ask).ids == from_folder.generate(ids, **ask).ids


def test_a_gguf_file_converted_to_a_folder_is_the_same_model(tmp_path: Path):
    write_gguf(tmp_path / "model.gguf", "llama", "llama", "Q8_0")
    write_folder(open_checkpoint(tmp_path / "model.gguf"), tmp_path / "folder", dtype="float32")
    write_quantized(open_checkpoint(tmp_path / "model.gguf"), tmp_path / "packed")
    exact = [
        tinyinfer.load(tmp_path / name, activations="f32").forward([5, 6, 7])
        for name in ("model.gguf", "folder", "packed")
    ]
    assert np.array_equal(exact[0], exact[1])
    assert np.array_equal(exact[0], exact[2])
    rounded = [tinyinfer.load(tmp_path / name).forward([5, 6, 7]) for name in ("model.gguf", "packed")]
    assert np.array_equal(*rounded)
    assert np.linalg.norm(rounded[0] - exact[0]) < 0.05 * np.linalg.norm(exact[0])  # activations in 8 bits
    if use_compiled():  # in NumPy activations are not rounded
        assert not np.array_equal(rounded[0], exact[0])


def test_what_is_quantized_already_is_kept_or_made_anew(tmp_path: Path):
    write_gguf(tmp_path / "model.gguf", "llama", "llama", "Q8_0")
    name = "model.layers.0.mlp.up_proj.weight"
    exact = dequantized(open_checkpoint(tmp_path / "model.gguf")).tensors[name]
    for form in ("int8", "int4"):
        found = tinyinfer.load(tmp_path / "model.gguf", quantize=form).checkpoint.tensors[name]
        assert found.scheme == form
        assert np.array_equal(dequantize(found), exact) == (form == "int8")


@pytest.mark.parametrize("context", [0, -1, 513, 1.5, "3", True])
def test_a_context_beyond_the_models_own_is_refused(folder: Path, context: Any):
    with pytest.raises(BadRequest, match=r"context should be a whole number from 1 to the model's 512"):
        tinyinfer.load(folder, context=context)
    assert tinyinfer.load(folder, context=512).context == 512


def test_other_arithmetic_is_refused(folder: Path):
    assert tinyinfer.load(folder, activations="f32").generate("a").text == "bcd"
    with pytest.raises(BadRequest, match="activations should be 'int8' or 'f32', found 'f16'"):
        tinyinfer.load(folder, activations="f16")


def test_without_numba_there_are_no_activations_in_8_bits(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tinyinfer.llm.use_compiled", lambda: False)
    with pytest.raises(BadRequest, match=r"TINYINFER_KERNELS=numpy .* float32 activations alone, found 'int8'"):
        tinyinfer.load(folder, activations="int8")
    assert tinyinfer.load(folder).generate("a").text == "bcd"


@pytest.mark.parametrize("form", ["int8", "int4", "nf4", "int8-row", "int4-g128-symmetric"])
def test_weights_quantized_at_load(folder: Path, form: str):
    """The chain is decided by margins far above what rounding moves."""
    assert tinyinfer.load(folder, quantize=form).generate("a").text == "bcd"
    exact = tinyinfer.load(folder, quantize=form, activations="f32")
    assert exact.generate("a").text == "bcd"


def test_an_unknown_form_is_refused(folder: Path):
    with pytest.raises(BadRequest, match="found 'int3'"):
        tinyinfer.load(folder, quantize="int3")


def test_tensors_that_are_not_read_are_named_once(folder: Path):
    unused = {f"model.layers.0.self_attn.rotary_emb.inv_freq{n}": np.zeros(2, np.float32) for n in range(10)}
    with pytest.warns(UserWarning, match="does not read: model.layers.0.*inv_freq0.* and 2 more") as caught:
        llm = LLM(chain_checkpoint(say("bcd", after="a"), tensors=unused))
    assert len(caught) == 1
    assert llm.unused_tensors == tuple(unused)
    assert llm.generate("a").text == "bcd"


# a head of its own, or the embedding


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", ["absent", "equal", "other"])
def test_tied_and_untied_heads(tied: bool, head: str):
    config, tensors = random_model(tie_word_embeddings=tied)
    embedding = tensors["model.embed_tokens.weight"]
    tensors.pop("lm_head.weight", None)
    if head != "absent":
        tensors["lm_head.weight"] = embedding if head == "equal" else embedding[::-1].copy()
    checkpoint = Checkpoint(Path("model"), config, tensors)
    if head == "absent" and not tied:
        with pytest.raises(BadCheckpoint, match=r"tensor 'lm_head\.weight' is missing; expected shape \[97, 40\]"):
            LLM(checkpoint)
        return
    # a head that is there is used, whatever the flag says
    ids = [3, 1, 4, 1, 5]
    found = LLM(checkpoint, kv_dtype="float32").forward(ids)
    np.testing.assert_allclose(found, float64_model.logits(config, tensors, ids), rtol=0, atol=TOLERANCE)


# ids in and out


def test_forward_scores_every_position(llm: LLM):
    ids = [5, 200, 7, 7]
    logits = llm.forward(ids)
    assert (logits.shape, logits.dtype) == ((4, VOCAB), np.float32)
    expected = float64_model.logits(llm.checkpoint.config, llm.checkpoint.tensors, ids)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)
    assert np.array_equal(llm.forward(np.array(ids, np.uint8)), logits)


def test_generate_follows_the_forward_pass(llm: LLM):
    growing = [5, 200, 7]
    for _ in range(10):
        growing.append(int(llm.forward(growing)[-1].argmax()))
    assert llm.generate(growing[:3], max_tokens=10, temperature=0).ids == growing[3:]


@pytest.mark.parametrize("ids", [(5, 6), range(5, 7), np.array([5, 6]), np.array([5, 6], np.uint16), [np.int64(5), 6]])
def test_ids_of_any_kind_of_whole_number(llm: LLM, ids: Any):
    done = llm.generate(ids, max_tokens=2)
    assert done.prompt_ids == [5, 6]
    assert done.ids == llm.generate([5, 6], max_tokens=2).ids
    assert {type(id) for id in done.prompt_ids + done.ids} == {int}


def test_the_ids_that_were_given_are_not_kept(llm: LLM):
    ids = [5, 6]
    stream = llm.stream(ids, max_tokens=3)
    ids[0] = 9
    assert [id for piece in stream for id in piece.ids] == llm.generate([5, 6], max_tokens=3).ids
    assert ids == [9, 6]


@pytest.mark.parametrize("ids", [[-1], [5, VOCAB], [2**31], [2**63], np.array([-5])])
def test_an_id_outside_the_vocabulary_is_refused(llm: LLM, ids: Any):
    for call in (llm.generate, llm.stream, llm.forward, llm.session().stream):
        with pytest.raises(BadRequest, match="outside the vocabulary of 275"):
            call(ids)


@pytest.mark.parametrize(
    "prompt", [None, 5, 5.0, [5.0], ["a"], [""], [[5]], [[5], [6, 7]], {5: 6}, b"ab", [None], [True], np.zeros((1, 2))]
)
def test_what_is_no_prompt_is_refused(llm: LLM, prompt: Any):
    for call in (llm.generate, llm.stream):
        with pytest.raises(BadRequest, match="expected text or a flat list of ids, found") as caught:
            call(prompt)
        assert caught.value.parameter == "prompt"
    with pytest.raises(BadRequest, match="expected a flat list of ids, found"):
        llm.forward(prompt)


def test_text_is_no_list_of_ids(llm: LLM):
    with pytest.raises(BadRequest, match="expected a flat list of ids, found 'ab'"):
        llm.forward("ab")
    with pytest.raises(BadRequest, match="expected at least one id, found none"):
        llm.forward([])


def test_half_a_surrogate_pair_is_refused(llm: LLM):
    with pytest.raises(BadRequest, match="half a surrogate pair"):
        llm.generate("ab\ud83d")


def test_text_whose_tokens_the_embedding_lacks_is_refused():
    tokenizer = byte_level_tokenizer_json((added_token(0, "<extra>"),))
    config, tensors = random_model(vocab_size=VOCAB)
    llm = LLM(Checkpoint(Path("random"), config, tensors, {}, tokenizer, {"bos_token": "<extra>"}))
    for prompt in ("a<extra>", "", []):
        with pytest.raises(BadRequest, match="id 275 is outside the vocabulary of 275"):
            llm.generate(prompt)
    assert llm.generate("a", max_tokens=1).prompt_ids == [97]


@pytest.mark.parametrize("params", [{"max_tokens": 3}, 3, "greedy", SamplingParams])
def test_params_of_another_type_are_refused(llm: LLM, params: Any):
    with pytest.raises(BadRequest, match="params should be SamplingParams, found"):
        llm.generate("a", params)


def test_overrides_win_and_leave_the_params_alone(llm: LLM):
    params = SamplingParams(max_tokens=3, temperature=0)
    assert len(llm.generate("a", params, max_tokens=2, ignore_eos=True).ids) == 2
    assert params == SamplingParams(max_tokens=3, temperature=0)


def test_what_was_asked_is_checked_before_the_first_piece(llm: LLM):
    for bad in ({"prompt": [VOCAB]}, {"prompt": "a", "top_p": 2}, {"prompt": "x" * 1000}, {"prompt": "a", "stop": ""}):
        with pytest.raises(BadRequest):
            llm.stream(**bad)
    with pytest.raises(BadRequest):
        llm.chat_stream([])


# what comes back


def test_a_stream_is_pieces_and_the_last_holds_the_completion(llm: LLM):
    stream = llm.stream("ab", max_tokens=5, ignore_eos=True)
    assert isinstance(stream, Iterator)
    pieces = list(stream)
    assert all(isinstance(piece, Piece) for piece in pieces)
    done = pieces[-1].completion
    assert isinstance(done, Completion)
    assert isinstance(done.timings, Timings)
    assert isinstance(done.params, SamplingParams)
    assert done == dataclasses.replace(llm.generate("ab", done.params), timings=done.timings)
    assert (done.prompt_ids, len(done.ids)) == ([97, 98], 5)
    assert list(stream) == []


def test_a_completion_can_be_written_as_json(llm: LLM):
    record = json.loads(json.dumps(dataclasses.asdict(llm.generate("ab", max_tokens=2))))
    assert record["prompt_ids"] == [97, 98]
    assert record["timings"]["prompt_tokens"] == 2


def test_the_end_of_sequence_id_comes_with_the_last_piece_and_without_text():
    pieces = list(LLM(chain_checkpoint(say("bc", after="a"))).stream("a"))
    assert [(piece.text, piece.ids) for piece in pieces] == [("b", [98]), ("c", [99]), ("", [END])]


@pytest.mark.parametrize("length", [1, 30])
@pytest.mark.parametrize("max_tokens", [1, 2, 12])
def test_timings_are_true(llm: LLM, length: int, max_tokens: int):
    session = llm.session()
    for cached in (0, length - 1):
        done = session.generate([98] * length, max_tokens=max_tokens, ignore_eos=True)
        timings = done.timings
        counts = timings.prompt_tokens, timings.cached_tokens, timings.completion_tokens
        assert counts == (length, cached, max_tokens)
        assert 0 < timings.prefill_seconds <= timings.time_to_first_token
        run = timings.prompt_tokens - timings.cached_tokens
        assert timings.prefill_tokens_per_second == run / timings.prefill_seconds
        if max_tokens == 1:
            assert (timings.decode_seconds, timings.decode_tokens_per_second) == (0, None)
            assert (timings.time_per_token_p50, timings.time_per_token_p95) == (None, None)
        else:
            assert timings.decode_tokens_per_second == (max_tokens - 1) / timings.decode_seconds > 0


def test_the_first_text_is_the_first_that_can_be_seen(monkeypatch: pytest.MonkeyPatch):
    ticks = iter(range(1000))
    monkeypatch.setattr("tinyinfer.answer.time.perf_counter", lambda: next(ticks))
    llm = LLM(chain_checkpoint(say("\n \tbc", after="a")))
    timings = llm.generate("a").timings
    # a clock that counts its readings: begun at 0; one before and one after each step
    assert timings.time_to_first_token < timings.time_to_first_text
    assert timings.completion_tokens == 6
    blank = LLM(chain_checkpoint(say("\n \t", after="a"))).generate("a")
    assert (blank.text, blank.timings.time_to_first_text) == ("\n \t", None)
    assert blank.timings.time_to_first_token is not None


def test_half_of_the_tokens_came_faster_than_the_median(monkeypatch: pytest.MonkeyPatch):
    # made, begun, prefilled, the first token; then five that take so many seconds each, with 100 before each
    waits = [0, 0, 1, 1, *(wait for seconds in (1, 2, 3, 4, 10) for wait in (100, seconds))]
    times = iter(np.cumsum(waits, dtype=float))
    monkeypatch.setattr("tinyinfer.answer.time", SimpleNamespace(perf_counter=lambda: next(times)))
    monkeypatch.setattr("tinyinfer.answer.Answer._piece", lambda self, text, ids: Piece(text, ids))
    timings = LLM(chain_checkpoint({98: 98})).generate([98], max_tokens=6).timings
    assert timings.decode_seconds == 20
    assert (timings.time_per_token_p50, timings.time_per_token_p95) == (3, pytest.approx(4 + 0.8 * 6))


def test_the_time_that_the_reader_takes_is_not_the_models(llm: LLM):
    begun = time.perf_counter()
    for piece in llm.stream("ab", max_tokens=4, ignore_eos=True):
        time.sleep(0.05)
        last = piece
    passed = time.perf_counter() - begun
    timings = last.completion.timings
    assert timings.prefill_seconds + timings.decode_seconds <= passed - 5 * 0.05


# threads


def test_threads_that_generate_at_once_give_what_they_give_alone(llm: LLM):
    asks = [
        {"prompt": [n, 7 * n, 5] * (n + 1), "max_tokens": 20, "temperature": n % 3, "seed": n, "ignore_eos": True}
        for n in range(8)
    ]
    alone = [llm.generate(**ask) for ask in asks]
    together: dict[int, Completion] = {}
    begin = threading.Barrier(len(asks))

    def run(n: int) -> None:
        begin.wait()
        together[n] = llm.generate(**asks[n])

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, expected in enumerate(alone):
        assert (together[n].ids, together[n].text) == (expected.ids, expected.text)


def test_streams_of_one_model_taken_in_turns_do_not_disturb_each_other(llm: LLM):
    asks = [{"prompt": [n + 1] * (3 * n + 1), "max_tokens": 10, "ignore_eos": True} for n in range(4)]
    ids: list[list[int]] = [[] for _ in asks]
    for pieces in zip(*(llm.stream(**ask) for ask in asks), strict=True):
        for found, piece in zip(ids, pieces, strict=True):
            found += piece.ids
    assert ids == [llm.generate(**ask).ids for ask in asks]


# without a tokenizer


def test_a_model_without_a_tokenizer_takes_and_gives_ids():
    llm = random_llm()
    done = llm.generate([5, 6], max_tokens=4, ignore_eos=True)
    assert (len(done.ids), done.text) == (4, "")
    assert done.ids == random_llm(byte_level_tokenizer_json()).generate([5, 6], max_tokens=4, ignore_eos=True).ids
    assert done.timings.time_to_first_text is None
    for call in (lambda: llm.generate("a"), lambda: llm.tokenizer):
        with pytest.raises(ModelNotFound, match=r"no tokenizer: looked for tokenizer\.json, tokenizer\.model"):
            call()
    with pytest.raises(UnsupportedModel, match="stop strings need a tokenizer"):
        llm.generate([5], stop="a")
    with pytest.raises(BadRequest, match="no BOS token"):
        llm.generate([])


# what loading costs

MEMORY = """
    import re, sys
    import tinyinfer

    def memory():  # of this process alone, and of files
        status = open("/proc/self/status").read()
        return [int(re.search(name + r":\\s+(\\d+)", status)[1]) * 1024 for name in ("RssAnon", "RssFile")]

    small = tinyinfer.load(sys.argv[1])
    small.generate([1, 2, 3], max_tokens=3)  # what running takes by itself
    before = memory()
    large = tinyinfer.load(sys.argv[2])
    large.generate([1, 2, 3], max_tokens=3)
    print(*(now - then for now, then in zip(memory(), before)))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told by Linux")
@pytest.mark.skipif(not use_compiled(), reason="NumPy widens weights")
@pytest.mark.parametrize("scheme", ["int4", "int8", "nf4"])
def test_a_quantized_folder_is_mapped_and_not_copied(tmp_path: Path, scheme: str):
    sizes = {"hidden_size": 512, "intermediate_size": 4096, "vocab_size": 24_000, "head_dim": 64, "bos_token_id": 1}
    for name, changes in (("small", {"vocab_size": 97}), ("large", sizes)):
        random_model(tmp_path / "floats" / name, dtype="bfloat16", num_hidden_layers=2, **changes)
        plain = open_checkpoint(tmp_path / "floats" / name)
        quantize_folder(plain, tmp_path / name, scheme=scheme, embedding="int8")
    weights = sum(stored_bytes(open_checkpoint(tmp_path / "large").tensors).values())
    script = [sys.executable, "-c", textwrap.dedent(MEMORY), tmp_path / "small", tmp_path / "large"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=True, env=environment())
    anonymous, mapped = map(int, done.stdout.split())
    assert anonymous < weights / 4  # measured: 1 to 5 MB of some 35
    assert mapped > weights / 3  # all but the embedding, of which a few rows are read


# what importing costs


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


HEAVY = ["numpy", "numba", "llvmlite", "tokenizers", "huggingface_hub", "jinja2", "gguf", "safetensors"]


def test_importing_the_package_loads_nothing_heavy():
    program = f"import sys, tinyinfer; print([name for name in {HEAVY} if name in sys.modules])"
    assert run_python(program) == "[]"


def test_importing_the_package_is_quick():
    program = "import time; t = time.process_time(); import tinyinfer; print(time.process_time() - t)"
    assert min(float(run_python(program)) for _ in range(3)) < 0.3


def test_the_public_names_are_there_and_others_are_not():
    assert set(tinyinfer.__all__) <= set(dir(tinyinfer))
    for name in tinyinfer.__all__:
        assert getattr(tinyinfer, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tinyinfer.nonsense

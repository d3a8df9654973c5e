"""The two catalogue models against what transformers computed in float32 from the same weights (golden/real).

Compared is what the published files encode, in float32 all the way: weights, activations, keys and values. Of SmolLM2
the pulled folder holds that exactly. At the end, what rounding weights and activations changes.

Log-probabilities agree to 2e-3: float32 sums of 24 to 30 layers taken in another order; 1e-4 is what we measure. Greedy
ids may part where the two likeliest tokens are that near each other. They nowhere are, so all ids must be equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinyinfer
from tinyinfer.checkpoint.catalogue import catalogue
from tinyinfer.checkpoint.source import open_checkpoint, plain_rows, rounded_names, tensor_forms, tensor_layout
from tinyinfer.kernels.tape import use_compiled
from tinyinfer.quant import relative_error
from tinyinfer.quant.study import sample_rows

TOLERANCE = 2e-3
FILES = {"smollm2": "smollm2-135m-instruct.q4_1.json", "qwen": "qwen2.5-coder-0.5b-instruct.q4_k_m.json"}
FOLDER = Path(__file__).parent / "golden" / "real"
GOLDEN = {name: json.loads((FOLDER / file).read_text(encoding="utf-8"))["prompts"] for name, file in FILES.items()}


def each_prompt(chosen: Callable[[str, int], bool] = lambda name, index: True) -> pytest.MarkDecorator:
    """Give a test each model, loaded, with each of its golden prompts."""
    prompts = [
        pytest.param(name, prompt, id=f"{name}-{index}")
        for name, prompts in GOLDEN.items()
        for index, prompt in enumerate(prompts)
        if chosen(name, index)
    ]
    return pytest.mark.parametrize(("llm", "prompt"), prompts, indirect=["llm"])


EXACT = {"smollm2": "smollm2_folder", "qwen": "qwen_gguf"}


@lru_cache(maxsize=2)
def exact(path: Path) -> tinyinfer.LLM:
    return tinyinfer.load(path, activations="f32", kv_dtype="float32")


@pytest.fixture
def llm(request: pytest.FixtureRequest) -> tinyinfer.LLM:
    return exact(request.getfixturevalue(EXACT[request.param]))


@pytest.fixture(scope="module", autouse=True)
def _weights_are_let_go() -> Iterator[None]:
    yield
    exact.cache_clear()


on_smollm2 = pytest.mark.parametrize("llm", ["smollm2"], indirect=True)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@each_prompt()
def test_one_forward_scores_a_prompt_and_its_greedy_text_as_transformers_does(llm: tinyinfer.LLM, prompt: Any):
    ids, greedy = prompt["ids"], prompt["greedy"]
    rows = log_softmax(llm.forward(ids + greedy[:-1]))
    of_prompt, of_answer = rows[: len(ids) - 1], rows[len(ids) - 1 :]

    found = of_prompt[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(found, prompt["prompt_logprobs"], rtol=0, atol=TOLERANCE)
    assert len(of_answer) == len(greedy) == len(prompt["top5"])
    for row, top5, id in zip(of_answer, prompt["top5"], greedy, strict=True):
        expected_ids, expected = zip(*top5, strict=True)
        np.testing.assert_allclose(row[list(expected_ids)], expected, rtol=0, atol=TOLERANCE)
        assert row.argmax() == id


# of qwen, which takes four times as long a token: a code prompt, and two chats that end by themselves
@each_prompt(lambda name, index: name == "smollm2" or index in (1, 8, 11))
def test_decoding_with_the_cache_gives_the_greedy_ids_and_text(llm: tinyinfer.LLM, prompt: Any):
    ask = {"max_tokens": len(prompt["greedy"]), "temperature": 0}
    done = llm.chat(prompt["messages"], **ask) if "messages" in prompt else llm.generate(prompt["text"], **ask)
    assert done.prompt_ids == prompt["ids"]
    assert done.ids == prompt["greedy"]
    assert llm.tokenizer.decode(done.ids) == prompt["greedy_text"]
    ended = done.ids[-1] in llm.stop_ids
    assert done.finish_reason == ("stop" if ended else "length")
    assert prompt["greedy_text"] == done.text + (llm.tokenizer.decode(done.ids[-1:]) if ended else "")


@each_prompt()
def test_every_prompt_becomes_the_ids_of_llama_cpp(llm: tinyinfer.LLM, prompt: Any):
    found = llm.chat_ids(prompt["messages"]) if "messages" in prompt else llm.prompt_ids(prompt["text"])
    assert found == prompt["ids"]


def test_no_golden_answer_comes_near_a_tie():
    gaps = [top5[0][1] - top5[1][1] for prompts in GOLDEN.values() for p in prompts for top5 in p["top5"]]
    assert len(gaps) > 700
    assert min(gaps) > TOLERANCE


@each_prompt(lambda name, index: name == "smollm2" and index < 2)
def test_scores_and_log_probabilities_are_those_of_transformers(llm: tinyinfer.LLM, prompt: Any):
    ids, greedy = prompt["ids"], prompt["greedy"][:6]
    score = llm.score(ids[:1], ids[1:])
    np.testing.assert_allclose([t.logprob for t in score.tokens], prompt["prompt_logprobs"], rtol=0, atol=TOLERANCE)
    assert llm.score(ids, greedy).greedy
    done = llm.generate(ids, max_tokens=6, temperature=0, logprobs=5)
    for token, top5 in zip(done.logprobs, prompt["top5"], strict=False):
        expected_ids, expected = zip(*top5, strict=True)
        assert [id for id, _ in token.top] == list(expected_ids)
        np.testing.assert_allclose([logprob for _, logprob in token.top], expected, rtol=0, atol=TOLERANCE)


@on_smollm2
def test_greedy_over_the_growing_text_without_a_cache_is_the_same(llm: tinyinfer.LLM):
    ids = llm.tokenizer.encode("The three primary colours are")
    growing = list(ids)
    for _ in range(12):
        growing.append(int(llm.forward(growing)[-1].argmax()))
    assert llm.generate(ids, max_tokens=12, temperature=0).ids == growing[len(ids) :]


@on_smollm2
def test_a_second_turn_finds_the_first_in_the_cache(llm: tinyinfer.LLM):
    session = llm.session()
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    first = session.chat(messages, max_tokens=12, temperature=0)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And of Italy?"}]
    second = session.chat(messages, max_tokens=12, temperature=0)
    alone = llm.chat(messages, max_tokens=12, temperature=0)
    assert (second.prompt_ids, second.ids) == (alone.prompt_ids, alone.ids)
    # all of the first prompt and the answer, but not <|im_end|>, which was sampled and never run
    assert second.timings.cached_tokens == len(first.prompt_ids) + len(first.ids) - 1
    assert alone.timings.cached_tokens == 0


# ---- what is pulled


def skip_if_widened(folder: Path) -> None:
    """Folders used to be pulled as float32; such a one still serves all other tests."""
    if not tensor_forms(open_checkpoint(folder).tensors):
        pytest.skip(f"{folder} was pulled before folders kept weights quantized; tinyinfer pull --force renews it")


def test_the_qwen_folder_holds_what_the_file_encodes_but_for_the_types_that_are_rounded(
    qwen_folder: Path, qwen_gguf: Path
):
    skip_if_widened(qwen_folder)
    folder, file = open_checkpoint(qwen_folder).tensors, open_checkpoint(qwen_gguf).tensors
    assert set(folder) == set(file)
    rounded = rounded_names(file)
    assert {name.split(".", 3)[-1] for name in rounded} == {"mlp.down_proj.weight"}
    for name, (_, shape) in tensor_layout(file).items():
        rows = np.arange(shape[0]) if len(shape) == 1 else sample_rows(shape, 64)
        expected = file[name] if len(shape) == 1 else plain_rows(file, name, rows)
        found = folder[name] if len(shape) == 1 else plain_rows(folder, name, rows)
        assert np.array_equal(found, expected) == (name not in rounded), name
        assert relative_error(expected, found) < 0.006


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"])
def test_the_catalogue_knows_how_much_disk_a_model_takes(request: pytest.FixtureRequest, name: str):
    folder = request.getfixturevalue(f"{name.split('-')[0].split('2.5')[0]}_folder")
    skip_if_widened(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size <= catalogue()[name].disk_bytes <= 1.01 * size


# ---- what rounding changes


@dataclass
class Change:
    """Of the next token, over all positions of the golden texts.

    agreement     share of positions where the likeliest token is the same
    clear         of those alone where it is likelier than the second by a factor of 1.28, e^0.25
    divergence    mean Kullback-Leibler divergence from the exact distribution, in nats
    perplexity    of the texts, as a multiple of the exact one
    """

    agreement: float
    clear: float
    divergence: float
    perplexity: float


def change(exact: tinyinfer.LLM, rounded: tinyinfer.LLM, prompts: list[Any]) -> Change:
    same, clear, divergences, surprise = [], [], [], []
    for prompt in prompts:
        ids = prompt["ids"] + prompt["greedy"]
        expected, found = (log_softmax(llm.forward(ids)) for llm in (exact, rounded))
        second, first = np.partition(expected, -2, axis=-1)[:, -2:].T
        same += list(expected.argmax(axis=-1) == found.argmax(axis=-1))
        clear += list(first - second > 0.25)
        divergences += list((np.exp(expected) * (expected - found)).sum(axis=-1))
        surprise += list((expected - found)[np.arange(len(ids) - 1), ids[1:]])
    same = np.array(same)
    return Change(same.mean(), same[clear].mean(), np.mean(divergences), np.exp(np.mean(surprise)))


@pytest.mark.parametrize(
    ("llm", "form", "activations", "agreement", "divergence"),
    [
        ("smollm2", None, "int8", 0.96, 0.005),
        ("smollm2", "int8", "f32", 0.98, 0.001),
        ("smollm2", "int8", "int8", 0.96, 0.006),
        ("qwen", None, "int8", 0.96, 0.002),
    ],
    indirect=["llm"],
)
def test_quantized_weights_and_activations_in_8_bits(
    request: pytest.FixtureRequest, llm: tinyinfer.LLM, form: str | None, activations: str, agreement, divergence
):
    """The README has what was measured, 0.968 to 0.991, and divergences of three quarters of these limits at most.

    SmolLM2 has 30 of 662 positions within 0.1 nats of a tie. Which of those fall the other way is chance: with the same
    weights and activations, keys and values in float16 gave 0.982 where float32 gave 0.968.
    """
    if activations == "int8" and not use_compiled():
        pytest.skip("NumPy multiplies with float32 activations alone")
    model = next(name for name, fixture in EXACT.items() if llm.path == request.getfixturevalue(fixture))
    folder = request.getfixturevalue(f"{model}_folder")
    rounded = tinyinfer.load(folder, quantize=form, activations=activations, kv_dtype="float32")
    found = change(llm, rounded, GOLDEN[model])
    assert found.agreement > agreement
    assert found.clear > 0.99
    assert found.divergence < divergence


@on_smollm2
def test_int8_with_a_scale_a_row_costs_less_than_one_percent_of_perplexity(llm: tinyinfer.LLM, smollm2_folder: Path):
    """Of these texts, and of what the exact model itself would say: there the cost is the divergence."""
    rounded = tinyinfer.load(smollm2_folder, quantize="int8-row", activations="f32", kv_dtype="float32")
    found = change(llm, rounded, GOLDEN["smollm2"])
    assert found.perplexity < 1.01
    assert np.exp(found.divergence) < 1.01


def test_qwen_calls_a_tool(qwen_folder: Path):
    """As it does, without the marks that its template asks for; the likeliest tokens are far from a tie."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "get_weather", "description": "The weather in a city now", "parameters": parameters}
    ask = [{"role": "user", "content": "What is the weather in Paris?"}]
    llm = tinyinfer.load(qwen_folder)
    done = llm.chat(ask, tools=[{"type": "function", "function": tool}], temperature=0, max_tokens=60)
    assert (done.text, done.finish_reason) == ("", "tool_calls")
    assert [(call.name, json.loads(call.arguments)) for call in done.tool_calls] == [("get_weather", {"city": "Paris"})]

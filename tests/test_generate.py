"""From prompt to text: streaming, stopping, sampling and the limits, through `LLM.stream` and `LLM.generate`."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

from tests.chain_models import END, TEMPLATE, VOCAB, chain_checkpoint, say
from tests.text.tiny_tokenizers import added_token, byte_level_tokenizer_json, sentencepiece_tokenizer_json
from tinyinfer import LLM, Completion, SamplingParams
from tinyinfer.answer import FinishReason
from tinyinfer.errors import BadRequest, ContextOverflow, SamplingError, TemplateError

FIRE = "🔥".encode()  # four bytes
BOS = 270  # <s>


def chain_llm(chain: dict[int, int], **parts: Any) -> LLM:
    return LLM(chain_checkpoint(chain, **parts))


def chain_of(*ids: int) -> dict[int, int]:
    return dict(zip(ids, [*ids[1:], END], strict=True))


def added_llm(*texts: str, **parts: Any) -> LLM:
    """A model that says these texts after "a", each of them one new token."""
    tokens = tuple(added_token(0, text) for text in texts)
    chain = chain_of(ord("a"), *range(VOCAB, VOCAB + len(texts)))
    return chain_llm(chain, vocab=VOCAB + len(texts), tokenizer_json=byte_level_tokenizer_json(tokens), **parts)


def answer(llm: LLM, prompt: str | list[int], **params: Any) -> tuple[list[str], Completion]:
    """Texts of the pieces, and the completion: the same streamed and not, and true to itself in every way."""
    pieces = list(llm.stream(prompt, **params))
    done = pieces[-1].completion
    assert done.text == "".join(piece.text for piece in pieces)
    assert done.ids == [id for piece in pieces for id in piece.ids]
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert [piece.completion for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == done.finish_reason
    whole = llm.tokenizer.decode([id for id in done.ids if id != done.stop_reason], skip_special_tokens=True)
    if isinstance(done.stop_reason, str):
        assert whole[len(done.text) :].startswith(done.stop_reason)
        whole = whole[: len(done.text)]
    assert done.text == whole
    unstreamed = llm.generate(prompt, **params)
    assert (unstreamed.text, unstreamed.ids, unstreamed.finish_reason) == (done.text, done.ids, done.finish_reason)
    assert unstreamed.stop_reason == done.stop_reason
    return [piece.text for piece in pieces], done


# characters across tokens


def test_an_emoji_of_four_tokens_comes_as_one_piece():
    texts, done = answer(chain_llm(chain_of(ord("a"), *FIRE)), "a")
    assert done.text == "🔥"
    assert [text for text in texts if text] == ["🔥"]


def test_half_an_emoji_at_the_end_is_one_replacement_character():
    texts, done = answer(chain_llm(chain_of(ord("a"), *FIRE)), "a", max_tokens=2)
    assert (done.text, done.finish_reason) == ("\ufffd", "length")
    assert texts == ["", "", "\ufffd"]


def test_a_byte_that_is_no_text_does_not_hold_up_what_follows():
    texts, done = answer(chain_llm(chain_of(ord("a"), 0xFF, *b"bcd")), "a")
    assert done.text == "\ufffdbcd"
    assert "".join(texts[:2]) == "\ufffdb"
    assert texts[2:4] == ["c", "d"]


def test_sentencepiece_loses_the_first_space_and_no_other():
    tokenizer = sentencepiece_tokenizer_json()
    vocabulary = LLM(chain_checkpoint({}, vocab=400, tokenizer_json=tokenizer)).tokenizer
    for pieces, expected in {("▁", "▁leading", "▁x"): " leading x", ("▁leading", "▁x"): "leading x"}.items():
        ids = [vocabulary.id_of(piece) for piece in ("a", *pieces)]
        llm = chain_llm(chain_of(*ids), vocab=400, tokenizer_json=tokenizer)
        texts, done = answer(llm, ids[:1])
        assert done.text == expected
        assert "".join(texts) == llm.tokenizer.decode(ids[1:])


def test_a_byte_level_answer_keeps_the_space_that_it_begins_with():
    llm = chain_llm(chain_of(ord("a"), 257))  # "Ġb"
    assert answer(llm, "a")[1].text == " b"


# stop strings


@pytest.mark.parametrize(
    ("texts", "stop", "expected"),
    [
        (["quick br", "own fo", "x!"], ["own fox"], "quick br"),
        (["BC", "DE", "FG", "HI", "JK"], ["DEFGHIJ"], "BC"),
        (["xa", "b.", "cd"], ["ab.c", "ab"], "x"),
        (["xa", "b.", "cd"], ["ab", "ab.c"], "x"),
        (["one", "two STOP three", "four"], "STOP", "onetwo "),
        (["ab", "cde"], ["cx", "bcd"], "a"),
        (["abab", "ac", "ab.c"], ["abacab."], "ab"),
        (["one", "two"], ["one"], ""),
    ],
)
def test_the_text_is_cut_just_before_a_stop_string(texts: list[str], stop: Any, expected: str):
    pieces, done = answer(added_llm(*texts), "a", stop=stop)
    assert (done.text, done.finish_reason) == (expected, "stop")
    assert done.stop_reason in stop
    assert len(done.ids) <= len(texts)
    shown = ""
    for piece in pieces:  # nothing of the stop string was ever on its way
        shown += piece
        assert expected.startswith(shown)


def test_what_only_begins_a_stop_string_comes_in_the_end():
    pieces, done = answer(added_llm("say own", " fo"), "a", stop="own fox")
    assert (done.text, done.finish_reason, done.stop_reason) == ("say own fo", "stop", END)
    assert pieces == ["say ", "", "own fo"]


def test_a_stop_string_found_when_the_text_ends_is_the_reason():
    # "bc" is complete, but "abcd", which begins before it, could still come
    done = answer(added_llm("xa", "bc"), "a", stop=["abcd", "bc"])[1]
    assert (done.text, done.finish_reason, done.stop_reason) == ("xa", "stop", "bc")
    done = answer(added_llm("xa", "bc"), "a", stop=["abcd", "bc"], max_tokens=2)[1]
    assert (done.text, done.finish_reason, done.stop_reason) == ("xa", "stop", "bc")


def test_a_stop_string_in_the_prompt_stops_nothing():
    assert answer(chain_llm(say("bc", after="a")), "a", stop="a")[1].text == "bc"


# end-of-sequence ids

B, C = ord("b"), ord("c")
ENDS = {
    "a number in config.json": ({"eos_token_id": C}, {}, {}, {C}),
    "a list in config.json": ({"eos_token_id": [C, 271]}, {}, {}, {C, 271}),
    "a number in generation_config.json": ({"eos_token_id": None}, {"eos_token_id": C}, {}, {C}),
    "a list in generation_config.json": ({"eos_token_id": None}, {"eos_token_id": [C, 272]}, {}, {C, 272}),
    "only in the tokenizer": ({"eos_token_id": None}, {}, {"eos_token": "</s>"}, {271}),
    "an added token of the tokenizer": ({"eos_token_id": None}, {}, {"eos_token": {"content": "</s>"}}, {271}),
    "all three differ": ({"eos_token_id": C}, {"eos_token_id": [272]}, {"eos_token": "</s>"}, {C, 271, 272}),
}


@pytest.mark.parametrize(("config", "generation", "tokenizer", "ends"), ENDS.values(), ids=ENDS)
def test_every_end_of_sequence_id_of_every_file_ends_the_text(config: Any, generation: Any, tokenizer: Any, ends: set):
    files = {"config": config, "generation_config": generation, "tokenizer_config": tokenizer}
    assert chain_llm({}, **files).stop_ids == ends
    for end in ends:
        llm = chain_llm({ord("a"): B, B: end, end: ord("d"), ord("d"): ord("d")}, **files)
        done = answer(llm, "a", max_tokens=8)[1]
        assert (done.text, done.ids) == ("b", [B, end])
        assert (done.finish_reason, done.stop_reason) == ("stop", end)
        going_on = answer(llm, "a", max_tokens=8, ignore_eos=True)[1]
        assert going_on.ids == [B, end] + [ord("d")] * 6
        assert (going_on.finish_reason, going_on.stop_reason) == ("length", None)


def test_the_end_as_the_last_token_allowed_is_a_stop():
    llm = chain_llm(say("bc", after="a"))
    done = answer(llm, "a", max_tokens=3)[1]
    assert (done.ids[-1], done.finish_reason) == (END, "stop")
    done = answer(llm, "a", max_tokens=2)[1]
    assert (done.text, done.finish_reason) == ("bc", "length")


def test_one_token_allowed_is_a_length_on_every_route():
    llm, ask = chain_llm(say("bc", after="a") | say("Hi")), [{"role": "user", "content": "x"}]
    ends = [
        llm.generate("a", max_tokens=1),
        *llm.samples("a", 2, max_tokens=1),
        llm.session().generate("a", max_tokens=1),
        llm.chat(ask, max_tokens=1),
        llm.session().chat(ask, max_tokens=1),
        list(llm.stream("a", max_tokens=1))[-1].completion,
        list(llm.chat_stream(ask, max_tokens=1))[-1].completion,
    ]
    assert [(done.finish_reason, len(done.ids)) for done in ends] == [("length", 1)] * len(ends)
    assert [piece.finish_reason for piece in llm.stream("a", max_tokens=1)] == [None, "length"]
    assert set(get_args(FinishReason)) == {"stop", "length", "tool_calls"}  # OpenAI's words, as far as there is a use


def test_an_id_that_the_vocabulary_lacks_gives_no_text():
    llm = chain_llm(chain_of(ord("a"), VOCAB + 3, ord("b")), vocab=VOCAB + 8)
    assert answer(llm, "a")[1].text == "b"


# sampling


@pytest.fixture(scope="module")
def flat() -> LLM:
    """Every token equally likely after every other, but for "b", a little likelier."""
    head = np.zeros((VOCAB, VOCAB), np.float32)
    head[B] = 0.05
    return chain_llm({}, tensors={"lm_head.weight": head})


ALWAYS_THE_LIKELIEST = [
    {"temperature": 0}, {"temperature": 1e-5}, {"temperature": 1e-40}, {"temperature": 5e-324},
    {"temperature": 1, "top_k": 1},
    {"temperature": 100, "top_p": 0}, {"temperature": 1, "top_p": 1e-9}, {"temperature": 1, "min_p": 1},
    {"temperature": 0, "top_k": 10_000, "top_p": 0, "min_p": 1},
]  # fmt: skip


@pytest.mark.parametrize("params", ALWAYS_THE_LIKELIEST, ids=str)
def test_extreme_values_that_leave_the_likeliest_token(flat: LLM, params: dict[str, Any]):
    assert flat.generate("a", max_tokens=6, seed=1, **params).ids == [B] * 6


@pytest.mark.parametrize(
    "params", [{}, {"top_k": 0}, {"top_k": 10_000}, {"top_p": 1}, {"min_p": 0}, {"top_k": VOCAB}], ids=str
)
@pytest.mark.parametrize("temperature", [1, 100, 1e300])
def test_extreme_values_that_leave_every_token(flat: LLM, params: dict[str, Any], temperature: float):
    ask = {"max_tokens": 40, "ignore_eos": True, "seed": 3}
    ids = flat.generate("a", temperature=temperature, **ask, **params).ids
    assert len(set(ids)) > 20  # of 40 draws among 275, so not one token again and again
    if not params:
        return
    assert ids == flat.generate("a", temperature=temperature, **ask).ids


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "seed", "max_tokens"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "1", True, [1]])
def test_impossible_values_are_refused_by_name_before_anything_runs(flat: LLM, name: str, value: Any):
    with pytest.raises(BadRequest, match=name) as caught:
        flat.stream("a", **{name: value})
    assert caught.value.parameter == name


def test_an_unknown_parameter_is_refused_with_those_that_there_are(flat: LLM):
    with pytest.raises(BadRequest, match="unknown sampling parameter 'temp'; known are max_tokens, temperature"):
        flat.generate("a", temp=1)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1, "seed": 1}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("at", [0, 100, VOCAB - 1])
@pytest.mark.parametrize(("weight", "found"), [(math.nan, "nan"), (3e38, "inf")])
def test_weights_that_give_no_number_are_an_error_and_not_token_0(weight: float, found: str, at: int, params: Any):
    llm = chain_llm(say("bcd", after="a"))
    tape = llm.model._tape
    unbroken = tape.run

    def run(step: Any) -> None:
        unbroken(step)
        if step.ids[0] == C:
            _with(step.logits, at, weight)

    tape.run = run
    pieces = llm.stream("a", **params)
    assert (next(pieces).text, next(pieces).text) == ("b", "c")
    with pytest.raises(SamplingError, match=f"{found} at id {at}"):
        next(pieces)


def _with(logits: np.ndarray, at: int, weight: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        logits[:, at] = np.float32(weight) * np.float32(10)
    return logits


def test_a_head_that_holds_a_nan_is_an_error():
    head = np.zeros((VOCAB, VOCAB), np.float32)
    head[7, 7] = math.nan
    with pytest.raises(SamplingError, match="found nan at id 7"):
        chain_llm({}, tensors={"lm_head.weight": head}).generate("a")


def test_a_seed_gives_the_same_text_again_and_another_seed_another(flat: LLM):
    ask = {"max_tokens": 20, "temperature": 1, "ignore_eos": True}
    first = flat.generate("a", seed=5, **ask)
    assert flat.generate("a", seed=5, **ask).ids == first.ids
    assert flat.generate("a", seed=6, **ask).ids != first.ids


def test_the_params_of_a_completion_give_it_again(flat: LLM):
    first = flat.generate("a", max_tokens=20, temperature=0.9, top_p=0.95, ignore_eos=True)
    assert isinstance(first.params.seed, int)
    assert flat.generate("a", first.params).ids == first.ids
    assert flat.generate("a", max_tokens=20, temperature=0.9, top_p=0.95, ignore_eos=True).ids != first.ids


def test_what_generation_config_advises_holds_until_the_caller_says_otherwise():
    advice = {"do_sample": True, "temperature": 0.5, "top_k": 4}
    llm = chain_llm(say("bc", after="a"), generation_config=advice)
    params = llm.generate("a").params
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 4, 1.0)
    assert llm.generate("a", SamplingParams(temperature=0), top_k=2).params.top_k == 2
    assert llm.generate("a", temperature=0).params.temperature == 0


# too long, and empty


@pytest.fixture(scope="module")
def small() -> LLM:
    """A context of 32; "b" follows everything."""
    return chain_llm(dict.fromkeys(range(VOCAB), B), context=32, tokenizer_config={})


@pytest.mark.parametrize(
    ("length", "max_tokens", "expected"),
    [(30, 10, 2), (31, None, 1), (31, 10, 1), (32, None, 0), (32, 1, 0), (1, None, 31), (30, 1, 1), (30, 0, 0)],
)
def test_prompt_and_answer_share_the_context(small: LLM, length: int, max_tokens: int | None, expected: int):
    texts, done = answer(small, "x" * length, max_tokens=max_tokens)
    assert (len(done.prompt_ids), len(done.ids)) == (length, expected)
    assert (done.text, done.finish_reason, done.stop_reason) == ("b" * expected, "length", None)
    assert len(texts) == expected + 1


@pytest.mark.parametrize("length", [33, 5000])
@pytest.mark.parametrize("max_tokens", [None, 0, 1])
def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(small: LLM, length: int, max_tokens: Any):
    for prompt in ("x" * length, [B] * length):
        with pytest.raises(ContextOverflow, match=f"{length:,} tokens, more than the context of 32"):
            small.stream(prompt, max_tokens=max_tokens)
    assert small.generate("x", max_tokens=1).text == "b"


def test_a_long_system_message_is_refused_and_not_cut(small: LLM):
    ask = [{"role": "system", "content": "x" * 40}, {"role": "user", "content": "y"}]
    with pytest.raises(ContextOverflow, match="more than the context of 32"):
        small.chat(ask)
    assert small.generate("x", max_tokens=1).text == "b"


def test_context_overflow_is_a_bad_request_that_names_the_prompt(small: LLM):
    with pytest.raises(BadRequest) as caught:
        small.generate([B] * 40)
    assert caught.value.parameter == "prompt"


def test_a_smaller_context_can_be_asked_for():
    llm = LLM(chain_checkpoint(dict.fromkeys(range(VOCAB), B)), context=5)
    assert len(llm.generate("xyz").ids) == 2
    with pytest.raises(ContextOverflow, match="6 tokens, more than the context of 5"):
        llm.generate("x" * 6)


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_begins_with_bos_where_there_is_one(prompt: Any):
    chain = {BOS: B, B: END}
    asks = chain_llm(chain, tokenizer_json=byte_level_tokenizer_json(bos=True), tokenizer_config={"bos_token": "<s>"})
    has = chain_llm(chain, tokenizer_config={"bos_token": "<s>", "eos_token": "<|im_end|>"})
    for llm in (asks, has):
        done = llm.generate(prompt)
        assert (done.prompt_ids, done.text) == ([BOS], "b")


@pytest.mark.parametrize("prompt", ["", []])
@pytest.mark.parametrize("max_tokens", [None, 0, 1])
def test_an_empty_prompt_without_bos_is_refused(small: LLM, prompt: Any, max_tokens: int | None):
    with pytest.raises(BadRequest, match="the prompt is empty, and the model has no BOS token"):
        small.stream(prompt, max_tokens=max_tokens)
    assert small.generate("x", max_tokens=1).text == "b"


def test_empty_conversations_are_refused(small: LLM):
    with pytest.raises(BadRequest, match="at least one message"):
        small.chat([])


def test_no_tokens_asked_for_is_an_empty_answer_with_no_times():
    done = chain_llm(say("bc", after="a")).generate("a", max_tokens=0)
    assert (done.text, done.ids, done.finish_reason, done.stop_reason) == ("", [], "length", None)
    assert done.timings.time_to_first_token is None
    assert done.timings.time_to_first_text is None
    assert done.timings.prefill_tokens_per_second is None
    assert done.timings.decode_tokens_per_second is None


# beginning-of-sequence, and conversations

WITH_BOS = "{{ bos_token }}" + TEMPLATE


@pytest.mark.parametrize(("template", "count"), [(WITH_BOS, 1), (TEMPLATE, 0), ("{{ bos_token }}" + WITH_BOS, 2)])
def test_a_conversation_has_the_bos_that_its_template_writes_and_no_other(template: str, count: int):
    tokenizer = {"bos_token": "<s>", "eos_token": "<|im_end|>", "add_bos_token": True}
    llm = chain_llm(
        say("Hi"), template=template, tokenizer_json=byte_level_tokenizer_json(bos=True), tokenizer_config=tokenizer
    )
    done = llm.chat([{"role": "user", "content": "x"}])
    assert done.text == "Hi"
    assert done.prompt_ids.count(BOS) == count
    assert done.prompt_ids[:count] == [BOS] * count
    assert done.timings.prompt_tokens == len(done.prompt_ids)
    assert llm.generate("Hi").prompt_ids == [BOS, *b"Hi"]
    assert llm.generate("<s>Hi").prompt_ids == [BOS, *b"Hi"]


def test_raw_text_has_no_bos_where_the_tokenizer_asks_for_none():
    llm = chain_llm(say("bc", after="i"), tokenizer_config={"bos_token": "<s>", "eos_token": "<|im_end|>"})
    assert llm.generate("Hi").prompt_ids == list(b"Hi")


def test_a_refusal_of_the_template_is_quoted_and_the_next_conversation_works():
    llm = chain_llm(say("Hi"))
    with pytest.raises(TemplateError, match="System role refused"):
        llm.chat_stream([{"role": "system", "content": "forbidden"}, {"role": "user", "content": "x"}])
    assert llm.chat([{"role": "user", "content": "x"}]).text == "Hi"


def test_a_template_that_wants_turns_in_order_refuses_two_of_the_user():
    strict = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}\n{% endfor %}"
    )
    llm = chain_llm(say("Hi"), template=strict)
    with pytest.raises(TemplateError, match="roles must alternate"):
        llm.chat([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    assert llm.chat([{"role": "user", "content": "a"}]).text == "Hi"


def test_all_text_parts_are_kept_in_their_order():
    llm = chain_llm(say("Hi"))
    for kind in ({"type": "text"}, {}):
        done = llm.chat([{"role": "user", "content": [{**kind, "text": "one"}, {**kind, "text": "two"}]}])
        said = llm.tokenizer.decode(done.prompt_ids)
        assert 0 < said.find("one") < said.find("two")


def test_tool_calls_reach_the_template_parsed_and_null_content_as_empty():
    template = (
        "{% for m in messages %}{{ m.content }}|{% for call in m.tool_calls or [] %}"
        "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}{% endfor %}"
        "{% endfor %}{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{{ '\\n' }}"
    )
    llm = chain_llm(say("Hi"), template=template)
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": 7}'}}
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    done = llm.chat(messages, tools=[{"type": "function", "function": {"name": "look"}}])
    assert llm.tokenizer.decode(done.prompt_ids) == "go||at=7;look\n"
    assert done.text == "Hi"
    assert call["function"]["arguments"] == '{"at": 7}'


def test_a_model_without_a_template_says_so():
    llm = chain_llm(say("bc", after="a"), template=None)
    with pytest.raises(TemplateError, match="no chat template"):
        llm.chat([{"role": "user", "content": "x"}])
    assert llm.generate("a").text == "bc"

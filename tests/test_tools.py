"""Calls of tools and reasoning through `LLM.chat`: the same streamed and not, and no mark of them in the text."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.chain_models import END, TEMPLATE, chain_checkpoint, script
from tinyinfer import LLM, Completion, Engine
from tinyinfer.errors import BadRequest, TemplateError

ASK = [{"role": "user", "content": "x"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "[THINK]", "[/THINK]")
HERMES = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" + TEMPLATE
THINKS = "{# <think></think> #}" + HERMES


def saying(*texts: str, template: str = HERMES) -> LLM:
    """A model whose answer in a chat is these texts, each one token; those of SPECIAL are special tokens."""
    return LLM(chain_checkpoint(**script(*texts, special=SPECIAL), template=template))


def chat(llm: LLM, messages: Any = ASK, **params: Any) -> Completion:
    """The answer, which is the same streamed and not, and whose pieces make up the whole."""
    pieces = list(llm.chat_stream(messages, **params))
    done = pieces[-1].completion
    assert done.text == "".join(piece.text for piece in pieces)
    assert done.reasoning == "".join(piece.reasoning for piece in pieces)
    assert done.tool_calls == tuple(call for piece in pieces for call in piece.tool_calls)
    assert done.ids == [id for piece in pieces for id in piece.ids]
    assert pieces[-1].finish_reason == done.finish_reason
    unstreamed = llm.chat(messages, **params)
    fields = ("text", "reasoning", "tool_calls", "finish_reason", "stop_reason", "ids", "message")
    assert [getattr(done, name) for name in fields] == [getattr(unstreamed, name) for name in fields]
    return done


CALL = ("<tool_call>", '\n{"name": "f", ', '"arguments": {"a": ', "[1, 2]", "}}\n", "</tool_call>")
BAD = ("<tool_call>", '\n{"name": "f", ', '"arguments": oops', "</tool_call>")
NEWER = ("[TOOL_CALLS]", "find", "[ARGS]", '{"a": [1', ", 2]}")


def test_a_call_is_kept_apart_from_the_text():
    done = chat(saying("Wait.", "  ", *CALL), tools=TOOLS)
    assert (done.text, done.reasoning, done.finish_reason, done.stop_reason) == ("Wait.", "", "tool_calls", END)
    (call,) = done.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("f", {"a": [1, 2]})
    assert done.message == {
        "role": "assistant",
        "content": "Wait.",
        "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": "f", "arguments": '{"a": [1, 2]}'}},
        ],
    }


@pytest.mark.parametrize("texts", [CALL, ("so ", *CALL), ("<think>", "hm", "</think>", "\n\n", "so ", *CALL)])
def test_no_mark_is_in_the_text_wherever_the_answer_is_cut(texts: tuple[str, ...]):
    llm = saying(*texts, template=THINKS)
    for max_tokens in range(len(texts) + 2):
        done = chat(llm, tools=TOOLS, max_tokens=max_tokens)
        assert done.text.strip() in ("", "so")
        assert done.reasoning in ("", "hm")
        whole = max_tokens >= len(texts) - 1  # the JSON is complete before the mark that ends it
        assert len(done.tool_calls) == whole
        assert done.finish_reason == ("tool_calls" if max_tokens > len(texts) else "length")


def test_marks_that_are_special_tokens_are_seen_and_not_shown():
    template = "{{ tools }}[TOOL_CALLS]" + TEMPLATE
    done = chat(saying("Wait.", *NEWER, template=template), tools=TOOLS)
    assert (done.text, done.finish_reason) == ("Wait.", "tool_calls")
    assert [(call.name, call.arguments) for call in done.tool_calls] == [("find", '{"a": [1, 2]}')]
    for max_tokens in range(7):
        assert "[" not in chat(saying("Wait.", *NEWER, template=template), tools=TOOLS, max_tokens=max_tokens).text
    # without tools, special tokens give no text, as ever
    assert chat(saying("Wait.", *NEWER, template=template)).text == 'Wait.find{"a": [1, 2]}'
    done = chat(saying("one", "[TOOL_CALLS]", "two", template=template), tools=TOOLS)
    assert (done.text, done.tool_calls, done.finish_reason) == ("onetwo", (), "stop")


def test_python_tag():
    template = "{{ tools }}<|python_tag|>" + TEMPLATE
    for texts in (
        ("<|python_tag|>", '{"name": "f", "parameters": {"a": 1}}'),
        ('{"name": "f", ', '"parameters": {"a": 1}}'),
    ):
        done = chat(saying(*texts, template=template), tools=TOOLS)
        assert (done.text, [(call.name, call.arguments) for call in done.tool_calls]) == ("", [("f", '{"a": 1}')])


def test_what_is_no_valid_call_is_text():
    done = chat(saying("so ", *BAD, "!!"), tools=TOOLS)
    assert (done.text, done.tool_calls, done.finish_reason) == ("so " + "".join(BAD) + "!!", (), "stop")


def test_without_tools_calls_are_text():
    for tools in (None, []):
        assert chat(saying(*CALL), tools=tools).text == "".join(CALL)
    assert saying(*CALL).generate("\n").text == "".join(CALL)


def test_the_caller_may_name_the_format():
    assert chat(saying(*CALL, template=TEMPLATE), tool_format="hermes").tool_calls
    assert chat(saying(*CALL), tools=TOOLS, tool_format="none").text == "".join(CALL)
    with pytest.raises(BadRequest, match=r"tool_format should be one of .*, found 'x'"):
        saying("one").chat(ASK, tools=TOOLS, tool_format="x")


def test_tools_that_the_template_would_leave_out_are_refused():
    llm = saying("one", template=TEMPLATE)
    with pytest.raises(BadRequest, match="this model's chat template has no place for tools") as caught:
        llm.chat_stream(ASK, tools=TOOLS)
    assert caught.value.parameter == "tools"
    assert not isinstance(caught.value, TemplateError)
    assert llm.chat(ASK, tools=[]).text == "one"


def test_a_template_of_its_own_for_tools():
    checkpoint = chain_checkpoint(**script(*CALL), template=TEMPLATE)
    llm = LLM(dataclasses.replace(checkpoint, tool_template="{{ tools[0].function.name }}<tool_call>" + TEMPLATE))
    assert llm.chat(ASK, tools=TOOLS).tool_calls
    assert llm.tokenizer.decode(llm.chat_ids(ASK, TOOLS)).startswith("f<tool_call>")
    assert llm.chat(ASK).text == "".join(CALL)
    assert llm.tokenizer.decode(llm.chat_ids(ASK)).startswith("<|im_start|>user")


def test_a_stop_string_inside_of_a_call_cuts_it():
    done = chat(saying("so ", *CALL), tools=TOOLS, stop="[1")
    assert (done.text.rstrip(), done.tool_calls, done.finish_reason, done.stop_reason) == ("so", (), "stop", "[1")
    done = chat(saying("so <", ";; on"), tools=TOOLS, stop=";;")
    assert done.text == "so <"  # a mark goes on otherwise
    done = chat(saying("so <", "tool_", "call>"), tools=TOOLS, stop="_c")
    assert done.text == "so "
    done = chat(saying(*CALL, " and on"), tools=TOOLS, stop="and")
    assert (done.text, len(done.tool_calls), done.finish_reason) == ("", 1, "tool_calls")


@pytest.mark.parametrize(
    "texts", [("<think>", "\nhm\n", "</think>", "\n\n", "Yes."), ("[THINK]", "hm", "[/THINK]", "Yes.")]
)
def test_reasoning_is_kept_apart_from_the_text(texts: tuple[str, ...]):
    for template in (THINKS.replace("<think></think>", texts[0]), TEMPLATE):  # or as tokens that the vocabulary has
        done = chat(saying(*texts, template=template))
        assert (done.text, done.reasoning, done.finish_reason) == ("Yes.", "hm", "stop")
        assert done.message == {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
    assert saying(*texts).generate("\n").text == "".join(text for text in texts if text not in SPECIAL)


def test_a_prompt_that_opens_the_block_of_reasoning():
    opened = THINKS.replace("assistant\n", "assistant\n<think>\n")
    done = chat(saying("hm", "\n\n", "</think>", "  ", "Yes.", template=opened))
    assert (done.text, done.reasoning) == ("Yes.", "hm")
    done = chat(saying("hm", template=opened), max_tokens=1)
    assert (done.text, done.reasoning, done.finish_reason) == ("", "hm", "length")
    closed = THINKS.replace("assistant\n", "assistant\n<think>\n\n</think>\n\n")
    assert chat(saying("Yes.", template=closed)).text == "Yes."
    # what a user writes opens nothing
    assert chat(saying("Yes.", template=THINKS), [{"role": "user", "content": "<think>"}]).text == "Yes."


def test_reasoning_can_be_the_first_text():
    timings = chat(saying("<think>", "hm", "</think>", template=THINKS)).timings
    assert timings.time_to_first_text is not None


def test_an_answer_is_a_message_that_the_next_turn_takes():
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.reasoning_content }}{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}#{{ c.id }}{% endfor %}"
        "{{ m.tool_call_id }}\n{% endfor %}{# tools <think> <tool_call> #}"
    )
    llm = saying("<think>", "hm", "</think>", "so ", *CALL, template=template)
    done = llm.chat(ASK, tools=TOOLS)
    (call,) = done.tool_calls
    messages = [*ASK, done.message, {"role": "tool", "content": "7", "tool_call_id": call.id}]
    prompt = llm.tokenizer.decode(llm.chat_ids(messages, TOOLS))
    assert prompt == f"user:x\nassistant:sohma=[1, 2]#{call.id}\ntool:7{call.id}\n"


def test_samples_sessions_and_engines_read_answers_alike():
    llm = saying("so ", *CALL)
    prompt = llm.chat_prompt(ASK, TOOLS)
    assert [len(done.tool_calls) for done in llm.samples(prompt, 2, temperature=1, top_k=1)] == [1, 1]
    assert llm.session().chat(ASK, tools=TOOLS).tool_calls == llm.chat(ASK, tools=TOOLS).tool_calls
    assert llm.generate(prompt).tool_calls == llm.chat(ASK, tools=TOOLS).tool_calls
    plain, read = Engine(llm).generate_many([prompt.ids, prompt])
    assert (plain.text, plain.tool_calls) == ("so " + "".join(CALL), ())
    assert (read.text, read.tool_calls) == ("so", llm.generate(prompt).tool_calls)


TAGGED = {
    "qwen3_coder": (
        "{# <parameter= #}", "<tool_call>", "\n<function=", "f>\n", "<parameter=", "a>\n7", "\n</parameter>\n",
        "</function>", "\n</tool_call>",
    ),
    "glm": (
        "{# <arg_key> #}", "<tool_call>", "f\n", "<arg_key>", "a</arg_key>", "\n<arg_value>", "7</arg_value>",
        "\n</tool_call>",
    ),
    "deepseek": (
        "{# <｜tool▁call▁begin｜> #}", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>",
        'f\n```json\n{"a": ', '"7"}', "\n```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAGGED)
def test_calls_between_tags_are_told_by_the_template_and_typed_by_the_tool(name: str):
    """And none of their marks leaks, wherever the answer is cut."""
    shown, *texts = TAGGED[name]
    template = shown + "{% if tools %}{{ tools | tojson }}{% endif %}" + TEMPLATE
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    llm = saying("Wait.", *texts, template=template)
    done = chat(llm, tools=tools)
    assert (done.text, done.finish_reason) == ("Wait.", "tool_calls")
    assert [(call.name, json.loads(call.arguments)) for call in done.tool_calls] == [("f", {"a": "7"})]
    for max_tokens in range(1, len(texts) + 1):
        cut = chat(llm, tools=tools, max_tokens=max_tokens)
        assert cut.text == "Wait."
        assert len(cut.tool_calls) <= 1

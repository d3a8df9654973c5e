"""Reasoning and calls of tools, told apart from text: every format, malformed, cut short, and in any pieces."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinyinfer.errors import BadRequest
from tinyinfer.text.calls import FORMATS, may_begin_call, template_format, tool_format
from tinyinfer.text.chat import ChatTemplate
from tinyinfer.text.markup import Markup, MarkupParser, Said
from tinyinfer.text.tool_call import Reader, ToolFormat

THINK = ("<think>", "</think>")
MISTRAL = frozenset(["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"])


def said_in(pieces: list[str], markup: Markup, cut: bool = False) -> Said:
    parser = MarkupParser(markup)
    parts = [*(parser.push(piece) for piece in pieces), parser.finish(cut)]
    return Said(
        "".join(part.text for part in parts),
        "".join(part.reasoning for part in parts),
        tuple(call for part in parts for call in part.tool_calls),
    )


def read(text: str, format: str = "hermes", cut: bool = False, **markup: Any) -> Said:
    """What is said in a text, which is the same however it comes in pieces."""
    markup = Markup(FORMATS[format], **markup)
    whole = said_in([text], markup, cut)
    for size in (1, 2, 3, 5, 11):
        assert said_in([text[at : at + size] for at in range(0, len(text), size)], markup, cut) == whole
    return whole


def calls_in(said: Said) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in said.tool_calls]


# --- the formats ---

JSON_CALL = '{"name": "f", "arguments": {"a": 1}}'
ONE = [("f", {"a": 1})]
QWEN_CALL = "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"
VALID = {
    "hermes": ("hermes", f"<tool_call>\n{JSON_CALL}\n</tool_call>", ONE),
    "hermes, two": (
        "hermes",
        f'<tool_call>{JSON_CALL}</tool_call>\n<tool_call>{{"name": "g", "arguments": {{}}}}</tool_call>',
        [*ONE, ("g", {})],
    ),
    "hermes, two in one": ("hermes", f"<tool_call>{JSON_CALL}\n{JSON_CALL}</tool_call>", ONE * 2),
    "hermes, a list": ("hermes", f"<tool_call>[{JSON_CALL}]</tool_call>", ONE),
    "hermes without marks": ("hermes", JSON_CALL, ONE),
    "hermes in a block": ("hermes", f"```json\n{JSON_CALL}\n```", ONE),
    "hermes without its end": ("hermes", f"<tool_call>\n{JSON_CALL}", ONE),
    "hermes, half its end": ("hermes", f"<tool_call>\n{JSON_CALL}\n</tool_c", ONE),
    "arguments first": ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', ONE),
    "arguments as text": ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ONE),
    "inside of function": (
        "hermes", f'<tool_call>{{"type": "function", "function": {JSON_CALL}}}</tool_call>', ONE
    ),
    "marks, braces and quotes in strings": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call> } \\" \\\\", "b": "<tool_call>"}}</tool_call>',
        [("f", {"a": '</tool_call> } " \\', "b": "<tool_call>"})],
    ),
    "a line break as it is": (
        "hermes", '<tool_call>{"name": "f", "arguments": {"a": "1\n2"}}</tool_call>', [("f", {"a": "1\n2"})]
    ),
    "half a surrogate pair": (
        "hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud83d"}}</tool_call>', [("f", {"a": "\ud83d"})]
    ),
    "letters": ("hermes", '<tool_call>{"name": "f", "arguments": {"é": "🔥"}}</tool_call>', [("f", {"é": "🔥"})]),
    "llama3": ("llama3", '{"name": "f", "parameters": {"a": 1}}', ONE),
    "llama3 with a type": ("llama3", '{"type": "function", "name": "f", "parameters": {"a": 1}}', ONE),
    "llama3, two": (
        "llama3", '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', [*ONE, ("g", {})]
    ),
    "llama3 with its mark": ("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', ONE),
    "llama3, built in": (
        "llama3", '<|python_tag|>brave_search.call(query="a b")', [("brave_search", {"query": "a b"})]
    ),
    "mistral": ("mistral", f"[TOOL_CALLS] [{JSON_CALL}]", ONE),
    "mistral, two": ("mistral", f'[TOOL_CALLS][{JSON_CALL}, {{"name": "g", "arguments": {{}}}}]', [*ONE, ("g", {})]),
    "mistral, newer": ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}', ONE),
    "mistral, newer, two": ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]my-g[ARGS]{}', [*ONE, ("my-g", {})]),
    "mistral with an id": ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}', ONE),
    "granite": ("granite", f"<|tool_call|>[{JSON_CALL}]", ONE),
    "phi-4": ("granite", f"<|tool_call|>[{JSON_CALL}]<|/tool_call|>", ONE),
    "gemma": ("gemma", "```tool_code\nf(a=1)\n```", ONE),
    "gemma, printed": ("gemma", "```tool_code\nprint(f(a=1))\ng()\n```", [*ONE, ("g", {})]),
    "gemma, literals": (
        "gemma",
        "```tool_code\napi.f(a=[1, -2.5, None, True], b={'c': 'd\\d'})\n```",
        [("api.f", {"a": [1, -2.5, None, True], "b": {"c": "d\\d"}})],
    ),
    "gemma, a list": ("gemma", "[f(a=1), g()]", [*ONE, ("g", {})]),
    "gemma, JSON": ("gemma", '{"name": "f", "parameters": {"a": 1}}', ONE),
    "gemma, a block in a string of JSON": (
        "gemma", '```json\n{"name": "f", "parameters": {"a": "```py\\nx = \\"y\\"\\n```"}}\n```',
        [("f", {"a": '```py\nx = "y"\n```'})],
    ),
    "gemma, a block in a string": (
        "gemma", "```tool_code\n# don't\nf(a=\"\"\"```py\nit's\n```\"\"\")\n```",
        [("f", {"a": "```py\nit's\n```"})],
    ),
    "gemma, a block of JSON": ("gemma", '```json\n{"name": "f", "parameters": {"a": 1}}\n```', ONE),
    "qwen3_coder": (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        ONE,
    ),
    "qwen3_coder, two": (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=g>\n</function>\n</tool_call>",
        [*ONE, ("g", {})],
    ),
    "qwen3_coder, two in one": (
        "qwen3_coder", f"<tool_call>{QWEN_CALL}\n<function=g></function></tool_call>", [*ONE, ("g", {})]
    ),
    "qwen3_coder, half its marks": ("qwen3_coder", f"{QWEN_CALL}\n</tool_call>", ONE),
    "qwen3_coder, an end inside of text": (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>\n\nx </parameter> y\n</parameter><parameter=b>[1, {}]</parameter>"
        "</function></tool_call>",
        [("f", {"a": "\nx </parameter> y", "b": [1, {}]})],
    ),
    "glm": ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", ONE),
    "glm, two": (
        "glm",
        "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>\n<tool_call>g\n</tool_call>",
        [*ONE, ("g", {})],
    ),
    "glm, texts": (
        "glm",
        "<tool_call>f\n<arg_key>a b</arg_key>\n<arg_value> x\ny</arg_value>\n<arg_key>c</arg_key>\n"
        "<arg_value>True</arg_value>\n</tool_call>",
        [("f", {"a b": " x\ny", "c": True})],
    ),
    "deepseek": (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ONE,
    ),
    "deepseek, two": (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"a": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>my-g\n```json\n'
        "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [*ONE, ("my-g", {})],
    ),
    "deepseek, since 3.1": (
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [*ONE, ("g", {})],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("format", "text", "expected"), VALID.values(), ids=VALID)
@pytest.mark.parametrize("names", [None, frozenset("fg")])
def test_a_call_is_taken_out_of_the_text(format: str, text: str, expected: Any, names: Any):
    said = read(text, format, names=names)
    assert (said.text, said.reasoning, calls_in(said)) == ("", "", expected)
    alone = FORMATS[format].alone and text[0] in "{["
    if not alone:
        said = read(f"Wait.\n{text}", format, names=names)
        assert (said.text, calls_in(said)) == ("Wait.", expected)


def test_text_on_both_sides_of_a_call_stays_apart():
    for space in ("\n", " \n\n", ""):
        said = read(f"One{space}<tool_call>{JSON_CALL}</tool_call>\nTwo <tool_call>{JSON_CALL}</tool_call>\n")
        assert (said.text, calls_in(said)) == (f"One{space or chr(10)}Two", ONE * 2)


def test_ids_are_nine_letters_and_the_same_for_the_same_prompt():
    text = f"<tool_call>{JSON_CALL}</tool_call><tool_call>{JSON_CALL}</tool_call>"
    ids = [call.id for call in read(text, seed="a").tool_calls]
    assert all(len(id) == 9 and id.isalnum() for id in ids)
    assert len(set(ids)) == 2
    assert [call.id for call in read(text, seed="a").tool_calls] == ids
    assert not set(ids) & {call.id for call in read(text, seed="b").tool_calls}


def test_ids_that_the_model_gives_are_kept():
    assert read("[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", "mistral").tool_calls[0].id == "abcdefghi"
    said = read('[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "123456789"}]', "mistral")
    assert said.tool_calls[0].id == "123456789"


def test_what_a_tool_says_is_text_stays_as_it_is():
    """Between tags nothing says whether 1 is a number: the tool's description does."""
    tools = {"f": frozenset("a")}
    for format, text in (
        ("qwen3_coder", "<function=f><parameter=a>1</parameter><parameter=b>1</parameter></function>"),
        ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>1</arg_value>"
                "</tool_call>"),
    ):  # fmt: skip
        assert calls_in(read(text, format, names=tools)) == [("f", {"a": "1", "b": 1})]
        assert calls_in(read(text, format)) == [("f", {"a": 1, "b": 1})]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", 1), ("-2.5", -2.5), ('"x"', "x"), ("true", True), ("False", False), ("None", None), ("null", None),
        ("[1, 2]", [1, 2]), ("", ""), ("NaN", "NaN"), ("1e999", "1e999"), ("01", "01"), ("a: b", "a: b"),
        ("[" * 100_000, "[" * 100_000), ("9" * 5000, "9" * 5000),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_any_other_value_between_tags_is_json_where_it_reads_as_such(value: str, expected: Any):
    said = said_in([f"<function=f><parameter=a>\n{value}\n</parameter></function>"], Markup(FORMATS["qwen3_coder"]))
    assert calls_in(said) == [("f", {"a": expected})]


# --- what is no valid call is text ---

INVALID = {
    "no object": ("hermes", "<tool_call>f(1)</tool_call>"),
    "empty": ("hermes", "<tool_call></tool_call>"),
    "empty list": ("hermes", "<tool_call>[]</tool_call>"),
    "no name": ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    "an empty name": ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    "a name that is no text": ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    "no arguments": ("hermes", '<tool_call>{"name": "f"}</tool_call>'),
    "arguments in a list": ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    "arguments of broken text": ("hermes", '<tool_call>{"name": "f", "arguments": "{"}</tool_call>'),
    "broken late": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1, "b": oops}}</tool_call> and on'),
    "Python's quotes": ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>"),
    "not a number": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
    "beyond all numbers": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>'),
    "too many digits": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>"),
    "never ended": ("hermes", 'so <tool_call>{"name": "f", "arguments": {"a": "'),
    "without marks, another name": ("hermes", '{"name": "h", "arguments": {}}'),
    "only its end": ("hermes", "a </tool_call> b"),
    "half a mark": ("hermes", "a <tool_ca"),
    "nested without end": ("hermes", "<tool_call>" + "[" * 100_000),
    "llama3, another name": ("llama3", '{"name": "Alice", "parameters": {}}'),
    "llama3, another object": ("llama3", '{"title": "f", "parameters": {}}'),
    "llama3, words behind": ("llama3", '{"name": "f", "parameters": {}} is how'),
    "llama3, words before": ("llama3", 'Use {"name": "f", "parameters": {}}'),
    "llama3, code": ("llama3", "<|python_tag|>import os\nx = 1"),
    "llama3, spread": ("llama3", "<|python_tag|>f.call(**{'a': 1})"),
    "mistral, words": ("mistral", "[TOOL_CALLS]hello you"),
    "mistral, nothing": ("mistral", "[TOOL_CALLS]"),
    "mistral, no object": ("mistral", "[TOOL_CALLS]f[ARGS]nothing"),
    "gemma, by place": ("gemma", "```tool_code\nf(1)\n```"),
    "gemma, no literal": ("gemma", "```tool_code\nf(a=open('x'))\n```"),
    "gemma, a program": ("gemma", "```tool_code\nx = f(a=1)\n```"),
    "gemma, no Python": ("gemma", "```tool_code\nf(\n```"),
    "gemma, parentheses without end": ("gemma", "```tool_code\n" + "(" * 50_000 + "\n```"),
    "gemma, signs without end": ("gemma", "```tool_code\nf(a=" + "-" * 50_000 + "1)\n```"),
    "gemma, other JSON": ("gemma", '```json\n{"a": 1}\n```\nis it'),
    "gemma, a list of numbers": ("gemma", "[1, 2, 3]"),
    "gemma, another name": ("gemma", "[h(a=1)]"),
    "qwen3_coder, JSON": ("qwen3_coder", f"<tool_call>{JSON_CALL}</tool_call>"),
    "qwen3_coder, no name": ("qwen3_coder", "<tool_call><function=></function></tool_call>"),
    "qwen3_coder, words": ("qwen3_coder", "Write <function= or <tool_call> here"),
    "qwen3_coder, twice": (
        "qwen3_coder",
        "<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>",
    ),
    "qwen3_coder, never ended": ("qwen3_coder", "<tool_call><function=f><parameter=a>1"),
    "glm, JSON": ("glm", f"<tool_call>{JSON_CALL}</tool_call>"),
    "glm, words": ("glm", "<tool_call>f and g</tool_call>"),
    "glm, no value": ("glm", "<tool_call>f<arg_key>a</arg_key></tool_call>"),
    "glm, never ended": ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>1"),
    "deepseek, nothing": ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
    "deepseek, a list": (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]<｜tool▁call▁end｜>",
    ),
    "deepseek, broken": (
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": oops}<｜tool▁call▁end｜> and on',
    ),
}


@pytest.mark.parametrize(("format", "text"), INVALID.values(), ids=INVALID)
def test_what_is_no_valid_call_is_text_and_whole(format: str, text: str):
    whole = said_in([text], Markup(FORMATS[format], frozenset("fg")))
    assert whole == Said(text)
    if len(text) < 1000:
        assert read(text, format, names=frozenset("fg")) == whole


def test_marks_that_are_special_tokens_are_never_shown():
    assert read("a [TOOL_CALLS]hello [ARGS] you", "mistral", special=MISTRAL) == Said("a hello  you")
    said = read('a[ARGS] b\n[TOOL_CALLS]f[ARGS]{"a": 1}', "mistral", special=MISTRAL)
    assert (said.text, calls_in(said)) == ("a b", ONE)


def test_json_that_is_no_call_is_not_held_back():
    parser = MarkupParser(Markup(FORMATS["llama3"], frozenset(["look"])))
    assert parser.push('{"na').text == ""
    assert parser.push('me": "Al').text == '{"name": "Al'
    assert parser.push("ice").text == "ice"


# --- cut short ---


@pytest.mark.parametrize("name", [n for n, (_, text, _) in VALID.items() if "half" not in n and "without" not in n])
@pytest.mark.parametrize("before", ["", "Wait.\n"])
def test_no_mark_is_shown_wherever_an_answer_is_cut(name: str, before: str):
    format, text, expected = VALID[name]
    if before and FORMATS[format].alone and text[0] in "{[":
        return
    names = frozenset(["f", "g", "brave_search", "my-g", "api.f"])
    for end in range(len(text) + 1):
        said = read(before + text[:end], format, cut=True, names=names, special=MISTRAL & set(FORMATS[format].opens))
        assert said.text.rstrip() == before.rstrip()
        found = calls_in(said)
        assert found == expected[: len(found)]
    assert found == expected


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", f"<tool_call>{JSON_CALL}\n{JSON_CALL[:-8]}"),
        ("hermes", f"<tool_call>{JSON_CALL}</tool_call>\n<tool_call>{JSON_CALL[:-8]}"),
        ("hermes", f"{JSON_CALL}\n{JSON_CALL[:-8]}"),
        ("llama3", f"<|python_tag|>{JSON_CALL}; {JSON_CALL[:-8]}"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{"a'),
    ],
)
def test_calls_before_the_one_that_is_cut_are_kept(format: str, text: str):
    said = read(text, format, cut=True, names=frozenset("fg"))
    assert (said.text, calls_in(said)) == ("", ONE)


def test_words_behind_a_call_that_is_to_stand_alone_are_text_also_where_they_are_cut():
    text = f"{JSON_CALL} is"
    for format in ("hermes", "llama3", "gemma"):
        assert read(text, format, cut=True, names=frozenset("f")) == Said(text)
        parser = MarkupParser(Markup(FORMATS[format], frozenset("f")))
        assert parser.push(f"{JSON_CALL} is").text  # and not held to the end


def test_reasoning_that_is_cut_stays_reasoning():
    text = "<think>\nIt is\n so.</think>\n\nYes."
    for end in range(1, len(text)):
        said = read(text[:end], cut=True, think=THINK)
        assert "It is\n so.".startswith(said.reasoning.rstrip("\n"))
        assert "Yes.".startswith(said.text)


# --- reasoning ---

REASONED = {
    "as Qwen 3": ("<think>\nIt is so.\n</think>\n\nYes.\n", "Yes.\n", "It is so."),
    "nothing thought": ("<think>\n\n</think>\n\nYes.", "Yes.", ""),
    "space before": ("\n <think>It is so.</think>Yes.", "Yes.", "It is so."),
    "no end": ("<think>It is so.", "", "It is so."),
    "half an end": ("<think>It is so.</thi", "", "It is so.</thi"),
    "half a beginning": ("<thi", "<thi", ""),
    "none": ("Yes.", "Yes.", ""),
    "only space": (" \n", " \n", ""),
    "only later": ("Yes <think>No</think>", "Yes <think>No</think>", ""),
    "twice": ("<think>a</think><think>b</think>", "<think>b</think>", "a"),
    "only an end": ("Yes.</think>", "Yes.</think>", ""),
}


@pytest.mark.parametrize(("text", "shown", "reasoning"), REASONED.values(), ids=REASONED)
@pytest.mark.parametrize("format", ["none", "hermes", "llama3", "gemma"])
def test_reasoning_is_kept_apart(text: str, shown: str, reasoning: str, format: str):
    assert read(text, format, think=THINK) == Said(shown, reasoning)


def test_a_prompt_that_opens_the_block():
    assert read("\nIt is so.\n</think>\n\nYes.", think=THINK, thinking=True) == Said("Yes.", "It is so.")
    assert read("It is so.", think=THINK, thinking=True) == Said("", "It is so.")


def test_calls_follow_reasoning_and_are_none_inside_of_it():
    call = f"<tool_call>{JSON_CALL}</tool_call>"
    said = read(f"<think>\n{call}?\n</think>\n{call}", think=THINK)
    assert (said.text, said.reasoning) == ("", f"{call}?")
    assert calls_in(said) == ONE
    said = read('<think>a</think>\n{"name": "f", "parameters": {"a": 1}}', "llama3", think=THINK)
    assert (said.text, said.reasoning, calls_in(said)) == ("", "a", ONE)


def test_without_marks_everything_is_text():
    text = f"<think>a</think><tool_call>{JSON_CALL}</tool_call>"
    assert read(text, "none") == Said(text)
    parser = MarkupParser(Markup())
    assert [parser.push(piece).text for piece in ("a ", "<", "\n")] == ["a ", "<", "\n"]


def test_what_a_template_prints_of_calls_is_read_back():
    """Qwen's own template, which shows the model earlier calls as it is to write its next ones."""
    source = (Path(__file__).parents[1] / "golden" / "templates" / "qwen05.jinja").read_text(encoding="utf-8")
    arguments = [{"a": 1, "b": ["x </tool_call>", None, "é"]}, {}]
    calls = [{"type": "function", "function": {"name": name, "arguments": arguments[i]}} for i, name in enumerate("fg")]
    messages = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "Yes.", "tool_calls": calls}]
    text = ChatTemplate(source).render(messages, [{"type": "function"}], add_generation_prompt=False)
    said = read(text.rpartition("assistant\n")[2].removesuffix("<|im_end|>\n"), template_format(source))
    assert (said.text, calls_in(said)) == ("Yes.", [("f", arguments[0]), ("g", arguments[1])])


# --- rules that hold for all inputs ---

SOUP = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```tool_code",
    "```json", "```", "<function=f>", "<parameter=a>", "</parameter>", "</function>", "f\n<arg_key>a</arg_key>",
    "<arg_value>", "</arg_value>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    JSON_CALL, '{"name": "f", "parameters": {"a": "</tool_call>"}}', "f(a=1)", "[f(a=1)]",
    '{"name": "f"', ', "arguments": {', "}", "]", "{", "[", '"', "f", "<", "`", " ", "\n", "a", "; ", "é", "\\",
]  # fmt: skip
SOUPS = st.lists(st.sampled_from(SOUP), max_size=12).map("".join)


@settings(max_examples=600, deadline=None)
@given(
    text=SOUPS, ends=st.lists(st.integers(0, 80)), format=st.sampled_from(sorted(FORMATS)), cut=st.booleans(),
    think=st.sampled_from([None, THINK]), thinking=st.booleans(), special=st.booleans(),
)  # fmt: skip
@example("<tool_call>[}", [11, 12], "hermes", False, None, False, False)
def test_pieces_play_no_part(
    text: str, ends: list[int], format: str, cut: bool, think: Any, thinking: bool, special: Any
):
    marks = FORMATS[format].opens.keys() | {*FORMATS[format].others} if special else set()
    markup = Markup(FORMATS[format], frozenset("fg"), think, thinking and think is not None, frozenset(marks))
    places = [0, *sorted(min(end, len(text)) for end in ends), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    said = said_in(pieces, markup, cut)
    assert said == said_in([text], markup, cut)
    assert said == said_in(list(text), markup, cut)
    for call in said.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


WORDS = st.text("ab <{[`é", min_size=1, max_size=6).map(lambda text: ("text", f"w{text}w"))
BAD = st.sampled_from([("text", text) for format, text in INVALID.values() if format == "hermes" and text[-1] == ">"])
GOOD = st.integers(0, 99).map(lambda n: ("call", json.dumps({"name": "f", "arguments": {"n": n}})))


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.none(), st.text("ab <")), st.lists(st.one_of(WORDS, BAD, GOOD), max_size=6), st.data())
def test_every_character_is_text_or_reasoning_or_a_mark_or_a_call(
    thought: str | None, parts: list, data: st.DataObject
):
    """What is put together from known parts comes apart into them; a line break lies between any two."""
    lines = [f"<tool_call>\n{text}\n</tool_call>" if kind == "call" else text for kind, text in parts]
    begin = "" if thought is None else f"<think>\n{thought}\n</think>\n\n"
    text = begin + "\n".join(lines)
    end = data.draw(st.integers(0, len(text)))
    said = said_in([text[:end], text[end:]], Markup(FORMATS["hermes"], None, THINK))
    assert said.text == "\n".join(text for kind, text in parts if kind == "text")
    assert said.reasoning == (thought or "").strip()
    assert [call.arguments for call in said.tool_calls] == [
        json.dumps(json.loads(text)["arguments"]) for kind, text in parts if kind == "call"
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([part for part in SOUP if "arguments" not in part and "(" not in part])).map("".join))
def test_nothing_is_lost_where_there_is_no_call(text: str):
    for format in FORMATS.values():
        said = said_in([text], Markup(format))
        assert said.text == text or said.tool_calls


# --- which format ---


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{{ tools }}[TOOL_CALLS][ARGS]", "mistral"),
        ('{{ tools }}{"name": , "parameters": }<|python_tag|>', "llama3"),
        ("{{ tools }}<|tool_call|>", "granite"),
        ("{{ tools }}```tool_code", "gemma"),
        ("{{ tools }}", "none"),
        ("{{ messages }}<tool_call>", "none"),
        ("{{ tools }}<tool_call><function=f>{}", "none"),
        ("{{ tools }}<tool_call><function=f><parameter=a>", "qwen3_coder"),
        ("{{ tools }}<tool_call>f<arg_key>", "glm"),
        ("{{ tools }}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek"),
        ("", "none"),
    ],
)
def test_the_format_is_the_one_that_the_template_shows(template: str, name: str):
    assert template_format(template) == name
    assert tool_format(template) is FORMATS[name]
    assert tool_format(template, "gemma") is FORMATS["gemma"]


def test_a_format_that_is_not_known():
    with pytest.raises(BadRequest, match=r"tool_format should be one of hermes, llama3, .*, found 'xml'") as caught:
        tool_format("", "xml")
    assert caught.value.parameter == "tool_format"
    assert tool_format(None) is FORMATS["none"]


def test_what_may_still_become_a_call():
    names = frozenset(["look", "go"])
    for text in (
        "",
        "{",
        '{ "name": "lo',
        '{"name":"go",\n"param',
        '[{"name": "go", "arguments": {"a',
        "[look(",
        "[go",
    ):
        assert may_begin_call(text, names), text
    for text in ("a", "{}", '{"name": "h', '{"name": "golook"', '{"name": "go", "x', "[1", "[h(", '{"name": ""'):
        assert not may_begin_call(text, names), text
    assert may_begin_call('{"name": "anything", "arguments": {', None)


@pytest.mark.parametrize("format", ["hermes", "llama3", "mistral", "gemma"])
def test_a_long_call_is_not_read_again_for_every_piece_of_it(format: str):
    body = json.dumps({"name": "f", "arguments": {"code": "def f(a): return {a: [1, 2]}\n" * 500}})
    opens = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS][", "gemma": "```json"}.get(format, "")
    text = opens + body + {"mistral": "]", "gemma": "```"}.get(format, "")
    lengths: list[int] = []

    def counted(reader: Reader) -> Reader:
        return lambda text, *rest: lengths.append(len(text)) or reader(text, *rest)

    known = FORMATS[format]
    opens = {mark: counted(reader) for mark, reader in known.opens.items()}
    watched = ToolFormat(opens, known.alone and counted(known.alone), known.others)
    said = said_in([text[at : at + 3] for at in range(0, len(text), 3)], Markup(watched, frozenset("f")))
    assert (said.text, len(said.tool_calls)) == ("", 1)
    assert sum(lengths) < 20 * len(text)  # a geometric series, where every piece would make 2,600 times

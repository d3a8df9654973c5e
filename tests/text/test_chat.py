from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyinfer.errors import BadRequest, MissingExtra, TemplateError
from tinyinfer.text.chat import ChatTemplate
from tinyinfer.text.messages import prepare_messages

GOLDEN = Path(__file__).parents[1] / "golden" / "templates"
RENDERS = json.loads((GOLDEN / "renders.json").read_text(encoding="utf-8"))
MORE = json.loads((GOLDEN / "more_renders.json").read_text(encoding="utf-8"))["renders"]
OWN = {name: (GOLDEN / f"{name}.jinja").read_text(encoding="utf-8") for name in ("smollm2", "qwen05")}
# what both catalogue models' tokenizer_config.json name, as far as the templates of renders.json use it
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
PRINT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)
HI = [{"role": "user", "content": "Hi"}]


def render(source, messages=HI, **arguments):
    return ChatTemplate(source, SPECIAL).render(messages, **arguments)


# --- the same text as transformers ---


@pytest.mark.parametrize("entry", RENDERS, ids=lambda entry: f"{entry['template'][:20]!r}-{entry['conversation']}")
def test_render_equals_transformers(entry):
    source = OWN[entry["model"]] if entry["template"] == "own" else entry["template"]
    arguments = {"tools": entry["tools"], "add_generation_prompt": entry["add_generation_prompt"]}
    if entry["text"] is not None:
        assert render(source, entry["messages"], **arguments) == entry["text"]
        return
    with pytest.raises(TemplateError) as caught:
        render(source, entry["messages"], **arguments)
    assert entry["error"].removeprefix("TemplateError: ") in str(caught.value)


@pytest.mark.parametrize("entry", MORE, ids=lambda entry: f"{entry['template'][:20]!r}-{entry['conversation']}")
def test_corners_of_jinja_equal_transformers(entry):
    template = ChatTemplate(entry["template"], {"bos_token": "<s>", "eos_token": "</s>"})
    if entry["text"] is not None:
        assert template.render(entry["messages"], entry["tools"], add_generation_prompt=False) == entry["text"]
        return
    with pytest.raises(TemplateError) as caught:
        template.render(entry["messages"], entry["tools"], add_generation_prompt=False)
    # Jinja's syntax errors go on over several lines; ours is one sentence that begins the same
    assert entry["error"].splitlines()[0] in str(caught.value)


# --- message shapes ---


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    "parts", [[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], [{"text": "a"}, "b"]]
)
def test_text_parts_are_all_kept_in_order(name, parts):
    text = render(OWN[name], [{"role": "user", "content": parts}])
    assert "<|im_start|>user\na\nb<|im_end|>" in text


def test_a_template_that_prints_parts_gets_them():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "c"}]
    assert render(PARTS, messages) == "[user]<a><b>[assistant]c"
    # this one prints parts for the user, and whatever comes for others
    mixed = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content[0].text }}{% else %}{{ m.content }}{% endif %}"
    )
    messages = [{"role": "user", "content": parts[:1]}, {"role": "system", "content": parts}]
    assert render(mixed + "{% endfor %}", messages) == "aa\nb"


def test_text_that_looks_like_a_printed_list_is_left_alone():
    text = "{'type': 'text', 'text': 'part-0-0-of-content'}"
    assert render(PARTS, [{"role": "user", "content": [text, "x"]}]) == f"[user]<{text}><x>"
    assert render(PRINT, [{"role": "user", "content": [text, "x"]}]) == f"[user]{text}\nx"


@pytest.mark.parametrize("source", [PRINT, PARTS, OWN["smollm2"], OWN["qwen05"]])
def test_other_parts_are_refused_by_name(source):
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(BadRequest, match=r"messages\[0\]\.content\[1\] is of type 'image_url'") as caught:
        render(source, [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}])
    assert caught.value.parameter == "messages"


@pytest.mark.parametrize("name", OWN)
def test_null_and_absent_content_of_an_assistant_is_empty(name):
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    texts = [
        render(OWN[name], [*HI, {"role": "assistant", "tool_calls": [call], **content}, *HI])
        for content in ({"content": None}, {}, {"content": ""})
    ]
    assert texts[0] == texts[1] == texts[2]
    assert "None" not in texts[0]


def test_null_fields_are_left_out():
    assert render("{{ messages[0] }}", [{"role": "user", "content": None, "name": None, "tool_calls": None}]) == str(
        {"role": "user", "content": ""}
    )


def test_arguments_given_as_text_are_parsed():
    def messages(arguments):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}]

    each = "{% for k, v in messages[1].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"
    assert render(each, messages('{"a": 1, "b": "ü"}')) == "a=1;b=ü;"
    assert render(each, messages({"a": 1, "b": "ü"})) == "a=1;b=ü;"
    assert render(each, messages("")) == ""
    assert render(OWN["qwen05"], messages('{"a":1}')) == render(OWN["qwen05"], messages({"a": 1}))
    # some templates add the arguments to text, and take nothing but the text that was sent
    adds = "{{ messages[0].content + messages[1].tool_calls[0].function.arguments }}"
    assert render(adds, messages('{"a":1}')) == 'Hi{"a":1}'


def test_system_message_that_is_refused():
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    with pytest.raises(TemplateError, match="System role not supported"):
        render(source, [{"role": "system", "content": "x"}, *HI])
    assert render(source) == ""


def test_nothing_given_is_changed():
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": [{"text": "a"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    tools, before = [{"type": "function"}], copy.deepcopy(messages)
    render(OWN["qwen05"], messages, tools=tools)
    assert messages == before
    assert tools == [{"type": "function"}]


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ("Hi", "messages should be a list of dicts, found str"),
        ({"role": "user"}, "messages should be a list of dicts, found dict"),
        (None, "found NoneType"),
        ([], "at least one message"),
        (["Hi"], r"messages\[0\] should be a dict, found str"),
        ([*HI, {"content": "x"}], r"messages\[1\] should have a role such as 'user', found None"),
        ([{"role": 3, "content": "x"}], "found 3"),
        ([{"role": "", "content": "x"}], "found ''"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content should be text or a list of parts, found int"),
        ([{"role": "user", "content": {"text": "a"}}], "found dict"),
        ([{"role": "user", "content": [None]}], r"content\[0\] is of type 'NoneType'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text should be text, found None"),
        ([{"role": "user", "content": "x", "extra": object()}], r"messages\[0\]\.extra holds a object"),
        ([{"role": "assistant", "tool_calls": {"a": 1}}], "tool_calls should be a list of dicts"),
        ([{"role": "assistant", "tool_calls": [1]}], "tool_calls should be a list of dicts"),
        (
            [{"role": "assistant", "tool_calls": [{"arguments": "{"}]}],
            r"tool_calls\[0\]: arguments should be a JSON object",
        ),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": "[1]"}}]}], "JSON object, found"),
        ([{"role": "assistant", "tool_calls": [{"arguments": "[" * 100_000}]}], "should be a JSON object"),
        ([{"role": "assistant", "tool_calls": [{"arguments": '{"a":' * 80 + "1" + "}" * 80}]}], "more than 64 levels"),
    ],
)
def test_malformed_messages(messages, sentence):
    with pytest.raises(BadRequest, match=sentence) as caught:
        render(PRINT, messages)
    assert not isinstance(caught.value, TemplateError)
    assert caught.value.parameter == "messages"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tools", ["f", {"name": "f"}, [str], ["f"], [{"name": object()}]])
def test_malformed_tools(tools):
    with pytest.raises(BadRequest, match=r"^tools ") as caught:
        render(PRINT, tools=tools)
    assert caught.value.parameter == "tools"


def test_template_meets_plain_values_only():
    class Text(str):
        def secret(self):
            return "called"

    message = {"role": "user", "content": Text("a"), "extra": (Text("b"), 1.5, True)}
    prepared = prepare_messages([message])
    assert type(prepared[0]["content"]) is str
    assert [type(value) for value in prepared[0]["extra"]] == [str, float, bool]
    with pytest.raises(TemplateError, match="no attribute 'secret'"):
        render("{{ messages[0].content.secret() }}", [message])


# --- variables ---


def test_variables_reach_the_template_and_come_before_special_tokens():
    source = "{{ bos_token }}|{{ enable_thinking }}|{{ documents }}|{{ tools }}|{{ eos_token is defined }}"
    assert render(source) == "<|im_start|>||None|None|True"
    assert render(source, enable_thinking=False, bos_token="B", documents=[{"a": 1}]) == "B|False|[{'a': 1}]|None|True"
    assert ChatTemplate("{{ bos_token }}").render(HI) == ""


def test_strftime_now():
    assert render("{{ strftime_now('%Y') }}") in (str(time.localtime().tm_year), str(time.localtime().tm_year - 1))


# --- what fails, fails in one sentence ---


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (None, "no chat template"),
        ("a\n{% if %}", "not valid at line 2: Expected an expression"),
        ("a\n{% if x %}", "not valid at line 2: Unexpected end of template"),
        ("\n\n{{ messages | nofilter }}", "not valid at line 3: No filter named 'nofilter'"),
        ("a\n\n{{ messages.foo.bar }}", "failed at line 3: 'list object' has no attribute 'foo'"),
        ("\n{{ messages[3].role }}", "failed at line 2: list object has no element 3"),
        ("{{ nothing() }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "failed at line 1: division by zero"),
        ("{{ '' + 1 }}", "failed at line 1: can only concatenate str"),
        ("{% include 'x' %}", "failed at line 1"),
        ("{{" * 5000, "not valid"),
        ("{% if 1 %}" * 200 + "{% endif %}" * 200, "not valid"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update(a=1) }}", "unsafe"),
        ("{{ namespace(_a=1) }}", "underscore"),
        ("{% set n = namespace() %}{% set n.__class__ = 1 %}", "underscore"),
        ("{{ self._TemplateReference__context.eval_ctx.environment.globals }}", "unsafe|no attribute"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe|no attribute"),
    ],
)
def test_bad_templates(source, sentence):
    with pytest.raises(TemplateError, match=sentence) as caught:
        render(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "too long"),
        ("{% set r = range(500) | list %}" + "{% for a in r %}" * 4 + "{% endfor %}" * 4, "too long"),
        ("{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}", "calls itself without end"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}", "too long"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
        (
            "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
            "more than 16777216",
        ),
        ("{% set s = 'ab' %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 60, "more than 16777216"),
        ("{% macro f(s) %}{{ f(s ~ s) }}{% endmacro %}{{ f('ab') }}", "more than 16777216"),
        ("{{ 'x' * 10 ** 12 }}", "more than 16777216"),
        ("{{ 10 ** 12 * [1] }}", "more than 16777216"),
        ("{% set s = 'x' * 10 ** 7 %}{{ s + s }}", "more than 16777216"),
        ("{{ 'x'.ljust(10 ** 12) }}", "more than 16777216"),
        ("{% for i in range(20) %}{{ 'x' * 1000000 }}{% endfor %}", "writes more than 16777216"),
        ("{{ range(10 ** 9) }}", "Range too big"),
        ("{{ 9 ** 9 ** 9 ** 9 ** 9 ** 9 }}", "more than 10000 bits"),
        ("{{ messages | tojson(indent=10 ** 9) }}", "indents"),
        ("{{ lipsum(10 ** 9) }}", "'lipsum' is undefined"),
    ],
)
def test_endless_and_huge_templates_are_stopped(source, sentence):
    start = time.perf_counter()
    with pytest.raises(TemplateError, match=sentence) as caught:
        render(source)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - start < 20  # each takes at most a second or two on a quiet machine


def test_bounds_count_one_rendering_only():
    template = ChatTemplate("{% for a in range(60000) %}{% for b in 'ab' %}{% endfor %}{% endfor %}.")
    assert [template.render(HI) for _ in range(12)] == ["."] * 12


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=4))
def test_content_goes_through_as_it_is(contents):
    messages = [{"role": "user", "content": content} for content in contents]
    assert render(PRINT, messages) == "".join(f"[user]{content}" for content in contents)


# --- importing ---


def test_jinja_is_imported_when_it_is_needed_and_not_before():
    code = (
        "import sys; from tinyinfer.text.chat import ChatTemplate; template = ChatTemplate('x'); "
        "sys.exit('jinja2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_jinja(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "tinyinfer.text.sandbox", raising=False)
    with pytest.raises(MissingExtra, match=r"tinyinfer\[chat\]"):
        render("x")

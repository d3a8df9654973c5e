"""Write more_renders.json: what transformers makes of templates that use the corners of Jinja, errors included.

Run where `transformers` is installed (5.24.0 with jinja2 3.1.6 made the file): `python tests/golden/templates/make.py`.
renders.json, beside it, was made in the same way elsewhere; smollm2.jinja and qwen05.jinja are the templates in the
GGUF files of the two catalogue models.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

TEMPLATES = [
    "{% for m in messages %}{% if loop.changed(m.role) %}#{% endif %}{% if m.role == 'assistant' %}{% continue %}"
    "{% endif %}{{ m.content | default('none', true) | replace('a', 'b') | indent(4, first=true) }}\n{% endfor %}\n\n"
    "{{ (tools or []) | map(attribute='function') | map(attribute='name') | join(', ') }}",
    "{{ messages | tojson(indent=4, sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}",
    "{% if tools is not none and tools is defined %}{% for t in tools %}{% for k, v in t.function | dictsort %}{{ k }}="
    "{{ v | string | length }};{% endfor %}{% endfor %}{% endif %}{{ documents is none }}{{ documents is defined }}"
    "{{ nope is defined }}{{ unk_token }}{{ cycler('a', 'b').next() }}{{ (1, 2) }}{{ [1, 'a', none, true, 1.5] }}",
    "{{ {'a': 1} }}{{ 7 // 2 }}{{ 2 ** 3 }}{{ '%s-%02d' % ('a', 3) }}{{ '%s' | format('z') }}{{ 'a' * 3 }}"
    "{{ [1] + [2] }}{{ messages | groupby('role') | length }}{{ 'abc' | reverse }}{{ 'a b' | title }}{{ '<' | e }}"
    "{{ [3, 1, 2] | sort | first }}{{ range(3) | sum }}{{ 'x' in 'xyz' }}{{ 'a' ~ 1 ~ none }}"
    "{{ messages[-1]['role'] }}",
    "{%- macro row(m, sep=':') -%}\n  {{ m.role }}{{ sep }}{{ caller(m) if caller }}\n{%- endmacro -%}\n"
    "{% for m in messages %}\n{% call(x) row(m) %}{{ x.content | upper }}{% endcall %}\n{% endfor %}\n"
    "{% filter upper %}tail{% endfilter %}{% raw %}{{ raw }}{% endraw %}{# comment #}\n"
    "  {% set x %}block {{ messages | length }}{% endset %}{{ x }}\n   {%+ if true %}kept{% endif %}  \n"
    "{% with a = 1 %}{{ a }}{% endwith %}\n\n",
    "{% generation %}{% for m in messages %}{{ loop.index }}{% if loop.last %}.{% endif %}{% endfor %}{% set z = 5 %}"
    "{% endgeneration %}{{ z }}{{ namespace(a=1).a }}{{ namespace({'b': 2}).b }}{{ dict(a=1) }}"
    "{{ dict.fromkeys('ab') }}",
    "{% for m in messages if m.role != 'system' %}{{ loop.index0 }}/{{ loop.length }}{{ loop.previtem.role }}"
    "{% for call in m.tool_calls %}{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
    "{% else %}-{% endfor %}{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{{ loop.depth }}{% endfor %}",
    "{{ messages[0].content.foo.bar }}",
    "{{ messages[9].role }}",
    "{{ undefined_function(1) }}",
    "{{ raise_exception('no é \"quotes\"') }}",
    "{{ messages[0].content + none }}",
    "{{ messages.pop() }}",
    "{{ '{}'.format(messages[0].__class__) }}",
    "{% for m in none %}{% endfor %}",
    "{% if messages %}",
    "{{ messages | nofilter }}",
]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "W <x> & y", "parameters": {}}}
CALLS = [{"id": "abc", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Zürich"}}}]
CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hi "}],
    "system": [
        {"role": "system", "content": " Be brief.\n"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "b", "name": None},
        {"role": "user", "content": "é"},
    ],
    "tools": [
        {"role": "user", "content": "W?"},
        {"role": "assistant", "content": "", "tool_calls": CALLS},
        {"role": "tool", "name": "get_weather", "content": '{"t": 3}'},
    ],
    "reasoning": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A", "reasoning": "R"}],
}


def rendered(template: str, messages: list[dict], tools: list[dict] | None) -> dict:
    # apply_chat_template leaves null fields out before it renders
    shown = [{key: value for key, value in message.items() if value is not None} for message in copy.deepcopy(messages)]
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    result = {"template": template, "messages": messages, "tools": tools, "text": None, "error": None}
    try:
        texts, _ = render_jinja_template([shown], tools=tools, chat_template=template, **variables)
        return {**result, "text": texts[0]}
    except Exception as error:
        return {**result, "error": str(error)}


def main() -> None:
    renders = [
        {"conversation": name, **rendered(template, messages, tools)}
        for template in TEMPLATES
        for name, messages in CONVERSATIONS.items()
        for tools in (None, [TOOL])
    ]
    made_by = f"transformers {transformers.__version__}, tests/golden/templates/make.py"
    text = json.dumps({"made_by": made_by, "renders": renders}, ensure_ascii=False)
    Path(__file__).with_name("more_renders.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""A request's JSON -> what is asked. Every field is taken or refused: none is passed over in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..adapters import Wish
from ..errors import BadRequest
from ..sampling import SamplingParams
from ..sampling.checks import flag, one_of, whole
from .errors import named
from .tools import read_tools

MOST_ANSWERS = 128  # n of one request, as OpenAI has it
MOST_PROMPTS = 2048  # likewise
MOST_LOGPROBS = 20  # likewise
DRAFTERS = ("ngram", "off")

# what has another name or form here than in SamplingParams, or can't come by HTTP
SAMPLING = {field.name for field in fields(SamplingParams)} - {"logprobs", "prompt_logprobs", "processors"}

# sent by OpenAI's clients, and without meaning for a server that keeps nothing and knows no users
IGNORED = {"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}

# fields that may say only what is done anyway
SETTLED: dict[str, tuple[Any, ...]] = {
    "store": (False,), "service_tier": ("auto", "default"), "modalities": (["text"],), "best_of": (1,), "suffix": ("",),
    "parallel_tool_calls": (True,),
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What a request to one of the two routes asks for. Of `messages` and `prompts` one is given."""

    params: SamplingParams
    messages: Any = None
    prompts: Sequence[str | list[int]] = ()
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    adapters: Wish = None
    priority: int = 0
    graphemes: bool = False
    speculate: str | None = None
    tools: Sequence[Any] | None = None
    must_call: bool = False
    tool_format: str | None = None
    response_format: bool = False  # whether it says what form the answer has


def read_chat(body: Mapping[str, Any]) -> Asked:
    """The body of /v1/chat/completions. Raises `BadRequest` naming the field."""
    rest = _given(body)
    if "messages" not in rest:
        raise BadRequest("messages is needed: a list of the conversation's messages", "messages")
    messages = rest.pop("messages")
    logprobs, top = flag("logprobs", rest.pop("logprobs", False)), _logprobs("top_logprobs", rest)
    if top is not None and not logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", "top_logprobs")
    chosen = {"logprobs": top or 0} if logprobs else {}
    tools, must_call = read_tools(rest.pop("tools", None), rest.pop("tool_choice", "auto"))
    form, most = response_form(rest.pop("response_format", None)), _one_name(rest)
    with named(dict.fromkeys(form, "response_format")):
        for name in form.keys() & rest.keys():
            raise BadRequest(f"response_format says {name} already: give one", name)
        SamplingParams(**form)
    common, tool_format = _common(rest), rest.pop("tool_format", None)
    params = _params(rest, chosen | form, most)
    told = {"tools": tools, "must_call": must_call, "tool_format": tool_format, "response_format": bool(form)}
    return Asked(params, messages, **told, **common)


def read_text(body: Mapping[str, Any]) -> Asked:
    """The body of /v1/completions. Raises `BadRequest` naming the field."""
    rest = _given(body)
    if "prompt" not in rest:
        raise BadRequest("prompt is needed: text, ids, or a list of either", "prompt")
    prompts = read_prompts(rest.pop("prompt"))
    logprobs, echo = _logprobs("logprobs", rest), flag("echo", rest.pop("echo", False))
    common = _common(rest)
    if echo and logprobs is not None and common["stream"]:
        raise BadRequest("log-probabilities of an echoed prompt are not streamed: leave out stream or echo", "echo")
    chosen = {} if logprobs is None else {"logprobs": logprobs} | ({"prompt_logprobs": logprobs} if echo else {})
    return Asked(prompts=prompts, echo=echo, **common, params=_params(rest, chosen))


def response_form(form: Any) -> dict[str, Any]:
    """OpenAI's response_format as fields of SamplingParams. Raises `BadRequest` naming it."""
    kind = form.get("type") if isinstance(form, dict) else None
    if form is None or form == {"type": "text"}:
        return {}
    if form == {"type": "json_object"}:
        return {"json": True}
    described = form.get("json_schema") if kind == "json_schema" and form.keys() == {"type", "json_schema"} else None
    known = {"name", "description", "schema", "strict"}
    if isinstance(described, dict) and "schema" in described and described.keys() <= known:
        return {"json_schema": described["schema"]}
    expected = "'text', 'json_object', or 'json_schema' with a json_schema of name, schema, strict and description"
    raise BadRequest(f"response_format should have a type, {expected}, found {_short(form)}", "response_format")


def read_prompts(prompt: Any) -> list[str | list[int]]:
    """Text, ids, or a list of either, as a list; what ids are valid is the model's to say."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list):
        if all(type(id) is int for id in prompt):
            return [prompt]
        whole_prompts = all(
            isinstance(one, str) or (isinstance(one, list) and all(type(id) is int for id in one)) for one in prompt
        )
        if whole_prompts:
            if len(prompt) > MOST_PROMPTS:
                raise BadRequest(f"prompt may hold {MOST_PROMPTS:,} prompts, found {len(prompt):,}", "prompt")
            return prompt
    raise BadRequest(f"prompt should be text, ids, or a list of either, found {_short(prompt)}", "prompt")


def _given(body: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that say something: null is as good as nothing, but only for a field that there is."""
    return {name: value for name, value in body.items() if value is not None or name not in KNOWN}


def _common(rest: dict[str, Any]) -> dict[str, Any]:
    """Take what both routes have, all but what sampling goes by."""
    rest.pop("model", None)
    for name in IGNORED:
        rest.pop(name, None)
    settle(rest, SETTLED)
    n, priority = whole("n", rest.pop("n", 1), 1), rest.pop("priority", 0)
    if n > MOST_ANSWERS:
        raise BadRequest(f"n should be a whole number from 1 to {MOST_ANSWERS}, found {n}", "n")
    stream, adapters = flag("stream", rest.pop("stream", False)), rest.pop("adapters", None)
    usage = _include_usage(rest.pop("stream_options", None), stream)
    graphemes = flag("graphemes", rest.pop("graphemes", False))
    speculate = rest.pop("speculate", None)
    if speculate is not None:  # models are named where the server is begun: a request has no files read
        speculate = one_of("speculate", speculate, DRAFTERS)
    return {
        "n": n, "stream": stream, "include_usage": usage, "adapters": adapters, "priority": priority,
        "graphemes": graphemes, "speculate": speculate,
    }  # fmt: skip


def settle(rest: dict[str, Any], settled: Mapping[str, Sequence[Any]]) -> None:
    """Take fields that may only have one of some values. Raises `BadRequest` for another."""
    for name, values in settled.items():
        found = rest.pop(name, values[0])
        if not any(type(found) is type(value) and found == value for value in values):
            expected = " or ".join(repr(value) for value in values)
            raise BadRequest(f"{name} is not done here: it may only be {expected}, found {_short(found)}", name)


def _include_usage(options: Any, stream: bool) -> bool:
    if options is None:
        return False
    if not stream:
        raise BadRequest("stream_options needs stream to be true", "stream_options")
    known = {"include_usage": False, "include_obfuscation": False}
    if not isinstance(options, dict) or not options.keys() <= known.keys():
        raise BadRequest(f"stream_options may have include_usage, found {_short(options)}", "stream_options")
    if options.get("include_obfuscation"):
        raise BadRequest("include_obfuscation is not done here: it may only be false", "stream_options")
    return flag("stream_options.include_usage", options.get("include_usage") or False)


def _logprobs(name: str, rest: dict[str, Any]) -> int | None:
    found = whole(name, rest.pop(name, None))
    if found is not None and found > MOST_LOGPROBS:
        raise BadRequest(f"{name} should be a whole number from 0 to {MOST_LOGPROBS}, found {found}", name)
    return found


def _one_name(rest: dict[str, Any]) -> str:
    """The name that the most tokens of an answer are asked for by: they may be given by either, not by both."""
    if "max_completion_tokens" not in rest:
        return "max_tokens"
    if "max_tokens" in rest:
        raise BadRequest("max_tokens and max_completion_tokens say the same: give one", "max_tokens")
    rest["max_tokens"] = rest.pop("max_completion_tokens")
    return "max_completion_tokens"


def _params(rest: dict[str, Any], chosen: dict[str, Any], most: str = "max_tokens") -> SamplingParams:
    for name in rest:
        if name not in SAMPLING:
            raise BadRequest(f"there is no parameter {name[:80]!r} here", name[:80])
    whole(most, rest.get("max_tokens"))
    return SamplingParams(**rest, **chosen)


def _short(value: Any) -> str:
    return repr(value)[:80]


KNOWN = SAMPLING | IGNORED | SETTLED.keys() | {
    "model", "messages", "prompt", "n", "stream", "stream_options", "logprobs", "top_logprobs", "echo", "adapters",
    "priority", "max_completion_tokens", "graphemes", "speculate", "tools", "tool_choice", "tool_format",
    "response_format",
}  # fmt: skip

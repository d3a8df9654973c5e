"""Whatever a model would rather say: what it says to the end keeps to its form."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest

from tinyinfer import LLM
from tinyinfer.errors import SamplingError

from .answers import CLOSING, accepts, random_answer, refusal
from .random_schemas import random_schema

SEEDS = range(50)
COLOR = {"$defs": {"color": {"enum": ["red", "blue"]}}}
NUMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}

# what the schema converters of other engines were seen to get wrong
SCHEMAS: dict[str, Any] = {
    "$ref to $defs": {**COLOR, "type": "object", "properties": {"c": {"$ref": "#/$defs/color"}}, "required": ["c"]},
    "recursive $ref": {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}},
        "required": ["v"],
        "additionalProperties": False,
    },
    "$ref into anyOf": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]},
    "enum of whole numbers": {"enum": [1, 2, 3]},
    "enum with null": {"type": "object", "properties": {"e": {"enum": [None, 12]}}, "required": ["e"]},
    "enum of all kinds": {"enum": ["a", 1, None, True, [1], {"k": "v"}]},
    "const": {"const": {"a": [1, "x"]}},
    "additionalProperties absent": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "additionalProperties true": {
        "type": "object",
        "additionalProperties": True,
        "properties": {"a": {"type": "null"}},
    },
    "additionalProperties false": {
        "additionalProperties": False,
        "type": "object",
        "properties": {"a": {"type": "null"}},
    },
    "additionalProperties integer, first": {**NUMBERS, "properties": {"a": {"type": "string"}}},
    "minItems and maxItems": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    "pattern": {"type": "string", "pattern": "^[a-z]{2}-[0-9]+$"},
    "bounds": {"type": "integer", "minimum": -5, "maximum": 17},
    "required, some": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "null"}},
        "required": ["a", "c"],
        "additionalProperties": False,
    },
    "multipleOf": {"type": "array", "items": {"type": "integer", "multipleOf": 6}, "minItems": 1},
    "date": {"type": "string", "format": "date"},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_finished_is_valid(llm: LLM, name: str):
    schema, finished = SCHEMAS[name], 0
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for seed in SEEDS:
        done = random_answer(llm, seed, json_schema=schema)
        if done.finish_reason == "stop":
            validator.validate(json.loads(done.text))
            finished += 1
        else:
            assert len(done.ids) == 150
    assert finished >= 10


@pytest.mark.parametrize("begin", range(0, 60, 20))
def test_random_schemas(llm: LLM, begin: int):
    """Refused, or obeyed in all that is finished."""
    for seed in range(begin, begin + 20):
        schema = random_schema(seed)
        if refused := refusal(llm, json_schema=schema):
            assert "#" in str(refused)
            continue
        for done in [random_answer(llm, k, json_schema=schema, max_tokens=60) for k in range(6)]:
            if done.finish_reason == "stop":
                assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(done.text)), (schema, done.text)


def test_json_is_an_object(llm: LLM):
    found = [random_answer(llm, seed, json=True) for seed in SEEDS]
    whole = [done for done in found if done.finish_reason == "stop"]
    assert len(whole) >= 10
    assert all(isinstance(json.loads(done.text), dict) for done in whole)


def test_choice_and_expression_and_grammar(llm: LLM):
    for seed in SEEDS:
        assert random_answer(llm, seed, choice=["yes", "no", "not yet"]).text in ("yes", "no", "not yet")
        done = random_answer(llm, seed, regex="[a-f]{2,5}x?")
        assert done.finish_reason == "stop"
        assert re.fullmatch("[a-f]{2,5}x?", done.text)
        done = random_answer(llm, seed, grammar='start: ("a" | "b")+ "."', logit_bias={ord("."): 2.0})
        assert re.fullmatch(r"[ab]+\.", done.text) or done.finish_reason == "length"


def test_a_model_that_loves_spaces_gets_no_further_with_them(llm: LLM):
    spaces = {32: 50.0, 10: 50.0, 9: 50.0, 13: 50.0}
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for seed in range(10):
        done = random_answer(llm, seed, json_schema=schema, logit_bias={**CLOSING, **spaces}, max_tokens=600)
        assert done.finish_reason == "stop"
        assert list(json.loads(done.text)) == ["a"]
        assert max(map(len, re.findall(r"\s+", done.text))) <= 34


def test_too_few_tokens_are_said(llm: LLM):
    schema = {"type": "string", "minLength": 20}
    for seed in range(10):
        done = random_answer(llm, seed, json_schema=schema, max_tokens=10)
        assert (done.finish_reason, done.stop_reason) == ("length", None)
        with pytest.raises(ValueError):
            json.loads(done.text)


def test_an_answer_ends_where_nothing_more_can_come(llm: LLM):
    done = random_answer(llm, 0, choice=["ab"])
    assert (done.text, done.finish_reason, done.stop_reason) == ("ab", "stop", None)
    assert done.ids == llm.tokenizer.encode("ab")  # and no end-of-sequence token
    done = random_answer(llm, 1, regex="a+", logit_bias={271: 5.0})
    assert (done.finish_reason, done.stop_reason) == ("stop", 271)
    assert random_answer(llm, 0, choice=["ab"], max_tokens=2).finish_reason == "stop"
    assert random_answer(llm, 0, choice=["ab"], max_tokens=1).finish_reason == "length"


def test_the_end_comes_only_where_the_text_is_complete(llm: LLM):
    constraint = llm.constraint(llm.resolved_params(regex="ab|abc"))
    for id, ends in ((97, False), (98, True), (99, True)):
        constraint.accept(id)
        assert (constraint.complete, {271, 273} <= set(constraint.ids().tolist())) == (ends, ends)
    assert constraint.done
    assert constraint.ids().tolist() == [271, 273]


def test_special_tokens_and_empty_ones_never_come(llm: LLM):
    """270 to 274 are special, 275 and on are rows of the embedding that the vocabulary lacks."""
    ids = llm.constraint(llm.resolved_params(regex="(.|\n)+")).ids()
    assert ids.max() < 270


def test_each_sampler_has_a_place_of_its_own(llm: LLM):
    first = llm.constraint(llm.resolved_params(regex="abc|xyz"))
    second = llm.constraint(llm.resolved_params(regex="abc|xyz"))
    first.accept(ord("a"))
    fork = first.fork()
    fork.accept(ord("b"))
    assert [bool(place.permits(ord("x"))) for place in (first, second, fork)] == [False, True, False]
    assert [bool(place.permits(ord("b"))) for place in (first, second, fork)] == [True, False, False]


def test_a_draft_is_cut_at_the_first_id_that_is_forbidden(llm: LLM):
    constraint = llm.constraint(llm.resolved_params(regex="[a-c]+!"))
    assert [constraint.allows(list(text)) for text in (b"abc!", b"abx", b"x", b"")] == [4, 2, 0, 0]
    assert constraint.allows([*b"a!", 271, 97]) == 3
    assert constraint.permits(97)
    with pytest.raises(SamplingError, match="does not allow id 120 here"):
        constraint.accept(ord("x"))


def test_bits_and_ids_say_the_same(llm: LLM):
    constraint = llm.constraint(llm.resolved_params(json=True))
    constraint.accept(ord("{"))
    assert constraint.ids().tolist() == [id for id in range(280) if constraint.permits(id)]
    assert constraint.ids().dtype == np.int64


def test_bytes_of_half_characters(llm: LLM):
    assert accepts(llm, '"é日"', json_schema={"type": "string"})
    constraint = llm.constraint(llm.resolved_params(json_schema={"type": "string"}))
    for id in (34, 0xC3):
        constraint.accept(id)
    assert not constraint.permits(34)
    assert constraint.permits(0xA9)

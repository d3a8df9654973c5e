"""What each form of an answer accepts and what not, by cases of our own."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tinyinfer import LLM

from .answers import accepts

TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "left": {"$ref": "#/$defs/tree"}},
            "required": ["value"],
            "additionalProperties": False,
        }
    },
}

# a schema, texts that keep to it, and texts that don't
SCHEMAS: dict[str, tuple[Any, list[str], list[str]]] = {
    "true": (True, ["1", '"a"', "null", "[1, {}]"], ["nul", "1 2", "'a'", "[1,]", "{1: 2}", "NaN", "+1", "01", ".5"]),
    "type": ({"type": "integer"}, ["0", "-12", "123456789012345678901234"], ["1.5", "1.0", "true", '"1"', "1e3", "-"]),
    "types": ({"type": ["null", "string"]}, ["null", '"null"'], ["1", "{}"]),
    "boolean": ({"type": "boolean"}, ["true", "false"], ["True", "0", "null"]),
    "number": ({"type": "number"}, ["0.5", "-0.0", "1e-7", "6.02E+23"], ["1.", ".5", "1e", "--1", "Infinity"]),
    "enum": (
        {"enum": [1, None, "a", [1, "b"], {"k": 2}]},
        ["1", "null", '"a"', '[1, "b"]', '{"k": 2}'],
        ["2", '"1"', '""', "[1]", '{"k": 3}', "any", "{}"],
    ),
    "const": ({"const": 12.5}, ["12.5"], ["12", "12.51", "-12.5"]),
    "minimum": ({"type": "integer", "minimum": -3}, ["-3", "0", "99"], ["-4", "-30"]),
    "maximum": ({"type": "number", "maximum": 2.5}, ["2.5", "-100", "2.49"], ["2.51", "3", "10"]),
    "exclusive": ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 4}, ["2", "3"], ["1", "4", "0"]),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, ["0", "49", "-14"], ["1", "48"]),
    "multipleOf a half": ({"type": "number", "multipleOf": 0.5}, ["1.5", "0.5"], ["0.25", "1.1"]),
    "lengths": (
        {"type": "string", "minLength": 2, "maxLength": 3},
        ['"ab"', '"日本語"', r'"\n\""'],
        ['"a"', '"abcd"', '"é"', '""'],
    ),
    "pattern": ({"type": "string", "pattern": "^[a-c]+$"}, ['"abc"'], ['""', '"abd"', '"abc\\n"']),
    "pattern inside": ({"type": "string", "pattern": "b"}, ['"b"', '"abc"'], ['"ac"', '""']),
    "date": (
        {"type": "string", "format": "date"},
        ['"2024-02-29"', '"2000-02-29"', '"1999-12-31"'],
        ['"2023-02-29"', '"1900-02-29"', '"2023-04-31"', '"2023-13-01"', '"0000-01-01"', '"23-1-1"'],
    ),
    "date-time": (
        {"type": "string", "format": "date-time"},
        ['"2023-02-28T23:59:59Z"', '"2023-01-01T00:00:00.5+01:30"'],
        ['"2023-02-29T10:00:00Z"', '"2023-02-28T10:00:60Z"', '"2023-02-28T10:00:00"', '"2023-02-28"'],
    ),
    "time": ({"type": "string", "format": "time"}, ['"10:00:00Z"'], ['"24:00:00Z"', '"10:00:60Z"', '"10:00"']),
    "uuid": ({"type": "string", "format": "uuid"}, ['"2eb8aa08-aa98-11ea-b4aa-73b441d16380"'], ['"2eb8aa08"']),
    "email": ({"type": "string", "format": "email"}, ['"a.b@c.de"'], ['"a@"', '"@b"', '"ab"']),
    "ipv4": ({"type": "string", "format": "ipv4"}, ['"127.0.0.1"'], ['"127.0.0.256"', '"127.0.0"']),
    "ipv6": ({"type": "string", "format": "ipv6"}, ['"::1"', '"fe80::1:2"'], ['":::1"', '"12345::"']),
    "items": (
        {"type": "array", "items": {"type": "integer"}},
        ["[]", "[1]", "[1, 2]"],
        ['["a"]', "[1, null]", "[1 2]"],
    ),
    "counts": (
        {"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 2},
        ["[1]", "[1,1]"],
        ["[]", "[1,1,1]"],
    ),
    "prefixItems": (
        {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        ["[]", '["a"]'],
        ["[1]", '["a", 1]'],
    ),
    "properties": (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}},
        ["{}", '{"a": 1}', '{"b": null}', '{"a": 1, "b": null}', '{"c": [1]}', '{"a": 1, "c": 2}'],
        ['{"a": "x"}', '{"b": 1}', '{"c": 1, "c": }', '{"a": 1 "b": null}'],
    ),
    "a name spelled otherwise": (
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        ['{"A": "x"}'],
        [r'{"\u0061": "x"}', r'{"b": 1, "\u0061": "x"}'],
    ),
    "a name twice": (
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        ['{"a": 1}'],
        ['{"a": 1, "a": 2}', '{"a": 1, "a": "x"}'],
    ),
    "no more": (
        {"type": "object", "properties": {"a": True}, "additionalProperties": False},
        ["{}", '{"a": 1}'],
        ['{"b": 1}', '{"a": 1, "b": 2}'],
    ),
    "more of a kind, said first": (
        {"additionalProperties": {"type": "integer"}, "type": "object", "properties": {"a": {"type": "string"}}},
        ['{"a": "x", "b": 1}', '{"b": 1}'],
        ['{"a": 1}', '{"b": "x"}'],
    ),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^n": {"type": "integer"}}},
        ['{"n1": 1}', '{"m": "x"}'],
        ['{"n1": "x"}'],
    ),
    "required": (
        {"type": "object", "properties": {"a": True, "b": {"const": 1}}, "required": ["b", "z"]},
        ['{"b": 1, "z": 0}', '{"a": 0, "b": 1, "z": 2}'],
        ["{}", '{"b": 1}', '{"z": 0}', '{"b": 2, "z": 0}'],
    ),
    "minProperties": ({"type": "object", "minProperties": 1}, ['{"a": 1}', '{"a": 1, "b": 2}'], ["{}"]),
    "maxProperties": ({"type": "object", "maxProperties": 1}, ["{}", '{"a": 1}'], ['{"a": 1, "b": 2}']),
    "anyOf": ({"anyOf": [{"type": "integer", "minimum": 5}, {"type": "string"}]}, ["5", '"a"'], ["4", "null"]),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 3}]}, ["2", "3"], ["1", "4"]),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["null"]),
    "$ref": ({"$ref": "#/$defs/color", "$defs": {"color": {"enum": ["red", "blue"]}}}, ['"red"'], ['"green"', "{}"]),
    "$ref to an option": (
        {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]},
        ["1", "[1, 2]"],
        ['["a"]', "[[1]]"],
    ),
    "$ref that recurs": (
        TREE,
        ['{"value": 1}', '{"value": 1, "left": {"value": 2}}'],
        ['{"value": 1, "left": {}}', "{}"],
    ),
    "$ref with more beside it": (
        {"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"type": "integer"}}},
        ["3"],
        ["4", '"a"'],
    ),
    "$anchor": ({"$ref": "#n", "$defs": {"x": {"$anchor": "n", "type": "null"}}}, ["null"], ["1"]),
    "$id": ({"$id": "http://a.b/c", "$ref": "d", "$defs": {"x": {"$id": "d", "type": "null"}}}, ["null"], ["1"]),
    "annotations": (
        {"type": "null", "title": "t", "default": 1, "examples": [1], "x-order": 3, "uniqueItems": False},
        ["null"],
        ["1"],
    ),
    "draft 7": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/a",
            "definitions": {"a": {"type": "null"}},
        },
        ["null"],
        ["1"],
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema(llm: LLM, name: str):
    schema, good, bad = SCHEMAS[name]
    assert [text for text in good if not accepts(llm, text, json_schema=schema)] == []
    assert [text for text in bad if accepts(llm, text, json_schema=schema)] == []
    for text in good:
        jsonschema.validate(json.loads(text), schema)


WHITESPACE = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}


@pytest.mark.parametrize(
    "text", ['{"a":[1,2]}', '{"a": [1, 2]}', '{ "a" : [ 1 , 2 ] }', '{\n    "a": [\r\n\t1,\n2\n    ]\n}']
)
def test_whitespace_that_may_come(llm: LLM, text: str):
    assert accepts(llm, text, json_schema=WHITESPACE)


@pytest.mark.parametrize(
    "text",
    ['{  "a": [1]}', '{"a": [1,\n\n2]}', f'{{\n{" " * 33}"a": [1]}}', ' {"a": [1]}', '{"a": [1]}\n', '{"a":\t[1]}'],
)
def test_whitespace_is_bounded(llm: LLM, text: str):
    assert not accepts(llm, text, json_schema=WHITESPACE)


@pytest.mark.parametrize(
    ("text", "good"), [("{}", True), ('{"a": [1, {"b": null}]}', True), ("[]", False), ("1", False), ("{]", False)]
)
def test_json_is_an_object(llm: LLM, text: str, good: bool):
    assert accepts(llm, text, json=True) == good


FORMS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "regex": ({"regex": r"[0-9]{3}|a/b\n?"}, ["123", "a/b", "a/b\n"], ["12", "1234", " 123", "a/b\n\n", ""]),
    "regex with anchors": ({"regex": "^yes$"}, ["yes"], ["yes\n", "ye"]),
    "choice": (
        {"choice": ["yes", "no", "nothing", 'a "b" \\ \n é 日 <s>']},
        ["yes", "no", "nothing", 'a "b" \\ \n é 日 <s>'],
        ["", "y", "not", "yesno", "Yes"],
    ),
    "one choice": ({"choice": "yes"}, ["yes"], ["no"]),
    "grammar": ({"grammar": 'start: "(" start ")" | NAME\nNAME: /[a-z]+/'}, ["a", "((ab))"], ["((a)", "(A)", ""]),
    "grammar with a schema": (
        {"grammar": 'start: "call " args\nargs: %json {"type": "integer"}'},
        ["call 3"],
        ["call x"],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form(llm: LLM, name: str):
    form, good, bad = FORMS[name]
    spelled = {text: [*text.encode(), 271] for text in [*good, *bad]}
    allowed = {
        text for text, ids in spelled.items() if llm.constraint(llm.resolved_params(**form)).allows(ids) == len(ids)
    }
    assert allowed == set(good)

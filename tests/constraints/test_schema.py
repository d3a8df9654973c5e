"""What of a schema is refused, by its path, and how much of one there may be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tinyinfer import LLM, SamplingParams
from tinyinfer.constraints.schema import MOST_BYTES, usable
from tinyinfer.errors import BadRequest

LOOKS_AHEAD = {"type": "string", "pattern": "a(?=b)"}
OLD = "http://json-schema.org/draft-07/schema#"

REFUSED: dict[str, tuple[Any, str]] = {
    **{
        name: ({"properties": {"a": {name: value}}}, f"#/properties/a/{name} is not supported")
        for name, value in {
            "uniqueItems": True,
            "contains": {},
            "minContains": 1,
            "maxContains": 2,
            "not": {},
            "if": {},
            "then": {},
            "else": {},
            "dependentRequired": {},
            "dependentSchemas": {},
            "propertyNames": {},
            "unevaluatedItems": False,
            "unevaluatedProperties": False,
            "dependencies": {},
            "additionalItems": False,
            "$dynamicRef": "#a",
            "$dynamicAnchor": "a",
            "$recursiveRef": "#",
            "$vocabulary": {},
            "id": "a",
            "nullable": True,
            "maxLenght": 3,
            "discriminator": {},
            "x-guidance": {"lenient": True},
        }.items()
    },
    "in $defs": ({"$defs": {"a/b~": {"not": {}}}}, "#/$defs/a~1b~0/not is not supported"),
    "in a list": ({"anyOf": [{}, {"items": {"if": {}}}]}, "#/anyOf/1/items/if is not supported"),
    "in patternProperties": ({"patternProperties": {"^a": {"not": {}}}}, "#/patternProperties/^a/not is"),
    "in additionalProperties": ({"additionalProperties": {"contains": {}}}, "#/additionalProperties/contains is"),
    "no schema": ([], "# should be a schema"),
    "a list of items": ({"items": [{}]}, "#/items should be a schema, an object or true or false, found [{}]"),
    "false": (False, "# is false"),
    "type": (
        {"type": "text"},
        '#/type should be one or several of null, boolean, object, array, number, string, integer, found "text"',
    ),
    "types": ({"type": []}, "#/type should be"),
    "a type that is no text": ({"type": [["null"]]}, "#/type should be"),
    "empty enum": ({"enum": []}, "#/enum should be a list of at least one value"),
    "enum": ({"enum": "a"}, "#/enum should be"),
    "required": ({"required": "a"}, "#/required should be a list of names"),
    "properties": ({"properties": []}, "#/properties should be an object of schemas"),
    "anyOf": ({"anyOf": []}, "#/anyOf should be a list of at least one schema"),
    "count": ({"minLength": -1}, "#/minLength should be a whole number from 0"),
    "half a count": ({"maxItems": 1.5}, "#/maxItems should be a whole number from 0"),
    "true for a count": ({"maxItems": True}, "#/maxItems should be a whole number from 0"),
    "bound": ({"minimum": "1"}, "#/minimum should be a number"),
    "bound of draft 4": ({"minimum": 1, "exclusiveMinimum": True}, "#/exclusiveMinimum should be a number"),
    "large number": ({"type": "integer", "minimum": 10**30}, "#/minimum should be a number between -2^53 and 2^53"),
    "large number in a value": ({"enum": [{"a": [2**60]}]}, "#/enum/0/a/0 should be a number between"),
    "multipleOf 0": ({"multipleOf": 0}, "#/multipleOf should be above 0"),
    "multipleOf a tenth": ({"multipleOf": 0.1}, "#/multipleOf should be above 0, whole or with halves"),
    "format": ({"format": "regex"}, "#/format should be one of date-time, time,"),
    "pattern": ({"pattern": 1}, "#/pattern should be text, found 1"),
    "minProperties": ({"required": ["a"], "minProperties": 3}, "#/minProperties should be at most 2"),
    "control character": ({"const": "a\x01"}, r"#/const holds a character that an answer can't, '\x01'"),
    "control character in a name": ({"properties": {"\x7f": {}}}, "holds a character that an answer can't"),
    "half a pair": ({"enum": ["\ud800"]}, "#/enum/0 holds a character that an answer can't"),
    "unknown draft": ({"$schema": "http://json-schema.org/draft-04/schema#"}, "#/$schema should be one of"),
    "prefixItems before 2020": ({"$schema": OLD, "prefixItems": [{}]}, "#/prefixItems is a keyword of draft 2020-12"),
    "$schema inside": ({"items": {"$schema": OLD}}, "#/items/$schema should stand at the top only"),
    "remote": ({"items": {"$ref": "http://a.b/c#/d"}}, "#/items/$ref leads out of the schema, to 'http://a.b/c#/d'"),
    "no anchor": ({"$ref": "#a"}, "#/$ref names an anchor that is not there"),
    "to what is no schema": ({"$ref": "#/foo/bar", "x-foo": 1}, "#/$ref should lead to a schema by keywords"),
    "to a value": ({"$ref": "#/enum/0", "enum": [{}]}, "#/$ref should lead to a schema by keywords"),
    "to nothing": (
        {"properties": {"a": {"$ref": "#/$defs/a"}}},
        "#/properties/a/$ref: Pointer '/$defs/a' does not exist",
    ),
    "to itself": ({"$ref": "#"}, "#/$ref: the constraint can't be followed: no token goes on as it asks"),
    "look-around": ({"properties": {"a/b": LOOKS_AHEAD}}, "#/properties/a~1b/pattern: regex parse error"),
    "look-around, referred to": (
        {"items": {"$ref": "#/$defs/p"}, "$defs": {"p": LOOKS_AHEAD}},
        "#/$defs/p/pattern: regex",
    ),
    "look-around, beside another": (
        {"anyOf": [{"items": LOOKS_AHEAD}, {"items": LOOKS_AHEAD}]},
        "#/anyOf/0/items/pattern",
    ),
    "look-around in draft 7": (
        {"$schema": OLD, "items": {"$ref": "#/definitions/p"}, "definitions": {"p": LOOKS_AHEAD}},
        "#/definitions/p/pattern: regex",
    ),
    "look-around under an $id": ({"$id": "http://a.b/c", "items": LOOKS_AHEAD}, "#/items/pattern: regex"),
    "oneOf that overlaps": (
        {"items": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
        "#/items/oneOf: oneOf constraints",
    ),
    "patterns of names that overlap": (
        {"patternProperties": {"^a": {}, "b$": {"type": "null"}}},
        "#/patternProperties: ",
    ),
    "a count with optional names": (
        {"properties": {"a": {}, "b": {}}, "maxProperties": 1},
        "#/maxProperties: min/maxProperties",
    ),
    "contradiction": (
        {"allOf": [{"type": "string"}, {"type": "null"}]},
        "#/allOf: Unsatisfiable schema: incompatible types",
    ),
    "empty range": ({"type": "integer", "minimum": 2, "maximum": 1}, "#/minimum: Unsatisfiable schema: minimum (2) is"),
    "no multiple": ({"type": "integer", "multipleOf": 9, "minimum": 1, "maximum": 8}, "#/multipleOf: Unsatisfiable"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_path(llm: LLM, name: str):
    schema, expected = REFUSED[name]
    with pytest.raises(BadRequest) as error:
        llm.stream("a", json_schema=schema)  # nothing has been generated yet
    assert error.value.parameter == "json_schema"
    assert str(error.value).startswith("json_schema")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{", "json_schema should be a JSON schema: "),
        ('{"a": 1, "a": 2}', "the name 'a' stands twice in one object"),
        ('{"maximum": NaN}', "NaN is no number in JSON"),
        ({"maximum": float("inf")}, "json_schema should be a JSON schema: Out of range float"),
        ({"const": object()}, "json_schema should be a JSON schema: Object of type object is not JSON serializable"),
        ({"const": "a" * MOST_BYTES}, "json_schema should have at most 262,144 bytes as JSON, found 262,15"),
        ("[" * 100_000, "json_schema is nested too deeply"),
        (3, "# should be a schema, an object or true or false, found 3"),
    ],
    ids=["no JSON", "a name twice", "NaN", "infinity", "no JSON value", "large", "deep", "number"],
)
def test_what_is_no_schema(given: Any, expected: str):
    with pytest.raises(BadRequest) as error:
        SamplingParams(json_schema=given)
    assert expected in str(error.value)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_depth(llm: LLM):
    assert llm.constraint(llm.resolved_params(json_schema=nested(64)))
    value: Any = 1
    for _ in range(64):
        value = [value]
    assert llm.constraint(llm.resolved_params(json_schema={"const": value}))
    for schema in (nested(65), {"const": [value]}):
        with pytest.raises(BadRequest, match="is nested deeper than 64 levels"):
            SamplingParams(json_schema=schema)


def test_number_of_names():
    with pytest.raises(BadRequest, match=r"#/items/properties should have at most 500 names, found 501"):
        SamplingParams(json_schema={"items": {"properties": {f"p{i}": {} for i in range(501)}}})


def options(k: int) -> list[dict[str, int]]:
    return [{"minLength": i + 2 * k} for i in range(4)]


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "product of options": ({"json_schema": {"allOf": [{"anyOf": options(k)} for k in range(12)]}}, "too large"),
    "pattern": (
        {"json_schema": {"properties": {"a": {"pattern": "^(a{1000}){1000}$"}}}},
        "#/properties/a/pattern: the constraint can't be followed: an expression in it is too large",
    ),
    "regex": ({"regex": "^(a{1000}){1000}$"}, "an expression in it is too large"),
    "long regex": ({"regex": "a" * 10_001}, "regex should have at most 10,000 characters, found 10,001"),
    "nested regex": ({"regex": "(" * 4000 + ")" * 4000}, "regex can't be compiled: "),
    "grammar": ({"grammar": "start: /(a{1000}){1000}b/"}, "an expression in it is too large"),
    "long grammar": ({"grammar": 'start: "a"' + " " * 2**18}, "grammar should have at most 262,144 characters"),
    "many choices": (
        {"choice": ["a" * 1000 + str(i) for i in range(300)]},
        "choice should have at most 262,144 characters",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_take_too_long_is_refused(llm: LLM, name: str):
    form, expected = HOSTILE[name]
    with pytest.raises(BadRequest) as error:
        llm.stream("a", **form)
    assert expected in str(error.value)
    assert len(str(error.value)) < 600


def test_large_counts_cost_nothing(llm: LLM):
    schema = {"type": "array", "items": {"type": "string", "maxLength": 10**9}, "maxItems": 10**9}
    assert llm.constraint(llm.resolved_params(json_schema=schema))


def test_what_says_nothing_about_validity_is_left_out():
    schema = {
        "title": "t",
        "type": "object",
        "properties": {"title": {"description": "d", "type": "null"}},
        "x-order": 1,
        "examples": [{"not": {}}],
        "uniqueItems": False,
        "minProperties": 1.0,
    }
    found = {"type": "object", "properties": {"title": {"type": "null"}}, "minProperties": 1}
    assert usable(schema) == found


def test_a_schema_is_kept_as_it_was_said():
    schema = {"title": "t", "properties": {"b": {}, "a": {}}}
    for given in (schema, json.dumps(schema)):
        params = SamplingParams(json_schema=given)
        assert json.dumps(params.json_schema) == json.dumps(schema)
        assert json.dumps(SamplingParams.from_dict(json.loads(json.dumps(params.to_dict()))).json_schema) == json.dumps(
            schema
        )
    schema["title"] = "changed"
    assert params.json_schema["title"] == "t"


def test_where_in_a_large_schema_is_not_sought_for_ever(llm: LLM):
    names: dict[str, Any] = {f"p{i}": {"type": "null"} for i in range(400)}
    with pytest.raises(BadRequest, match="#/properties/p9/pattern: regex parse error"):
        llm.constraint(llm.resolved_params(json_schema={"properties": {**names, "p9": LOOKS_AHEAD}}))
    with pytest.raises(BadRequest, match="#: regex parse error"):
        llm.constraint(llm.resolved_params(json_schema={"properties": {**names, "p390": LOOKS_AHEAD}}))

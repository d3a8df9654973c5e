"""The public JSON Schema Test Suite, draft 2020-12: each schema is refused by a path, or obeyed to the letter.

https://github.com/json-schema-org/JSON-Schema-Test-Suite. JSON_SCHEMA_TEST_SUITE says where it lies, a checkout or the
folder of that draft; without it these tests are skipped, and `test_keywords.py` has cases of our own.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tinyinfer import LLM

from .answers import accepts, random_answer, refusal, spellings

SUITE = os.environ.get("JSON_SCHEMA_TEST_SUITE")

# how far we go beyond the draft, or stay behind it, on purpose
NARROWER = {
    "format.json",  # a format is enforced, which the draft leaves to the reader
}


def folder() -> Path:
    whole = Path(SUITE) / "tests" / "draft2020-12"
    return whole if whole.is_dir() else Path(SUITE)


def cases() -> list[Any]:
    if SUITE is None:
        return [pytest.param("", {}, marks=pytest.mark.skip("JSON_SCHEMA_TEST_SUITE is not set"))]
    files = sorted(folder().glob("*.json"))
    return [
        pytest.param(file.name, case, id=f"{file.stem}: {case['description']}")
        for file in files
        for case in json.loads(file.read_text())
    ]


@pytest.mark.parametrize(("file", "case"), cases())
def test_a_schema_is_obeyed_or_refused_by_path(llm: LLM, file: str, case: dict[str, Any]):
    schema = case["schema"]
    if refused := refusal(llm, json_schema=schema):
        assert refused.parameter == "json_schema"
        assert "#" in str(refused)
        return
    for test in case["tests"]:
        found = [accepts(llm, text, json_schema=schema) for text in spellings(test["data"])]
        if not test["valid"]:
            assert not any(found), test
        elif file not in NARROWER:
            assert any(found), test
    for seed in range(5):
        done = random_answer(llm, seed, json_schema=schema)
        if done.finish_reason == "stop":
            with suppress(jsonschema.SchemaError):  # its expressions are Python's, which have no \\p{Letter}
                jsonschema.validate(json.loads(done.text), schema, jsonschema.Draft202012Validator)


@pytest.mark.skipif(SUITE is None, reason="JSON_SCHEMA_TEST_SUITE is not set")
def test_that_much_of_it_is_obeyed(llm: LLM):
    """Of 383 schemas 173; the rest asks for what can't be enforced, most of it one keyword a file."""
    found = [refusal(llm, json_schema=param.values[1]["schema"]) for param in cases()]
    assert found.count(None) >= 0.4 * len(found)

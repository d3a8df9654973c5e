"""Where in a schema something is that can't be compiled: llguidance says what is wrong, but not where."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from .schema import NAMED_SCHEMAS, ONE_SCHEMA, SEVERAL_SCHEMAS

Compile = Callable[[Any], str]  # a schema -> what is wrong with it, "" for nothing
BASE = "https://localhost/schema"
MOST_TRIES = 300


def culprit(schema: dict[str, Any], complaint: str, compile: Compile) -> str:
    """The path of the innermost schema, or keyword, that alone draws the same complaint; "#" where none does.

    Of a large schema only so much is tried; the path then ends further out.
    """
    left = MOST_TRIES

    def complains(changed: Any, path: str) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and compile(_alone(changed, path)) == complaint

    path = "#"
    while inner := next((found for found in _inside(_at(schema, path), path) if complains(schema, found)), None):
        path = inner
    here = _at(schema, path)
    keywords = [
        name
        for name in (here if isinstance(here, dict) else ())
        if name not in ("$defs", "definitions", "$id", "$schema")
    ]
    # first what the complaint names; but it names these two to say something else
    for keyword in sorted(keywords, key=lambda name: (name in ("type", "properties"), name not in complaint)):
        if left <= 0:
            break
        changed = copy.deepcopy(schema)
        del _at(changed, path)[keyword]
        if not complains(changed, path):
            return f"{path}/{_escaped(keyword)}"
    return path


def patterns(schema: Any, path: str = "#") -> Iterator[tuple[str, str]]:
    """The path and text of every `pattern`."""
    if isinstance(schema, dict) and "pattern" in schema:
        yield f"{path}/pattern", schema["pattern"]
    for inner in _inside(schema, ""):
        yield from ((path + inner + rest[1:], text) for rest, text in patterns(_at(schema, inner)))


def _alone(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """A schema that asks for no more than the one at `path`, which may refer to any other."""
    base, draft = schema.get("$id", BASE), schema.get("$schema", "")
    held = "definitions" if "draft-0" in draft else "$defs"
    whole = {name: value for name, value in schema.items() if name != "$schema"} | {"$id": base}
    return {"$ref": base + quote(path, safe="#/~"), held: {"whole": whole}} | ({"$schema": draft} if draft else {})


def _inside(schema: Any, path: str) -> Iterator[str]:
    """The paths of the schemas that one holds."""
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        if keyword in ONE_SCHEMA:
            yield f"{path}/{keyword}"
        elif keyword in SEVERAL_SCHEMAS:
            yield from (f"{path}/{keyword}/{i}" for i in range(len(value)))
        elif keyword in NAMED_SCHEMAS:
            yield from (f"{path}/{keyword}/{_escaped(name)}" for name in value)


def _at(schema: Any, path: str) -> Any:
    for step in path.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        schema = schema[int(step)] if isinstance(schema, list) else schema[step]
    return schema


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")

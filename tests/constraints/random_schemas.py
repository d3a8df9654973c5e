"""Schemas put together at random from what is supported, in any order of keywords."""

from __future__ import annotations

import random
from typing import Any

TYPES = ["null", "boolean", "object", "array", "number", "string", "integer"]
PATTERNS = ["^a", "b$", "^[a-c]+$", "a|b", r"^\d{2,3}$", "^.$", "[^a]", "^(ab)*$", r"\.", "é", "^$", "^a|b$", "a{2}"]
NUMBERS = [0, 1, -1, 3, 0.5, -0.5, 10, 100, 12.75, -7, 2**31, 0.1]
NAMES = ["a", "b", "c", "é", "a/b", "p~q", '"', "x\ny"]


def random_schema(seed: int) -> Any:
    """A schema of a few levels, with two more to refer to."""
    draw = random.Random(seed)
    return {**_schema(draw, 0), "$defs": {"x": _schema(draw, 2), "y": _schema(draw, 2)}}


def _schema(draw: random.Random, depth: int) -> dict[str, Any]:
    if depth > 3:
        return {"type": draw.choice(TYPES)}
    kind = draw.randrange(8)
    if kind == 0:
        return {"enum": [_value(draw, 0) for _ in range(draw.randrange(1, 4))]}
    if kind == 1:
        return {"const": _value(draw, 0)}
    if kind == 2:
        options = [_schema(draw, depth + 1) for _ in range(draw.randrange(1, 4))]
        return {draw.choice(["anyOf", "oneOf", "allOf"]): options}
    if kind == 3 and depth:
        return {"$ref": draw.choice(["#/$defs/x", "#/$defs/y", "#"])}
    types = draw.sample(TYPES, draw.choice([1, 1, 1, 2]))
    found: dict[str, Any] = {"type": types if len(types) > 1 else types[0]}
    for name, value in _keywords(draw, depth).items():
        if draw.random() < 0.3:
            found[name] = value
    pairs = list(found.items())
    draw.shuffle(pairs)
    return dict(pairs)


def _keywords(draw: random.Random, depth: int) -> dict[str, Any]:
    inner = [_schema(draw, depth + 1) for _ in range(6)] if depth < 3 else [True] * 6
    return {
        "minimum": draw.choice(NUMBERS), "exclusiveMaximum": draw.choice(NUMBERS),
        "multipleOf": draw.choice([1, 2, 0.5, 0.25, 7, 100]),
        "minLength": draw.randrange(4), "maxLength": draw.randrange(6), "pattern": draw.choice(PATTERNS),
        "items": inner[0], "prefixItems": inner[1:2], "minItems": draw.randrange(3), "maxItems": draw.randrange(4),
        "properties": {draw.choice(NAMES): one for one in inner[2:4]}, "additionalProperties": inner[4],
        "patternProperties": {draw.choice(["^a", "^b", "z$"]): inner[5]},
        "required": draw.sample(["a", "b", "zz"], draw.randrange(3)),
        "minProperties": draw.randrange(3), "maxProperties": draw.randrange(3),
    }  # fmt: skip


def _value(draw: random.Random, depth: int) -> Any:
    kind = draw.randrange(7 if depth < 2 else 5)
    if kind == 5:
        return [_value(draw, depth + 1) for _ in range(draw.randrange(3))]
    if kind == 6:
        return {draw.choice(NAMES): _value(draw, depth + 1) for _ in range(draw.randrange(3))}
    return [None, draw.random() < 0.5, draw.choice(NUMBERS), draw.choice([*NAMES, ""]), draw.randrange(-3, 20)][kind]

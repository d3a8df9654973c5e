"""What of JSON Schema can be obeyed. All else is refused, by its path, before anything is generated.

Draft 2020-12 (https://json-schema.org/draft/2020-12), and what the drafts since 6 have in common with it. llguidance
takes most of it, but passes over keywords that it does not know; so each keyword is looked at here first, and what is
handed on holds only those that it obeys. Annotations and names that begin with "x-" say nothing about what is valid.

    obeyed otherwise than one might think
    properties      come in the order in which the schema has them, then the others that `required` names, then more
    format          is enforced
    minProperties   at most one more than `required` names: the same name could come twice, and count once
    multipleOf      a number that binary floats hold: programs that check an answer compute in them, and find that 0.07
                    is no multiple of 0.01
    numbers         up to 2^53, beyond which floats skip whole numbers
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from ..errors import BadRequest

MOST_BYTES = 2**18  # of a schema as JSON
DEEPEST = 64  # levels of schemas, and of values in const and enum; the parser takes 128 of JSON
MOST_PROPERTIES = 500  # of one object: compiling takes time by their square
LARGEST_NUMBER = 2**53

TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
DRAFTS = {
    "https://json-schema.org/draft/2020-12/schema": 2020, "https://json-schema.org/draft/2019-09/schema": 2019,
    "http://json-schema.org/draft-07/schema": 7, "http://json-schema.org/draft-06/schema": 6,
}  # fmt: skip

# What RFC 3339 asks of dates and times and the parser passes over: days that there are, and no leap seconds, which are
# announced and not computed. Year 0 is left out as well, which programs that read dates seldom know.
_YEAR = "^(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAY = f"^([0-9]{{4}}-(0[13-9]|1[0-2])-|[0-9]{{4}}-02-([01][0-9]|2[0-8])|{_LEAP}-02-29)"
_SECOND = "^([^:]*T|[^:]*t)?[0-9]{2}:[0-9]{2}:[0-5]"
EXACT_FORMATS = {"date": (_YEAR, _DAY), "date-time": (_YEAR, _DAY, _SECOND), "time": (_SECOND,)}

ONE_SCHEMA = ("items", "additionalProperties")
SEVERAL_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
ANNOTATIONS = (
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
    "contentEncoding", "contentMediaType", "contentSchema",
)  # fmt: skip


def read_schema(name: str, value: Any) -> dict[str, Any] | bool | None:
    """A schema as plain JSON values, from these or from JSON text; None is none.

    Raises `BadRequest` for what is no JSON, too large, or what can't be obeyed; see `usable`.
    """
    if value is None:
        return None
    try:
        text = value if isinstance(value, str) else json.dumps(_plain(value), allow_nan=False)
        if len(text.encode(errors="surrogatepass")) > MOST_BYTES:
            raise BadRequest(f"{name} should have at most {MOST_BYTES:,} bytes as JSON, found {len(text):,}", name)
        schema = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except BadRequest:
        raise
    except RecursionError:
        raise BadRequest(f"{name} is nested too deeply", name) from None
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{name} should be a JSON schema: {error}", name) from None
    usable(schema, name)
    return schema


def usable(schema: Any, name: str = "json_schema") -> dict[str, Any] | bool:
    """What to hand on of a schema: the same, without what says nothing about validity.

    Raises `BadRequest` with the path of the first keyword that can't be obeyed, or is malformed.
    """
    return _Reader(name).read(schema)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")


class _Reader:
    """Goes through one schema, noting what references may point at."""

    def __init__(self, name: str):
        self.name = name
        self.draft = 2020
        self.resources: set[str] = set()
        self.anchors: set[str] = set()
        self.references: list[tuple[str, str, str]] = []  # path, base and text of each

    def read(self, schema: Any) -> dict[str, Any] | bool:
        if isinstance(schema, dict) and "$schema" in schema:
            self.draft = self._draft(schema["$schema"])
        base = self._base(schema, "", "#")
        self.resources.add(base)
        found = self._schema(schema, "#", base, 0)
        for path, near, text in self.references:
            self._check_reference(path, near, text)
        return found

    def _refuse(self, path: str, reason: str) -> NoReturn:
        raise BadRequest(f"{self.name}: {path} {reason}", self.name)

    def _draft(self, value: Any) -> int:
        draft = DRAFTS.get(value.removesuffix("#")) if isinstance(value, str) else None
        if draft is None:
            self._refuse("#/$schema", f"should be one of {', '.join(DRAFTS)}, found {value!r}")
        return draft

    def _base(self, schema: Any, base: str, path: str) -> str:
        if not isinstance(schema, dict) or "$id" not in schema:
            return base
        if not isinstance(schema["$id"], str):
            self._refuse(f"{path}/$id", f"should be text, found {schema['$id']!r}")
        return urldefrag(urljoin(base, schema["$id"])).url

    def _schema(self, schema: Any, path: str, base: str, depth: int) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            self._refuse(path, f"should be a schema, an object or true or false, found {_shown(schema)}")
        if depth > DEEPEST:
            self._refuse(path, f"is nested deeper than {DEEPEST} levels")
        base = self._base(schema, base, path)
        self.resources.add(base)
        found = {}
        for keyword, value in schema.items():
            here = f"{path}/{_escaped(keyword)}"
            if keyword in ONE_SCHEMA:
                found[keyword] = self._schema(value, here, base, depth + 1)
            elif keyword in SEVERAL_SCHEMAS:
                found[keyword] = self._several(keyword, value, here, base, depth)
            elif keyword in NAMED_SCHEMAS:
                found[keyword] = self._named(keyword, value, here, base, depth)
            elif keyword == "$schema" and path != "#":
                self._refuse(here, "should stand at the top only")
            elif keyword not in ANNOTATIONS and (keyword == "x-guidance" or not keyword.startswith("x-")):
                self._check_plain(keyword, value, here, base)
                found[keyword] = int(value) if keyword in COUNTS else value
        if found.get("uniqueItems") is False:
            del found["uniqueItems"]
        self._check_fewest(schema, path)
        if patterns := EXACT_FORMATS.get(found.get("format", "")):
            found["allOf"] = found.get("allOf", []) + [{"pattern": pattern} for pattern in patterns]
        return found

    def _several(self, keyword: str, value: Any, path: str, base: str, depth: int) -> list[Any]:
        if keyword == "prefixItems" and self.draft < 2020:
            self._refuse(path, "is a keyword of draft 2020-12 only")
        if not isinstance(value, list) or not value:
            self._refuse(path, f"should be a list of at least one schema, found {_shown(value)}")
        return [self._schema(one, f"{path}/{i}", base, depth + 1) for i, one in enumerate(value)]

    def _named(self, keyword: str, value: Any, path: str, base: str, depth: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._refuse(path, f"should be an object of schemas, found {_shown(value)}")
        if keyword == "properties":
            if len(value) > MOST_PROPERTIES:
                self._refuse(path, f"should have at most {MOST_PROPERTIES} names, found {len(value):,}")
            for name in value:
                self._check_writable(name, f"{path}/{_escaped(name)}")
        return {
            name: self._schema(one, f"{path}/{_escaped(name)}", base, depth + 1) for name, one in value.items()
        }  # fmt: skip

    def _check_plain(self, keyword: str, value: Any, path: str, base: str) -> None:
        """Check a keyword whose value holds no schemas."""
        if keyword in COUNTS:
            if not _is_number(value) or value % 1 or not 0 <= value <= LARGEST_NUMBER:
                self._refuse(path, f"should be a whole number from 0 to 2^53, found {_shown(value)}")
        elif keyword in BOUNDS:
            self._check_number(value, path)
        elif keyword == "multipleOf":
            self._check_multiple(value, path)
        elif keyword == "type":
            names = value if isinstance(value, list) else [value]
            if not names or any(name not in TYPES for name in names if isinstance(name, str)) or not _texts(names):
                self._refuse(path, f"should be one or several of {', '.join(TYPES)}, found {_shown(value)}")
        elif keyword in ("enum", "const"):
            if keyword == "enum" and (not isinstance(value, list) or not value):
                self._refuse(path, f"should be a list of at least one value, found {_shown(value)}")
            self._check_value(value, path, 0)
        elif keyword == "required":
            if not isinstance(value, list) or not _texts(value):
                self._refuse(path, f"should be a list of names, found {_shown(value)}")
            for i, name in enumerate(value):
                self._check_writable(name, f"{path}/{i}")
        elif keyword == "format":
            if value not in FORMATS:
                self._refuse(path, f"should be one of {', '.join(FORMATS)}, found {_shown(value)}")
        elif keyword in ("pattern", "$ref", "$id", "$anchor", "$schema"):
            if not isinstance(value, str):
                self._refuse(path, f"should be text, found {_shown(value)}")
            if keyword == "$ref":
                self.references.append((path, base, value))
            if keyword == "$anchor":
                self.anchors.add(f"{base}#{value}")
        elif keyword != "uniqueItems" or value is not False:
            self._refuse(path, "is not supported: it could not be enforced")

    def _check_fewest(self, schema: dict[str, Any], path: str) -> None:
        most = len(set(schema.get("required", []))) + 1
        if schema.get("minProperties", 0) > most:
            self._refuse(
                f"{path}/minProperties", f"should be at most {most}, one more than `required` names: a name could "
                f"come twice, and count once; found {schema['minProperties']}",
            )  # fmt: skip

    def _check_number(self, value: Any, path: str) -> None:
        if not _is_number(value) or not abs(value) <= LARGEST_NUMBER:
            self._refuse(path, f"should be a number between -2^53 and 2^53, found {_shown(value)}")

    def _check_multiple(self, value: Any, path: str) -> None:
        self._check_number(value, path)
        if value <= 0 or (value * 2**20) % 1:
            self._refuse(path, f"should be above 0, whole or with halves, quarters, ... only, found {_shown(value)}")

    def _check_value(self, value: Any, path: str, depth: int) -> None:
        if depth > DEEPEST:
            self._refuse(path, f"is nested deeper than {DEEPEST} levels")
        if isinstance(value, str):
            self._check_writable(value, path)
        elif _is_number(value):
            self._check_number(value, path)
        elif isinstance(value, list):
            for i, one in enumerate(value):
                self._check_value(one, f"{path}/{i}", depth + 1)
        elif isinstance(value, dict):
            for name, one in value.items():
                self._check_writable(name, f"{path}/{_escaped(name)}")
                self._check_value(one, f"{path}/{_escaped(name)}", depth + 1)

    def _check_writable(self, text: str, path: str) -> None:
        if wrong := re.search("[\x00-\x07\x0b\x0e-\x1f\x7f\ud800-\udfff]", text):
            self._refuse(path, f"holds a character that an answer can't, {wrong[0]!r}")

    def _check_reference(self, path: str, base: str, text: str) -> None:
        uri, fragment = (base, text[1:]) if text.startswith("#") else urldefrag(urljoin(base, text))
        if uri not in self.resources:
            self._refuse(path, f"leads out of the schema, to {text!r}")
        fragment = unquote(fragment)
        if fragment.startswith("/"):
            self._check_pointer(path, text, fragment.split("/")[1:])
        elif fragment and f"{uri}#{fragment}" not in self.anchors:
            self._refuse(path, f"names an anchor that is not there, {text!r}")

    def _check_pointer(self, path: str, text: str, steps: list[str]) -> None:
        """That it ends at a schema that was read: whether it is there at all is seen when it is compiled."""
        while steps:
            count = 1 if steps[0] in ONE_SCHEMA else 2 if steps[0] in SEVERAL_SCHEMAS + NAMED_SCHEMAS else 0
            if not count or len(steps) < count:
                self._refuse(path, f"should lead to a schema by keywords that hold schemas, found {text!r}")
            steps = steps[count:]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, float) and not math.isfinite(value) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."

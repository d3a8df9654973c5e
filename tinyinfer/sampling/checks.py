"""What a field of SamplingParams may hold: each check gives the value in its plain Python type, or raises."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from numbers import Integral, Real
from typing import Any

from ..errors import BadRequest

ANY_SIZE = sys.float_info.max
MOST_TEXT, MOST_EXPRESSION = 2**18, 10_000  # characters of what describes the form of an answer


def whole(name: str, value: Any, lowest: int = 0) -> int | None:
    """A whole number from `lowest`, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value < lowest:
        raise BadRequest(f"{name} should be a whole number from {lowest}, found {value!r}", name)
    return int(value)


def number(name: str, value: Any, lowest: float = 0.0, highest: float = ANY_SIZE) -> float | None:
    """A number from `lowest` to `highest`, or None."""
    if value is None:
        return None
    found = _float(value)
    if found is not None and lowest <= found <= highest:  # which NaN fails
        return found
    raise BadRequest(f"{name} should be {_range(lowest, highest)}, found {value!r}", name)


def positive(name: str, value: Any) -> float | None:
    """A finite number above 0, or None."""
    if value is None:
        return None
    found = _float(value)
    if found is not None and 0 < found < math.inf:
        return found
    raise BadRequest(f"{name} should be a finite number above 0, found {value!r}", name)


def strings(name: str, value: Any) -> tuple[str, ...]:
    """A tuple of strings, from one, several, or None."""
    if value is None:
        return ()
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(text, str) and text for text in found):
        raise BadRequest(f"{name} should be a string or a list of strings, none of them empty, found {value!r}", name)
    for text in found:
        _no_half_pair(name, text)
    return tuple(found)


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise BadRequest(f"{name} should be true or false, found {value!r}", name)
    return value


def one_of(name: str, value: Any, choices: Sequence[Any]) -> Any:
    """One of `choices`, of the same type."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        expected = " or ".join(repr(choice) for choice in choices)
        raise BadRequest(f"{name} should be {expected}, found {value!r}", name)
    return value


def ids(name: str, value: Any) -> tuple[int, ...]:
    """Token ids, each once, ascending."""
    if not isinstance(value, Sequence | Set) or isinstance(value, str | bytes):
        raise BadRequest(f"{name} should be a list of token ids, found {value!r}", name)
    return tuple(sorted({_id(name, id) for id in value}))


def biases(name: str, value: Any) -> dict[int, float]:
    """Token ids and what is added to their logits; ids may be written as text, as JSON must. None is empty."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRequest(f"{name} should be a mapping of token ids to numbers, found {value!r}", name)
    found = {}
    for key, bias in value.items():
        id = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
        if bias is None:
            raise BadRequest(f"{name} of {key} should be a finite number, found None", name)
        found[_id(name, id)] = number(name, bias, -ANY_SIZE)
    return dict(sorted(found.items()))


def callables(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    """Functions, in order."""
    found = (value,) if callable(value) else value
    if not isinstance(found, Sequence) or not all(callable(function) for function in found):
        raise BadRequest(f"{name} should be a function or a list of functions, found {value!r}", name)
    return tuple(found)


def schema(name: str, value: Any) -> dict[str, Any] | bool | None:
    """A JSON schema that can be obeyed, from JSON values or JSON text, or None."""
    from ..constraints.schema import read_schema

    return read_schema(name, value)


def expression(name: str, value: Any) -> str | None:
    """A regular expression of a size that can be compiled, or None."""
    return None if value is None else _text(name, value, MOST_EXPRESSION)


def grammar(name: str, value: Any) -> str | None:
    """A grammar in Lark's form, or None."""
    if value is None:
        return None
    text = _text(name, value, MOST_TEXT)
    if re.search(r"^\s*[\w-]+\s*::=", text, re.MULTILINE):
        raise BadRequest(f"{name} should be in Lark's form, `start: ...`, found rules with ::= as in GBNF", name)
    if re.search(r"^\s*\w+\s*\[[^\]]*\btemperature\b", text, re.MULTILINE):
        raise BadRequest(f"{name}: a rule can't have a temperature of its own", name)
    return text


def choices(name: str, value: Any) -> tuple[str, ...]:
    """Texts to choose from, each of them once."""
    found = tuple(dict.fromkeys(_text(name, text, MOST_TEXT) for text in strings(name, value)))
    if sum(map(len, found)) > MOST_TEXT:
        raise BadRequest(f"{name} should have at most {MOST_TEXT:,} characters together", name)
    return found


def _text(name: str, value: Any, most: int) -> str:
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{name} should be text of at least one character, found {value!r}", name)
    if len(value) > most:
        raise BadRequest(f"{name} should have at most {most:,} characters, found {len(value):,}", name)
    _no_half_pair(name, value)
    return value


def _no_half_pair(name: str, text: str) -> None:
    if half := re.search("[\ud800-\udfff]", text):
        raise BadRequest(f"{name} holds half a surrogate pair, {half[0]!r}, which is no text", name)


def _float(value: Any) -> float | None:
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _range(lowest: float, highest: float) -> str:
    if highest < ANY_SIZE:
        return f"a number from {lowest:g} to {highest:g}"
    return "a finite number" if lowest == -ANY_SIZE else f"a finite number from {lowest:g}"


def _id(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise BadRequest(f"{name} should hold token ids, whole numbers from 0, found {value!r}", name)
    return int(value)

"""JSON that can be read in one way only: UTF-8, no key twice in an object, none of Python's NaN and Infinity."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

Refused = Callable[[str, "str | None"], Exception]  # from what is wrong, and the key that it is about


def parse_object(raw: bytes, refused: Refused) -> dict[str, Any]:
    """The JSON object that `raw` is. Raises what `refused` makes of the reason where it is none."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)[:80]
            raise _Wrong(f"the key {twice!r} stands twice in one object", twice)
        return found

    def no_constant(name: str) -> NoReturn:
        raise _Wrong(f"not JSON: {name} is no number there", None)

    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=once, parse_constant=no_constant)
    except _Wrong as wrong:
        raise refused(*wrong.args) from None
    except UnicodeDecodeError as error:
        raise refused(f"not UTF-8 text: byte {raw[error.start]:#04x} at {error.start:,}", None) from None
    except RecursionError:
        raise refused("not JSON that can be read: it is nested too deeply", None) from None
    except json.JSONDecodeError as error:
        raise refused(f"not JSON: {error.msg} at character {error.pos:,}", None) from None
    except ValueError as error:  # whole numbers of thousands of digits
        raise refused(f"not JSON that can be read: {error}", None) from None
    if not isinstance(value, dict):
        raise refused(f"expected a JSON object, found {type(value).__name__}", None)
    return value


class _Wrong(Exception):
    """What is wrong, and the key that it is about."""

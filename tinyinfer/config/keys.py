"""Reading config.json's values: each checked, whatever a file holds, and found under its family's name for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BadCheckpoint

SMALLEST, LARGEST = 1e-30, 1e30  # numbers that float32 arithmetic can still work with

Names = Mapping[str, "str | tuple[str, ...] | None"]


class Keys:
    """config.json's values by the names that most families use.

    names     what a family calls a key otherwise, or the names it may have, the first that is there counting; a dot
              leads into a nested object, None means that the family has no such key
    defaults  the value where a key is absent; or a function of these keys that works it out, also where it is null
    """

    def __init__(
        self, config: Mapping[str, Any], defaults: Mapping[str, Any], names: Names | None = None,
        where: str = "config.json",
    ):  # fmt: skip
        self.config, self.defaults, self.names, self.where = config, defaults, names or {}, where

    def get(self, key: str, fallback: Any = None) -> Any:
        """The value; a null means the fallback, an absent key the family's default or else the fallback."""
        values = [found[0] for name in self._names(key) if (found := self._find(name))]
        value = next((value for value in values if value is not None), None)
        default = self.defaults.get(key)
        if value is None and (callable(default) or not values):
            value = default(self) if callable(default) else default
        return fallback if value is None else value

    def size(self, key: str, fallback: int | None = None, least: int = 1) -> int:
        """A whole number from `least`."""
        value = self.get(key, fallback)
        if type(value) is not int or not least <= value < 2**31:
            expected = f"a whole number from {least} and below 2^31"
            raise BadCheckpoint(f"{self.where}: {self.name(key)} should be {expected}, found {shown(value)}")
        return value

    def optional_size(self, key: str) -> int | None:
        """A whole number from 1, or None where there is none."""
        return None if self.get(key) is None else self.size(key)

    def number(self, key: str, fallback: float | None = None) -> float:
        """A positive number."""
        value = self.get(key, fallback)
        if not is_number(value):
            expected = f"a number from {SMALLEST:g} to {LARGEST:g}"
            raise BadCheckpoint(f"{self.where}: {self.name(key)} should be {expected}, found {shown(value)}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A positive number, or None where there is none or it is 0."""
        return None if self.get(key) in (None, 0) else self.number(key)

    def flag(self, key: str, fallback: bool = False) -> bool:
        """True or false."""
        value = self.get(key, fallback)
        if type(value) is not bool:
            raise BadCheckpoint(f"{self.where}: {self.name(key)} should be true or false, found {shown(value)}")
        return value

    def name(self, key: str) -> str:
        """What config.json calls a key: for messages."""
        names = self._names(key)
        return next((name for name in names if self._find(name)), names[0] if names else key)

    def _names(self, key: str) -> tuple[str, ...]:
        names = self.names.get(key, key)
        return () if names is None else (names,) if isinstance(names, str) else names

    def _find(self, name: str) -> tuple[Any] | None:
        """A value that stands there, null or not, or None."""
        *path, last = name.split(".")
        inside = self.config
        for part in path:
            inside = inside.get(part) or {}
            if not isinstance(inside, Mapping):
                raise BadCheckpoint(f"{self.where}: {part} should be a JSON object, found {shown(inside)}")
        return (inside[last],) if last in inside else None


def is_number(value: Any) -> bool:
    """Whether a value is a positive number that arithmetic can work with."""
    return type(value) in (int, float) and SMALLEST <= value <= LARGEST


def shown(value: Any) -> str:
    """A value as messages show it: short, whatever a file holds."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def token_ids(value: Any, where: str) -> tuple[int, ...]:
    """End-of-sequence ids as files give them: absent, one id, or a list of ids."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(n) is int and n >= 0 for n in values):
        raise BadCheckpoint(f"{where}: expected a token id or a list of them, found {shown(value)}")
    return tuple(values)

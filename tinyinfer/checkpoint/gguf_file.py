"""The GGUF container: what a file says about itself, and where its tensors lie.

Format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), all little-endian:

    "GGUF", u32 version, u64 tensor count, u64 key count
    keys         string key, u32 value type, value
                 (string: u64 length, UTF-8 bytes; array: u32 type, u64 count, items)
    tensors      string name, u32 rank, u64 sizes (fastest first), u32 type, u64 offset
    padding      to a multiple of general.alignment (32 unless said otherwise)
    data         offsets count from here

A file is untrusted input: every count and offset is checked against the file's size before it is believed. The `gguf`
package has a reader too; it makes several Python objects for each string of a vocabulary, which took 16 s for Qwen2.5's
151,936 tokens where this one took 0.7 s, and it believes the counts. Its dequantizers are used.
"""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadCheckpoint, MissingExtra, UnsupportedModel
from ..files import POINTER_BYTES, refuse_pointer
from .safetensors import BFLOAT16

# name -> (type number in the file, values a block, bytes a block)
BLOCKS: dict[str, tuple[int, int, int]] = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210),
}  # fmt: skip
FLOATS: dict[str, np.dtype] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": BFLOAT16}

_TYPE_NAMES = {number: name for name, (number, _, _) in BLOCKS.items()}
_SCALARS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "bool",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9
_MAX_RANK, _MAX_NESTING, _MAX_KEYS, _MAX_TENSORS, _MAX_ITEMS = 4, 4, 65_536, 1_000_000, 16_777_216


@dataclass(frozen=True)
class GgufTensor:
    """One tensor as it lies in the file."""

    name: str
    type: str  # a key of BLOCKS
    shape: tuple[int, ...]  # slowest dimension first, as NumPy has it: a matrix is (rows out, columns in)
    data: np.ndarray  # uint8 [rows, bytes a row], mapped

    @property
    def dtype(self) -> np.dtype:
        """What `values` gives: the stored dtype of an unquantized tensor, else float32."""
        return FLOATS.get(self.type, np.dtype("<f4"))

    def values(self, data: np.ndarray | None = None) -> np.ndarray:
        """The tensor in `dtype` and `shape`, as llama.cpp's reference dequantizes it.

        `data` may be its rows in another order, or some of a matrix's.
        """
        data = self.data if data is None else data
        if self.type in FLOATS:
            return np.ascontiguousarray(data).view(self.dtype).reshape(-1, *self.shape[1:])
        quants = import_gguf().quants
        kind = import_gguf().GGMLQuantizationType[self.type]
        return quants.dequantize(np.ascontiguousarray(data), kind).reshape(-1, *self.shape[1:])


@dataclass(frozen=True)
class GgufFile:
    """The header of a GGUF file: keys with Python values (number arrays stay NumPy arrays), and tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def import_gguf() -> Any:
    """The gguf package. Raises `MissingExtra` where it is not installed."""
    try:
        import gguf
        import gguf.quants
    except ImportError:
        raise MissingExtra("reading GGUF files", "gguf") from None
    return gguf


def open_gguf(path: str | os.PathLike) -> GgufFile:
    """Read the header of a GGUF file and map its tensors; no tensor is read yet.

    Raises `BadCheckpoint` where the file is damaged or contradicts itself, `UnsupportedModel` for a tensor type that
    this version does not read, for a big-endian file and for one part of a split model.
    """
    path = Path(path)
    _refuse_part(path)
    try:
        data = np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise BadCheckpoint(f"{path}: can't be read: {error.strerror or error}") from None
    except ValueError:  # NumPy can't map it
        raise BadCheckpoint(f"{path}: not a GGUF file: it is empty") from None
    reader = _Reader(path, data)
    reader.check_magic()
    tensor_count = reader.count("tensors", _MAX_TENSORS)
    key_count = reader.count("keys", _MAX_KEYS)
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = reader.string("a key")
        if key in metadata:
            raise BadCheckpoint(f"{path}: key {key!r} stands twice in the header")
        metadata[key] = reader.value(reader.number("<I"), key)
    parts = metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise UnsupportedModel(f"{path}: {_split_sentence(parts)}")
    entries = [_read_entry(reader) for _ in range(tensor_count)]
    start = _data_start(path, metadata.get("general.alignment", 32), reader.offset)
    return GgufFile(path, metadata, _map_tensors(path, data, start, entries))


def _refuse_part(path: Path) -> None:
    match = re.search(r"-\d{5}-of-(\d{5})\.gguf$", path.name)
    if match and int(match[1]) > 1:
        raise UnsupportedModel(f"{path}: {_split_sentence(int(match[1]))}")


def _split_sentence(count: int) -> str:
    return f"one of {count} parts of a split model; join them first with llama.cpp's `llama-gguf-split --merge`"


class _Reader:
    """A cursor over the header that never reads past the end of the file."""

    def __init__(self, path: Path, data: np.ndarray):
        self.path, self.view, self.offset = path, memoryview(data), 0

    def check_magic(self) -> None:
        refuse_pointer(self.path, bytes(self.view[:POINTER_BYTES]))
        if bytes(self.view[:4]) != b"GGUF":
            raise BadCheckpoint(f"{self.path}: not a GGUF file: it begins with {bytes(self.view[:4])!r}")
        self.offset = 4
        version = self.number("<I")
        if version not in (2, 3):
            kind = "a big-endian file" if version in (2 << 24, 3 << 24) else f"version {version}"
            raise UnsupportedModel(f"{self.path}: expected a little-endian GGUF of version 2 or 3, found {kind}")

    def take(self, size: int, what: str) -> memoryview:
        if size > len(self.view) - self.offset:
            left = len(self.view) - self.offset
            raise BadCheckpoint(f"{self.path}: {what} takes {size:,} bytes, but only {left:,} are left: truncated?")
        self.offset += size
        return self.view[self.offset - size : self.offset]

    def number(self, form: str, what: str = "the header") -> int:
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def count(self, what: str, limit: int) -> int:
        count = self.number("<Q")
        if count > limit:
            raise BadCheckpoint(f"{self.path}: {count:,} {what}; the limit is {limit:,}")
        return count

    def string(self, what: str) -> str:
        raw = self.take(self.number("<Q", what), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise BadCheckpoint(f"{self.path}: {what} should be UTF-8, found {bytes(raw[:40])!r}") from None

    def value(self, kind: int, key: str, nesting: int = 0) -> Any:
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            return np.frombuffer(self.take(dtype.itemsize, f"key {key!r}"), dtype)[0].item()
        if kind == _STRING:
            return self.string(f"key {key!r}")
        if kind != _ARRAY or nesting == _MAX_NESTING:
            raise BadCheckpoint(f"{self.path}: key {key!r} has a value of unknown type {kind}")
        kind, count = self.number("<I"), self.count(f"items in {key!r}", _MAX_ITEMS)
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            return np.frombuffer(self.take(count * dtype.itemsize, f"key {key!r}"), dtype)
        if kind == _STRING:
            return self.strings(count, f"key {key!r}")
        return [self.value(kind, key, nesting + 1) for _ in range(count)]

    def strings(self, count: int, what: str) -> list[str]:
        # as `string` does, but a vocabulary has 300,000 of them
        view, offset, size, length_at = self.view, self.offset, len(self.view), struct.Struct("<Q").unpack_from
        found = []
        try:
            for _ in range(count):
                begin = offset + 8
                offset = begin + length_at(view, offset)[0]
                if offset > size:
                    raise BadCheckpoint(f"{self.path}: {what} ends past the end of the file: truncated?")
                found.append(str(view[begin:offset], "utf-8"))
        except struct.error:
            raise BadCheckpoint(f"{self.path}: {what} ends past the end of the file: truncated?") from None
        except UnicodeDecodeError:
            raise BadCheckpoint(f"{self.path}: {what} should hold UTF-8, which string {len(found)} is not") from None
        self.offset = offset
        return found


def _read_entry(reader: _Reader) -> tuple[str, str, tuple[int, ...], int]:
    """One entry of the tensor table: name, type, shape, offset."""
    name = reader.string("a tensor's name")
    rank = reader.number("<I")
    if not 1 <= rank <= _MAX_RANK:
        raise BadCheckpoint(f"{reader.path}: tensor {name!r} has {rank} dimensions; expected 1 to {_MAX_RANK}")
    shape = tuple(reader.number("<Q") for _ in range(rank))[::-1]
    kind, offset = reader.number("<I"), reader.number("<Q")
    if kind not in _TYPE_NAMES:
        raise UnsupportedModel(
            f"{reader.path}: tensor {name!r} is of type {_foreign_type(kind)}; those read are {', '.join(BLOCKS)}"
        )
    return name, _TYPE_NAMES[kind], shape, offset


def _foreign_type(number: int) -> str:
    try:
        return import_gguf().GGMLQuantizationType(number).name
    except ValueError:
        return f"number {number}"


def _data_start(path: Path, alignment: Any, header_end: int) -> int:
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise BadCheckpoint(f"{path}: general.alignment should be a power of two, found {str(alignment)[:40]!r}")
    return -(-header_end // alignment) * alignment


def _map_tensors(
    path: Path, data: np.ndarray, start: int, entries: list[tuple[str, str, tuple[int, ...], int]]
) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    reached, before = 0, ""
    for name, kind, shape, offset in sorted(entries, key=lambda entry: entry[3]):
        if name in tensors:
            raise BadCheckpoint(f"{path}: tensor {name!r} stands twice in the header")
        _, values, size = BLOCKS[kind]
        if shape[-1] % values or 0 in shape:
            raise BadCheckpoint(f"{path}: tensor {name!r} of type {kind} should have rows of whole blocks of {values}, "
                                f"found {list(shape)}")  # fmt: skip
        row_bytes = shape[-1] // values * size
        rows = math.prod(shape[:-1])
        if offset < reached:
            raise BadCheckpoint(f"{path}: tensor {name!r} overlaps tensor {before!r}")
        reached, before = offset + rows * row_bytes, name
        if start + reached > data.size:
            raise BadCheckpoint(f"{path}: tensor {name!r} ends at byte {start + reached:,}, but the file has only "
                                f"{data.size:,}: truncated?")  # fmt: skip
        tensors[name] = GgufTensor(name, kind, shape, data[start + offset : start + reached].reshape(rows, row_bytes))
    return {name: tensors[name] for name, *_ in entries}

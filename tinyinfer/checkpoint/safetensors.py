"""Reading and writing safetensors files: memory-mapped arrays in, one tensor at a time out.

Format (https://github.com/huggingface/safetensors#format):

    8 bytes       little-endian u64: length of the header
    header        JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {...}}
    the rest      the tensors' bytes, back to back; offsets count from here

A file is untrusted input: every number in the header is checked against the file's size before a byte of data is
touched, so that a bad file is refused in milliseconds whatever it claims.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import BadCheckpoint, UnsupportedModel
from ..files import POINTER_BYTES, refuse_pointer, replaced_when_done

MAX_HEADER_BYTES = 10_000_000  # some 80,000 tensors; reading more would take seconds before anything is checked

# NumPy has no bfloat16. A one-field record keeps the two bytes and the name together, so that an array still says what
# it holds after slicing, transposing and mapping; `to_float32` widens it.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
FLOAT8_E4M3 = np.dtype([("float8_e4m3", "u1")])
FLOAT8_E5M2 = np.dtype([("float8_e5m2", "u1")])
FLOAT8_E8M0 = np.dtype([("float8_e8m0", "u1")])

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": BFLOAT16,
    "F8_E4M3": FLOAT8_E4M3, "F8_E5M2": FLOAT8_E5M2, "F8_E8M0": FLOAT8_E8M0,
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"),
    "BOOL": np.dtype("bool"),
}  # fmt: skip
_CODES = {dtype: code for code, dtype in DTYPES.items()}
FLOAT_DTYPES = (np.dtype("<f4"), BFLOAT16, np.dtype("<f2"), np.dtype("<f8"))  # those that `to_float32` takes

_ROUND_AT_ONCE = 1 << 16  # values: what is made on the way stays small


def to_float32(array: np.ndarray) -> np.ndarray:
    """Any float array as float32, exactly (float64 is rounded); a float32 array comes back as it is, not copied.

    Raises `UnsupportedModel` for a dtype that is not a float of 16 to 64 bits.
    """
    if array.dtype == np.float32:
        return array
    if array.dtype == BFLOAT16:
        # bfloat16 is the upper half of a float32
        wide = np.empty(array.shape, np.uint32)
        return np.left_shift(array["bfloat16"], 16, out=wide, dtype=np.uint32).view(np.float32)
    if array.dtype in (np.float16, np.float64):
        return array.astype(np.float32)
    raise UnsupportedModel(f"expected a float16, bfloat16, float32 or float64 tensor, found {dtype_name(array.dtype)}")


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Floats rounded to the nearest bfloat16, ties to even; infinities stay, NaN stays NaN."""
    bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
    rounded = np.empty(bits.size, np.uint16)
    for begin in range(0, bits.size, _ROUND_AT_ONCE):
        rounded[begin : begin + _ROUND_AT_ONCE] = _upper_half(bits[begin : begin + _ROUND_AT_ONCE])
    return rounded.view(BFLOAT16).reshape(np.shape(array))


def _upper_half(bits: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of each float32, as bits: uint32 [n] -> uint32 [n]."""
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, (bits >> 16) | 0x40, rounded)  # rounding could carry a NaN into infinity


def dtype_name(dtype: np.dtype) -> str:
    """`float32`, `bfloat16`, ...: a dtype's name, for records the name of their one field."""
    return dtype.names[0] if dtype.names else dtype.name


def open_safetensors(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Map a file into memory: tensor name -> read-only array of the stored dtype and shape; nothing is read yet.

    Raises `BadCheckpoint` naming the file and the tensor where the header lies about the data.
    """
    return open_with_metadata(path)[0]


def open_with_metadata(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The same, and the `__metadata__` strings of the very file, should another one take its place meanwhile."""
    path = Path(path)
    with _readable(path), open(path, "rb") as file:
        header, data_start, data_size = _read_header(path, os.fstat(file.fileno()).st_size, file)
        spans = _checked_spans(path, header, data_size)
        data = np.memmap(file, np.uint8, "r", data_start, (data_size,)) if data_size else np.empty(0, np.uint8)
    return _views(header, spans, data), header.get("__metadata__", {})


def parse_safetensors(content: bytes, where: str = "the bytes given") -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """What a file of this content holds: its tensors, as read-only views of `content`, and the `__metadata__` strings.

    Raises `BadCheckpoint` as `open_safetensors`, calling the file `where`.
    """
    header, data_start, data_size = _read_header(where, len(content), io.BytesIO(content))
    spans = _checked_spans(where, header, data_size)
    data = np.frombuffer(content, np.uint8, offset=data_start) if data_size else np.empty(0, np.uint8)
    return _views(header, spans, data), header.get("__metadata__", {})


def read_metadata(path: str | os.PathLike) -> dict[str, str]:
    """The `__metadata__` strings of a file; empty where there are none."""
    path = Path(path)
    with _readable(path), open(path, "rb") as file:
        return _read_header(path, os.fstat(file.fileno()).st_size, file)[0].get("__metadata__", {})


def write_safetensors(
    path: str | os.PathLike,
    layout: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
    tensors: Iterable[tuple[str, np.ndarray]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a file from tensors that come one at a time, so that no more than one is in memory.

    `layout` gives each tensor's dtype and shape, in the order in which `tensors` will yield them. The file appears
    under its name only when it is complete. Raises `ValueError` where a tensor is not what the layout promised, or of a
    dtype that the format has no name for.
    """
    encoded = _encoded_header(layout, metadata)
    with replaced_when_done(path) as temporary, open(temporary, "wb") as file:
        _write(file, encoded, layout, tensors)


def safetensors_bytes(
    layout: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
    tensors: Iterable[tuple[str, np.ndarray]],
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The bytes that `write_safetensors` would write."""
    file = io.BytesIO()
    _write(file, _encoded_header(layout, metadata), layout, tensors)
    return file.getvalue()


def _encoded_header(
    layout: Mapping[str, tuple[np.dtype, tuple[int, ...]]], metadata: Mapping[str, str] | None
) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in layout.items():
        if dtype not in _CODES:
            raise ValueError(f"{name}: safetensors has no name for {dtype_name(dtype)}")
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 64 + 56)  # data starts on a cache line
    return len(encoded).to_bytes(8, "little") + encoded


def _write(
    file: BinaryIO,
    header: bytes,
    layout: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
    tensors: Iterable[tuple[str, np.ndarray]],
) -> None:
    file.write(header)
    expected = iter(layout.items())
    for name, array in tensors:
        if next(expected, None) != (name, (array.dtype, array.shape)):
            raise ValueError(f"{name}: {dtype_name(array.dtype)} {array.shape} is not what the layout promised")
        file.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    if missing := [name for name, _ in expected]:
        raise ValueError(f"tensors promised but not given: {', '.join(missing)}")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadCheckpoint(f"{path}: can't be read: {error.strerror}") from None


def _read_header(where: Path | str, size: int, file: BinaryIO) -> tuple[dict[str, Any], int, int]:
    """The header of a file of `size` bytes, where the data begins, and how many bytes of it there are."""
    if size < 8:
        raise BadCheckpoint(f"{where}: not a safetensors file: {size} bytes, shorter than the 8-byte header length")
    refuse_pointer(where, file.read(POINTER_BYTES))
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise BadCheckpoint(f"{where}: header of {length:,} bytes; the limit is {MAX_HEADER_BYTES:,}")
    if 8 + length > size:
        raise BadCheckpoint(f"{where}: header of {length:,} bytes expected, but the file has {size:,}: truncated?")
    raw = file.read(length)
    try:
        header = json.loads(raw.decode(), object_pairs_hook=lambda pairs: _no_repeats(where, pairs))
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{where}: the header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise BadCheckpoint(f"{where}: the header should be a JSON object, found {type(header).__name__}")
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadCheckpoint(f"{where}: __metadata__ should map names to strings")
    return header, 8 + length, size - 8 - length


def _checked_spans(where: Path | str, header: dict[str, Any], data_size: int) -> dict[str, tuple[int, int]]:
    """From where to where each tensor's bytes are."""
    entries = ((name, entry) for name, entry in header.items() if name != "__metadata__")
    spans = {name: _checked_span(where, name, entry, data_size) for name, entry in entries}
    _check_contiguous(where, spans, data_size)
    return spans


def _views(header: dict[str, Any], spans: dict[str, tuple[int, int]], data: np.ndarray) -> dict[str, np.ndarray]:
    return {
        name: np.ndarray(tuple(header[name]["shape"]), DTYPES[header[name]["dtype"]], data, begin)
        for name, (begin, _) in spans.items()
    }


def _no_repeats(path: Path | str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BadCheckpoint(f"{path}: tensor or key {name!r} stands twice in the header")
        found[name] = value
    return found


def _checked_span(path: Path | str, name: str, entry: Any, data_size: int) -> tuple[int, int]:
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise BadCheckpoint(f"{where}: expected dtype, shape and data_offsets, found {str(entry)[:80]}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise BadCheckpoint(f"{where}: unknown dtype {str(dtype)[:80]!r}; known are {', '.join(DTYPES)}")
    if not _are_sizes(shape):
        raise BadCheckpoint(f"{where}: shape should be a list of whole numbers from 0, found {str(shape)[:80]}")
    if len(shape) > 32:
        raise BadCheckpoint(f"{where}: {len(shape)} dimensions; the limit is 32")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise BadCheckpoint(f"{where}: data_offsets should be two whole numbers, found {str(offsets)[:80]}")
    itemsize = DTYPES[dtype].itemsize
    if math.prod(n or 1 for n in shape) * itemsize >= 2**63:  # NumPy refuses it even where another dimension is 0
        raise BadCheckpoint(f"{where}: no array can have the shape {shape}")
    begin, end = offsets
    if end < begin:
        raise BadCheckpoint(f"{where}: data ends at {end:,}, before it begins at {begin:,}")
    if end > data_size:
        raise BadCheckpoint(f"{where}: data ends at byte {end:,}, but the file holds only {data_size:,}: truncated?")
    expected = math.prod(shape) * itemsize
    if end - begin != expected:
        raise BadCheckpoint(f"{where}: {dtype} {shape} takes {expected:,} bytes, but its data has {end - begin:,}")
    return begin, end


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_contiguous(path: Path | str, spans: dict[str, tuple[int, int]], data_size: int) -> None:
    reached, before = 0, "the header"
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin != reached:
            fault = "overlaps" if begin < reached else "leaves a gap after"
            where = f"begins at {begin:,} and {fault} {before}, which ends at {reached:,}"
            raise BadCheckpoint(f"{path}: tensor {name!r} {where}")
        reached, before = end, f"tensor {name!r}"
    if reached != data_size:
        raise BadCheckpoint(f"{path}: {data_size - reached:,} bytes after the last tensor belong to none")

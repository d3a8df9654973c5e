"""Safetensors files: exact values, nothing believed that a header says, and writing that is whole or not at all.

Files are made by hand or by the safetensors library, and what tinyinfer writes is read by that library.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import textwrap
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny_models import random_model
from tinyinfer.checkpoint.safetensors import (
    BFLOAT16,
    DTYPES,
    FLOAT_DTYPES,
    MAX_HEADER_BYTES,
    open_safetensors,
    read_metadata,
    to_bfloat16,
    to_float32,
    write_safetensors,
)
from tinyinfer.checkpoint.source import open_checkpoint, write_folder
from tinyinfer.errors import BadCheckpoint, TinyinferError, UnsupportedModel
from tinyinfer.kernels.tape import use_compiled


def entry(dtype: Any = "F32", shape: Any = (1,), begin: Any = 0, end: Any = 4) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end]}


def write_by_hand(path: Path, header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> Path:
    """`length` is what the first eight bytes say of the header's, where they lie."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


# ---- values


EXACT = {
    "F64": (np.array([1.0, -2.5, 1e300, np.inf], "<f8"), 8),
    "F32": (np.array([1.0, -2.5, 3.38e38, 1e-45, np.inf], "<f4"), 4),
    "F16": (np.array([1.0, -2.5, 65504, 6e-8, -np.inf], "<f2"), 2),
    "I64": (np.array([-(2**63), 2**63 - 1], "<i8"), 8),
    "I32": (np.array([-(2**31), 2**31 - 1], "<i4"), 4),
    "I16": (np.array([-(2**15), 2**15 - 1], "<i2"), 2),
    "I8": (np.array([-128, 127, 0], "i1"), 1),
    "U64": (np.array([0, 2**64 - 1], "<u8"), 8),
    "U32": (np.array([0, 2**32 - 1], "<u4"), 4),
    "U16": (np.array([0, 2**16 - 1], "<u2"), 2),
    "U8": (np.array([0, 255, 7], "u1"), 1),
    "BOOL": (np.array([True, False, True]), 1),
}


@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("code", EXACT)
def test_every_type_is_read_exactly_wherever_it_lies(tmp_path: Path, code: str, padding: int):
    """Padding before the tensor, in the header or as a tensor of bytes, puts its data on odd addresses."""
    values, itemsize = EXACT[code]
    header = {
        "pad": entry("U8", (padding,), 0, padding),
        "x": entry(code, values.shape, padding, padding + itemsize * values.size),
    }
    raw = json.dumps(header).encode() + b" " * padding
    found = open_safetensors(write_by_hand(tmp_path / "a", raw, b"p" * padding + values.tobytes()))
    assert found["x"].dtype == values.dtype == DTYPES[code]
    assert found["x"].tobytes() == values.tobytes()
    assert found["pad"].tobytes() == b"p" * padding


@pytest.mark.parametrize("padding", [0, 1])
def test_bfloat16_values_are_exact(tmp_path: Path, padding: int):
    # sign, 8 bits of exponent, 7 of fraction
    expected = {
        0x3F80: 1.0, 0xC020: -2.5, 0x7F7E: 254 / 128 * 2.0**127, 0x0001: 2.0**-133, 0x807F: -127 * 2.0**-133,
        0x0080: 2.0**-126, 0x7F7F: 255 / 128 * 2.0**127, 0x7F80: math.inf, 0xFF80: -math.inf, 0x0000: 0.0,
    }  # fmt: skip
    data = b"p" * padding + np.array([*expected, 0x8000, 0x7FC0], "<u2").tobytes()
    count = len(expected) + 2
    header = {"pad": entry("U8", (padding,), 0, padding), "x": entry("BF16", (count,), padding, len(data))}
    found = open_safetensors(write_by_hand(tmp_path / "a", header, data))["x"]
    assert found.dtype == BFLOAT16
    wide = to_float32(found)
    assert wide.dtype == np.float32
    assert wide[:-2].tolist() == list(expected.values())
    assert abs(wide[2] - 3.38e38) < 2.0**120  # one unit in the last place there
    assert wide[-2] == 0
    assert np.signbit(wide[-2])
    assert np.isnan(wide[-1])


@pytest.mark.parametrize("code", ["F8_E4M3", "F8_E5M2", "F8_E8M0"])
def test_float8_keeps_its_bytes_and_its_name(tmp_path: Path, code: str):
    found = open_safetensors(write_by_hand(tmp_path / "a", {"x": entry(code, (2, 2), 0, 4)}, b"\x00\x38\x7e\xff"))["x"]
    assert found.shape == (2, 2)
    assert found.tobytes() == b"\x00\x38\x7e\xff"
    with pytest.raises(UnsupportedModel, match=code.lower().replace("f8", "float8")):
        to_float32(found)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.bool_, np.complex64])
def test_what_is_no_float_is_not_widened(dtype: type):
    with pytest.raises(UnsupportedModel, match=np.dtype(dtype).name):
        to_float32(np.zeros(3, dtype))


def test_widening_keeps_shapes_and_copies_no_float32():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert to_float32(array) is array
    for stored in (to_bfloat16(array), array.astype(np.float16), array.astype(np.float64)):
        assert np.array_equal(to_float32(stored), array)
        assert np.array_equal(to_float32(stored.T), array.T)
        assert np.array_equal(to_float32(stored[:, ::2]), array[:, ::2])
    for scalar in (to_bfloat16(array[1, 1]), array[1, 1].astype(np.float16)):
        assert to_float32(np.asarray(scalar)).shape == ()
        assert to_float32(np.asarray(scalar)) == 4
    assert to_float32(to_bfloat16(array[:0])).shape == (0, 3)


def test_every_bfloat16_survives_the_way_there_and_back():
    bits = np.arange(2**16, dtype=np.uint16)
    wide = to_float32(bits.view(BFLOAT16))
    assert np.array_equal(wide.view(np.uint32), bits.astype(np.uint32) << 16)
    back = to_bfloat16(wide)["bfloat16"]
    is_nan = np.isnan(wide)
    assert np.array_equal(back[~is_nan], bits[~is_nan])
    assert np.isnan(to_float32(back.view(BFLOAT16)[is_nan])).all()


def check_rounding(bits: np.ndarray) -> None:
    """Against rounding half to even in whole numbers of 64 bits, sign and magnitude apart."""
    sign, magnitude = bits.astype(np.int64) >> 31, bits.astype(np.int64) & 0x7FFFFFFF
    below, rest = np.divmod(magnitude, 1 << 16)
    expected = (sign << 15) + below + ((rest > 0x8000) | ((rest == 0x8000) & (below % 2 == 1)))
    is_nan = magnitude > 0x7F800000
    found = to_bfloat16(bits.view(np.float32))
    assert np.array_equal(found["bfloat16"][~is_nan], expected[~is_nan])
    assert np.isnan(to_float32(found[is_nan])).all()


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_rounding_to_bfloat16_is_to_nearest_and_even(bits: list[int]):
    check_rounding(np.array(bits, np.uint32))


@pytest.mark.parametrize("rest", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_rounding_from_just_beside_every_bfloat16(rest: int):
    check_rounding((np.arange(2**16, dtype=np.uint32) << 16) + np.uint32(rest))


def test_rounding_goes_on_beyond_what_is_rounded_at_once():
    values = np.linspace(-3, 3, (1 << 17) + 5, dtype=np.float32)
    found = to_float32(to_bfloat16(values))
    assert np.abs(found - values).max() <= 2.0**-7  # half a unit in the last place of numbers below 4
    assert np.array_equal(to_bfloat16(values[-5:]), to_bfloat16(values)[-5:])


# ---- the library reads what we write, and we read what it writes


def some_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "weight": rng.standard_normal((3, 5)).astype(np.float32),
        "half": rng.standard_normal((2, 1, 3)).astype(np.float16),
        "double": rng.standard_normal(4),
        "scalar": np.array(2.5, np.float32),
        "none": np.zeros((0, 4), np.float32),
        "odd": np.arange(3, dtype=np.uint8),
        "ids": np.arange(-2, 5, dtype=np.int64),
        "yes": np.array([True, False]),
        'naïve "name"\n': np.ones(1, np.int16),
    }


def test_reads_what_the_library_writes(tmp_path: Path):
    safetensors.numpy.save_file(some_tensors(), tmp_path / "a", {"format": "pt", "é": "ü"})
    found = open_safetensors(tmp_path / "a")
    assert set(found) == set(some_tensors())
    for name, array in some_tensors().items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array)
    assert read_metadata(tmp_path / "a") == {"format": "pt", "é": "ü"}


def test_the_library_reads_what_is_written(tmp_path: Path):
    tensors = some_tensors() | {"transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    layout = {name: (array.dtype, array.shape) for name, array in tensors.items()}
    write_safetensors(tmp_path / "a", layout, tensors.items(), {"by": "hand"})
    found = safetensors.numpy.load_file(tmp_path / "a")
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array)
    assert read_metadata(tmp_path / "a") == {"by": "hand"}


@pytest.mark.parametrize("code", DTYPES)
def test_every_type_is_written_as_the_library_names_it(tmp_path: Path, code: str):
    array = np.frombuffer(bytes(range(8)) if code != "BOOL" else bytes(8), DTYPES[code])
    write_safetensors(tmp_path / "a", {"x": (array.dtype, array.shape)}, [("x", array)])
    [(name, found)] = safetensors.deserialize((tmp_path / "a").read_bytes())
    assert name == "x"
    assert found["dtype"] == code
    assert bytes(found["data"]) == array.tobytes()


def test_data_begins_on_a_cache_line(tmp_path: Path):
    for count in range(1, 12):
        tensors = {f"{'n' * i}": np.zeros(i, np.uint8) for i in range(1, count + 1)}
        layout = {name: (array.dtype, array.shape) for name, array in tensors.items()}
        write_safetensors(tmp_path / "a", layout, tensors.items())
        assert (8 + int.from_bytes((tmp_path / "a").read_bytes()[:8], "little")) % 64 == 0


def test_arrays_are_views_of_the_file_and_read_only(tmp_path: Path):
    safetensors.numpy.save_file({"x": np.ones(4, np.float32)}, tmp_path / "a")
    found = open_safetensors(tmp_path / "a")["x"]
    assert not found.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 2


def test_files_with_nothing_in_them(tmp_path: Path):
    assert open_safetensors(write_by_hand(tmp_path / "a", {})) == {}
    path = write_by_hand(tmp_path / "b", {"__metadata__": {"format": "pt"}})
    assert open_safetensors(path) == {}
    assert read_metadata(path) == {"format": "pt"}
    write_safetensors(tmp_path / "c", {}, [])
    assert safetensors.numpy.load_file(tmp_path / "c") == {}


@pytest.mark.parametrize("place", ["first", "middle", "last", "alone"])
def test_tensors_of_no_size(tmp_path: Path, place: str):
    sizes = {"first": [0, 4, 8], "middle": [4, 0, 8], "last": [4, 8, 0], "alone": [0]}[place]
    header, end = {}, 0
    for i, size in enumerate(sizes):
        header[str(i)] = entry("F32", (size // 4, 1) if size else (3, 0, 2), end, end + size)
        end += size
    found = open_safetensors(write_by_hand(tmp_path / "a", header, bytes(end)))
    assert [array.size for array in found.values()] == [size // 4 for size in sizes]
    assert found[str(sizes.index(0))].shape == (3, 0, 2)


# ---- files that lie


def file_of(header: dict[str, Any] | bytes, data: bytes = bytes(4), length: int | None = None):
    return lambda path: write_by_hand(path, header, data, length)


TWO = {"a": entry(), "b": entry(begin=4, end=8)}
HUGE = 10**4000  # a whole number that JSON may hold
HOSTILE = {
    "empty file": (lambda path: path.write_bytes(b""), "0 bytes"),
    "seven bytes": (lambda path: path.write_bytes(bytes(7)), "7 bytes"),
    "no header": (lambda path: path.write_bytes(bytes(8)), "not valid JSON"),
    "length 2^63": (file_of({"a": entry()}, length=2**63), "limit"),
    "length 2^64-1": (file_of({"a": entry()}, length=2**64 - 1), "limit"),
    "length beyond the limit": (file_of({"a": entry()}, length=MAX_HEADER_BYTES + 1), "10,000,001 bytes; the limit"),
    "length beyond the file": (file_of({"a": entry()}, length=5000), "truncated"),
    "header cut": (file_of(b'{"a": {"dtype": "F32"'), "not valid JSON"),
    "header of rubbish": (file_of(b"\x93NUMPY\x01\x00"), "not valid JSON"),
    "header not UTF-8": (file_of(b'{"a\xff": 1}'), "not valid JSON"),
    "header UTF-16": (file_of(json.dumps({"a": entry()}).encode("utf-16")), "not valid JSON"),
    "header with a mark": (file_of(b"\xef\xbb\xbf" + json.dumps({"a": entry()}).encode()), "not valid JSON"),
    "a list": (file_of(b"[]", b""), "JSON object, found list"),
    "a number": (file_of(b"12", b""), "JSON object, found int"),
    "null": (file_of(b"null", b""), "JSON object, found NoneType"),
    "two values": (file_of(b"{} {}", b""), "not valid JSON"),
    "lists a hundred thousand deep": (file_of(b"[" * 100_000), "not valid JSON"),
    "objects a hundred thousand deep": (file_of(b'{"a":' * 100_000), "not valid JSON"),
    "a shape that deep": (file_of(b'{"a":{"dtype":"F32","shape":' + b"[" * 100_000), "not valid JSON"),
    "a number of many digits": (file_of(b'{"a":' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "a tensor twice": (file_of(b'{"a":1,"a":2}'), "'a' stands twice"),
    "a key twice": (file_of(b'{"a":{"dtype":"F32","dtype":"I32"}}'), "'dtype' stands twice"),
    "metadata twice": (file_of(b'{"__metadata__":{},"__metadata__":{}}', b""), "'__metadata__' stands twice"),
    "metadata a list": (file_of({"__metadata__": []}, b""), "__metadata__"),
    "metadata of numbers": (file_of({"__metadata__": {"a": 1}}, b""), "__metadata__"),
    "entry null": (file_of({"a": None}), "tensor 'a': expected dtype, shape and data_offsets"),
    "entry a list": (file_of({"a": [1]}), "tensor 'a': expected dtype, shape and data_offsets"),
    "entry without offsets": (file_of({"a": {"dtype": "F32", "shape": [1]}}), "tensor 'a': expected dtype"),
    "entry without dtype": (file_of({"a": {"shape": [1], "data_offsets": [0, 4]}}), "tensor 'a': expected dtype"),
    "dtype unknown": (file_of({"a": entry("Q4_K")}), "tensor 'a': unknown dtype 'Q4_K'"),
    "dtype in small letters": (file_of({"a": entry("f32")}), "tensor 'a': unknown dtype 'f32'"),
    "dtype a number": (file_of({"a": entry(7)}), "tensor 'a': unknown dtype"),
    "dtype a list": (file_of({"a": entry(["F32"])}), "tensor 'a': unknown dtype"),
    "dtype of a megabyte": (file_of({"a": entry("F" * 1_000_000)}), "tensor 'a': unknown dtype"),
    "shape null": (file_of({"a": entry(shape=None)}), "tensor 'a': shape"),
    "shape a number": (file_of({"a": entry(shape=1)}), "tensor 'a': shape"),
    "shape a text": (file_of({"a": entry(shape="1")}), "tensor 'a': shape"),
    "shape of floats": (file_of({"a": entry(shape=[1.0])}), "tensor 'a': shape"),
    "shape of booleans": (file_of({"a": entry(shape=[True])}), "tensor 'a': shape"),
    "shape negative": (file_of({"a": entry(shape=[-1])}), "tensor 'a': shape"),
    "shape twice negative": (file_of({"a": entry(shape=[-1, -1])}), "tensor 'a': shape"),
    "shape of lists": (file_of({"a": entry(shape=[[1]])}), "tensor 'a': shape"),
    "shape huge": (file_of({"a": entry(shape=[HUGE])}), "tensor 'a': shape"),
    "shape 2^63": (file_of({"a": entry(shape=[2**63])}), "tensor 'a': shape"),
    "shape that overflows to one": (file_of({"a": entry(shape=[2**32, 2**32, 1])}), "tensor 'a': no array"),
    "shape that overflows beside a zero": (file_of({"a": entry("F32", (2**62, 0), 0, 0)}, b""), "tensor 'a': no array"),
    "shape of 33 dimensions": (file_of({"a": entry(shape=[1] * 33)}), "tensor 'a': 33 dimensions"),
    "shape of many dimensions": (file_of({"a": entry(shape=[1] * 100_000)}), "tensor 'a': 100000 dimensions"),
    "offsets one": (file_of({"a": entry() | {"data_offsets": [0]}}), "tensor 'a': data_offsets"),
    "offsets three": (file_of({"a": entry() | {"data_offsets": [0, 4, 8]}}), "tensor 'a': data_offsets"),
    "offsets null": (file_of({"a": entry() | {"data_offsets": None}}), "tensor 'a': data_offsets"),
    "offsets an object": (file_of({"a": entry() | {"data_offsets": {"0": 0}}}), "tensor 'a': data_offsets"),
    "offsets booleans": (file_of({"a": entry("U8", (1,), False, True)}, b"1"), "tensor 'a': data_offsets"),
    "offsets floats": (file_of({"a": entry(begin=0.0, end=4.0)}), "tensor 'a': data_offsets"),
    "offsets NaN": (file_of({"a": entry(end=math.nan)}), "tensor 'a': data_offsets"),
    "offsets infinite": (file_of({"a": entry(end=math.inf)}), "tensor 'a': data_offsets"),
    "offsets 1e3": (file_of(b'{"a":{"dtype":"U8","shape":[1000],"data_offsets":[0,1e3]}}', bytes(1000)), "offsets"),
    "offsets texts": (file_of({"a": entry(begin="0", end="4")}), "tensor 'a': data_offsets"),
    "offsets negative": (file_of({"a": entry(begin=-4, end=0)}), "tensor 'a': data_offsets"),
    "offsets huge": (file_of({"a": entry(begin=HUGE, end=HUGE + 4)}), "tensor 'a': data_offsets"),
    "end before begin": (file_of({"a": entry(begin=4, end=0)}), "tensor 'a': data ends at 0, before it begins at 4"),
    "end beyond the file": (file_of({"a": entry(end=8, shape=[2])}), "tensor 'a': data ends at byte 8"),
    "data cut": (file_of({"a": entry()}, bytes(3)), "tensor 'a': data ends at byte 4, but the file holds only 3"),
    "shape smaller than its data": (file_of({"a": entry(shape=[])} | {}, bytes(8)), "belong to none"),
    "span too long": (file_of({"a": entry(end=8)}, bytes(8)), "tensor 'a': F32 [1] takes 4 bytes, but its data has 8"),
    "span too short": (file_of({"a": entry(shape=[2])}), "tensor 'a': F32 [2] takes 8 bytes, but its data has 4"),
    "data for no size": (file_of({"a": entry(shape=[0])}), "tensor 'a': F32 [0] takes 0 bytes"),
    "overlap": (file_of(TWO | {"b": entry(begin=2, end=6)}, bytes(6)), "begins at 2 and overlaps tensor 'a'"),
    "same place": (file_of(TWO | {"b": entry()}), "tensor 'b' begins at 0 and overlaps tensor 'a'"),
    "inside another": (file_of({"a": entry("U8", (8,), 0, 8), "b": entry("U8", (2,), 3, 5)}, bytes(8)), "overlaps"),
    "gap": (file_of(TWO | {"b": entry(begin=5, end=9)}, bytes(9)), "tensor 'b' begins at 5 and leaves a gap"),
    "gap at the start": (file_of({"a": entry(begin=1, end=5)}, bytes(5)), "tensor 'a' begins at 1 and leaves a gap"),
    "bytes left over": (file_of({"a": entry()}, bytes(5)), "1 bytes after the last tensor belong to none"),
    "bytes and no tensor": (file_of({}, bytes(5)), "5 bytes after the last tensor belong to none"),
    "a folder": (lambda path: path.mkdir(), "can't be read: Is a directory"),
    "nothing there": (lambda path: None, "can't be read: No such file"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_at_once_and_by_name(tmp_path: Path, case: str):
    """In milliseconds (0.2 s of this process allows for a slow one), with no memory to speak of beside the header."""
    make, expected = HOSTILE[case]
    path = tmp_path / "model.safetensors"
    make(path)
    size = path.stat().st_size if path.is_file() else 0
    start = time.process_time()
    with pytest.raises(BadCheckpoint, match=re.escape(expected)) as error:
        open_safetensors(path)
    seconds = time.process_time() - start
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 1000 + len(str(path))
    assert seconds < 0.2
    tracemalloc.start()
    with pytest.raises(BadCheckpoint):
        open_safetensors(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000 + 20 * size


def test_a_header_above_the_limit_is_refused_before_it_is_read(tmp_path: Path):
    """The file is long enough for what its header claims, so only the limit can refuse it. Sparse: no disk is used."""
    path = tmp_path / "model.safetensors"
    path.write_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
    os.truncate(path, MAX_HEADER_BYTES + 1000)
    tracemalloc.start()
    with pytest.raises(BadCheckpoint, match="the limit is 10,000,000"):
        open_safetensors(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_file_cut_anywhere_is_refused(tmp_path: Path):
    safetensors.numpy.save_file(some_tensors(), tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    for length in range(0, len(whole), 3):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(BadCheckpoint):
            open_safetensors(tmp_path / "cut")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
SIZES = st.lists(st.integers(0, 9) | st.sampled_from([2**31, 2**62, 2**63, -1]), max_size=4)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPES, "F31"]) | JSON,
        "shape": SIZES | JSON,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | JSON,
    }
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), ENTRIES | JSON, max_size=3) | JSON,
    st.binary(max_size=40),
)
def test_whatever_a_header_says_is_read_within_the_file_or_refused(tmp_path_factory, header: Any, data: bytes):
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    write_by_hand(path, json.dumps(header).encode(), data)
    try:
        found = open_safetensors(path)
    except TinyinferError:
        return
    assert sum(array.nbytes for array in found.values()) == len(data)
    assert b"".join(a.tobytes() for a in sorted(found.values(), key=lambda a: a.ctypes.data)) == data


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_gives_the_tensors_or_a_refusal(tmp_path_factory, place: int, value: int):
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    whole = bytearray(safetensors.numpy.save({"a": np.ones((2, 2), np.float32), "b": np.ones(3, np.float16)}))
    whole[place % len(whole)] = value
    path.write_bytes(whole)
    try:
        found = open_safetensors(path)
    except TinyinferError:
        return
    assert sum(array.nbytes for array in found.values()) == 22


# ---- writing


def half_way(fault: Exception):
    yield "a", np.ones(2, np.float32)
    raise fault


@pytest.mark.parametrize("fault", [RuntimeError("broken"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failure_half_way_leaves_what_was_there(tmp_path: Path, fault: BaseException):
    path = tmp_path / "model.safetensors"
    layout = {name: (np.dtype("<f4"), (2,)) for name in "ab"}
    with pytest.raises(type(fault)):
        write_safetensors(path, layout, half_way(fault))
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"old")
    with pytest.raises(type(fault)):
        write_safetensors(path, layout, half_way(fault))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


F32 = np.dtype("<f4")
BROKEN_PROMISES = {
    "another shape": [("a", np.ones(3, np.float32)), ("b", np.ones(2, np.float32))],
    "a shape of the same size": [("a", np.ones((2, 1), np.float32)), ("b", np.ones(2, np.float32))],
    "another dtype": [("a", np.ones(2, np.float64)), ("b", np.ones(2, np.float32))],
    "another byte order": [("a", np.ones(2, ">f4")), ("b", np.ones(2, np.float32))],
    "another order": [("b", np.ones(2, np.float32)), ("a", np.ones(2, np.float32))],
    "one too few": [("a", np.ones(2, np.float32))],
    "one too many": [(name, np.ones(2, np.float32)) for name in "abc"],
    "one twice": [(name, np.ones(2, np.float32)) for name in "aab"],
    "none": [],
}


@pytest.mark.parametrize("case", BROKEN_PROMISES)
def test_tensors_that_the_layout_did_not_promise(tmp_path: Path, case: str):
    with pytest.raises(ValueError, match="promised"):
        write_safetensors(tmp_path / "a", {"a": (F32, (2,)), "b": (F32, (2,))}, BROKEN_PROMISES[case])
    assert list(tmp_path.iterdir()) == []


def test_a_type_without_a_name_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="complex64"):
        write_safetensors(tmp_path / "a", {"a": (np.dtype("c8"), (1,))}, [])
    assert list(tmp_path.iterdir()) == []


# ---- memory


def test_converting_holds_about_one_tensor(tmp_path: Path):
    """NumPy reports its arrays to tracemalloc; mapped files are not among them. Each source tensor is 4 MB of float32.

    A copy of 16 bits is half of that, and the last is there while the next is made. All together are 30 MB of float32.
    """
    sizes = {"hidden_size": 1024, "vocab_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 1}
    random_model(tmp_path / "in", num_attention_heads=8, num_key_value_heads=2, head_dim=128, **sizes)
    for dtype, copies in (("bfloat16", 2), ("float16", 2), ("float32", 0), (None, 0)):
        checkpoint = open_checkpoint(tmp_path / "in")
        tracemalloc.start()
        write_folder(checkpoint, tmp_path / f"out-{dtype}", dtype)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < copies * 2 * 2**20 + 2**20


LOADING = """
    import sys
    from tinyinfer.checkpoint.source import open_checkpoint
    from tinyinfer.config import read_config
    from tinyinfer.model.tensors import collect_tensors
    from tinyinfer.model.forward import Chunk, Model
    from tinyinfer.cache import KVCache
    import numpy as np

    def status(key):
        return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

    def load(folder):
        checkpoint = open_checkpoint(folder)
        config = read_config(checkpoint.config)
        return config, Model(config, collect_tensors(config, checkpoint.tensors))

    config, small = load(sys.argv[2])  # Numba and the compiled code are then there
    small.forward([Chunk(KVCache(config).sequence(), np.array([1, 2]))])
    open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
    before, before_anonymous = status("VmRSS"), status("RssAnon")
    config, model = load(sys.argv[1])
    loaded = status("VmHWM")
    sequence = KVCache(config).sequence()
    model.forward([Chunk(sequence, np.array([1, 2]))])
    model.forward([Chunk(sequence, np.array([3]))])
    print(loaded - before, status("VmHWM") - before, status("RssAnon") - before_anonymous)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_loading_400_mb_as_is_takes_no_more_than_the_file(tmp_path: Path, dtype: str):
    """A sparse file: no disk is used. Loading reads next to nothing, and a step maps in what it uses, once."""
    if dtype == "BF16" and not use_compiled():
        pytest.skip("NumPy has no bfloat16: TINYINFER_KERNELS=numpy widens a matrix to multiply with it")
    shapes = {
        name: tensor.shape for name, tensor in random_model(vocab_size=9, num_hidden_layers=1)[1].items()
    }  # the names, for a model whose weights are nearly all embedding and head
    hidden = 40
    rows = 400_000_000 // (2 * hidden * (4 if dtype == "F32" else 2))
    shapes |= {"model.embed_tokens.weight": (rows, hidden), "lm_head.weight": (rows, hidden)}
    folder = tmp_path / "model"
    folder.mkdir()
    config, _ = random_model(vocab_size=9, num_hidden_layers=1)
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": rows}))
    header, end = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape) * (4 if dtype == "F32" else 2)
        header[name] = entry(dtype, shape, end, end + size)
        end += size
    write_by_hand(folder / "model.safetensors", header)
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size + end)
    random_model(tmp_path / "small", dtype="float32" if dtype == "F32" else "bfloat16")
    command = [sys.executable, "-c", textwrap.dedent(LOADING), folder, tmp_path / "small"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded, peak, anonymous = map(int, result.stdout.split())
    logits = 2 * rows * 4  # those of two steps, float32
    assert loaded < 40_000_000  # the buffers of the forward pass
    assert peak < 400_000_000 + logits + 60_000_000  # mapped pages and no copy, which would be 200 MB or more
    assert anonymous < logits + 100_000_000


def test_all_floats_can_be_widened():
    for dtype in FLOAT_DTYPES:
        assert to_float32(np.zeros(2, dtype)).dtype == np.float32

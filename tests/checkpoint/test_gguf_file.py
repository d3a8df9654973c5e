"""The GGUF container: every type is read exactly, and what is wrong with a file is said at once, in one sentence."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.ggml_blocks import BLOCKS
from tests.checkpoint.gguf_files import TYPES, finish, vocabulary_keys, write_minimal
from tinyinfer.checkpoint.gguf import read_gguf
from tinyinfer.checkpoint.gguf_file import open_gguf
from tinyinfer.checkpoint.safetensors import BFLOAT16
from tinyinfer.errors import BadCheckpoint, TinyinferError, UnsupportedModel

# ---- tensor types


def random_blocks(form: str, rows: int, blocks: int) -> np.ndarray:
    """uint8 [rows, blocks * bytes a block] of random codes with scales between -2 and 2."""
    size, _, _, halves = BLOCKS[form]
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, (rows, blocks, size), np.uint8)
    for at in halves:
        data[..., at : at + 2] = rng.uniform(-2, 2, (rows, blocks, 1)).astype("<f2").view(np.uint8)
    return data.reshape(rows, -1)


@pytest.mark.parametrize("form", BLOCKS)
def test_quantized_types_are_exact(tmp_path: Path, form: str):
    size, values, read_block, _ = BLOCKS[form]
    data = random_blocks(form, rows=3, blocks=2)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", data, raw_dtype=TYPES[form])
    finish(writer)
    found = open_gguf(tmp_path / "m.gguf").tensors["t"].values()
    blocks = [bytes(block) for block in data.reshape(-1, size)]
    expected = np.array([read_block(block) for block in blocks], np.float32).reshape(3, 2 * values)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected)


def test_bfloat16_keeps_every_bit(tmp_path: Path):
    bits = np.array([0x3F80, 0xC020, 0x7F7F, 0x0001, 0x7F80, 0xFF80, 0x7FC1, 0x8000], "<u2").reshape(2, 4)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", bits.view(np.uint8), raw_dtype=TYPES.BF16)
    finish(writer)
    found = open_gguf(tmp_path / "m.gguf").tensors["t"].values()
    assert found.dtype == BFLOAT16
    assert np.array_equal(found["bfloat16"], bits)


@pytest.mark.parametrize("form", ["Q2_K", "IQ4_NL", "TQ1_0", "Q8_K"])
def test_other_types_are_refused_by_name(tmp_path: Path, form: str):
    _, size = gguf.GGML_QUANT_SIZES[TYPES[form]]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((2, size), np.uint8), raw_dtype=TYPES[form])
    finish(writer)
    with pytest.raises(UnsupportedModel, match=rf"blk\.0\.ffn_up\.weight.*{form}"):
        read_gguf(tmp_path / "m.gguf")


# ---- damage


HEAD = b"GGUF" + struct.pack("<I", 3)


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


def tensor(name: bytes, sizes: list[int], kind: int, offset: int) -> bytes:
    head = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(sizes))
    return head + struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", kind, offset)


def counts(tensors: int, keys: int) -> bytes:
    return HEAD + struct.pack("<QQ", tensors, keys)


HUGE = struct.pack("<Q", 2**62)
BAD_FILES = {
    "empty": (b"", "not a GGUF file: it is empty"),
    "short": (b"GG", "not a GGUF"),
    "another format": (b"PK\x03\x04" + bytes(64), "not a GGUF"),
    "only the magic": (b"GGUF", "truncated"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "2^62 tensors": (counts(2**62, 0), "limit"),
    "2^62 keys": (counts(0, 2**62), "limit"),
    "key of 2^62 bytes": (counts(0, 1) + HUGE, "a key takes"),
    "string of 2^62 bytes": (counts(0, 1) + key(b"a", 8, HUGE + b"x"), "truncated"),
    "array of 2^62 numbers": (counts(0, 1) + key(b"a", 9, struct.pack("<I", 4) + HUGE), "limit"),
    "array of ten million strings": (counts(0, 1) + key(b"a", 9, struct.pack("<IQ", 8, 10_000_000)), "past the end"),
    "last string cut short": (counts(0, 1) + key(b"a", 9, struct.pack("<IQQ", 8, 1, 100) + b"x"), "past the end"),
    "array of 1000 numbers with 4 there": (
        counts(0, 1) + key(b"a", 9, struct.pack("<IQ", 4, 1000) + bytes(4)),
        "truncated",
    ),
    "arrays of arrays of arrays": (counts(0, 1) + key(b"a", 9, struct.pack("<IQ", 9, 1) * 100), "unknown type 9"),
    "unknown value type": (counts(0, 1) + key(b"a", 99, bytes(64)), "unknown type 99"),
    "key that is not UTF-8": (counts(0, 1) + key(b"\xff\xfe", 4, bytes(4)), "UTF-8"),
    "strings that are not UTF-8": (counts(0, 1) + key(b"a", 9, struct.pack("<IQQ", 8, 1, 2) + b"\xff\xfe"), "string 0"),
    "key twice": (counts(0, 2) + key(b"a", 4, bytes(4)) * 2, "twice"),
    "alignment 0": (counts(0, 1) + key(b"general.alignment", 4, bytes(4)), "alignment"),
    "alignment 33": (counts(0, 1) + key(b"general.alignment", 4, struct.pack("<I", 33)), "alignment"),
    "rank 0": (counts(1, 0) + tensor(b"t", [], 0, 0) + bytes(64), "0 dimensions"),
    "rank 2^31": (counts(1, 0) + struct.pack("<Q", 1) + b"t" + struct.pack("<I", 2**31), "dimensions"),
    "type 99": (counts(1, 0) + tensor(b"t", [4], 99, 0) + bytes(64), "number 99"),
    "half a block": (counts(1, 0) + tensor(b"t", [33], 2, 0) + bytes(64), "whole blocks"),
    "no elements": (counts(1, 0) + tensor(b"t", [0], 0, 0) + bytes(64), "whole blocks"),
    "2^62 elements": (counts(1, 0) + tensor(b"t", [2**31, 2**31], 0, 0) + bytes(64), "truncated"),
    "sizes whose product wraps to 0": (counts(1, 0) + tensor(b"t", [2**32, 2**32], 0, 0) + bytes(64), "truncated"),
    "offset past the end": (counts(1, 0) + tensor(b"t", [4], 0, 2**60) + bytes(64), "truncated"),
    "data cut short": (counts(1, 0) + tensor(b"t", [64], 0, 0) + bytes(64), "truncated"),
    "tensors that overlap": (counts(2, 0) + tensor(b"t", [4], 0, 0) + tensor(b"u", [4], 0, 8) + bytes(96), "overlaps"),
    "tensor twice": (counts(2, 0) + tensor(b"t", [4], 0, 0) + tensor(b"t", [4], 0, 32) + bytes(96), "twice"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_at_once(tmp_path: Path, name: str):
    content, words = BAD_FILES[name]
    (tmp_path / "bad.gguf").write_bytes(content)
    begun = time.perf_counter()
    with pytest.raises((BadCheckpoint, UnsupportedModel), match=words) as caught:
        open_gguf(tmp_path / "bad.gguf")
    assert time.perf_counter() - begun < 1  # they take under a millisecond; a loop over 2^62 would not
    assert "bad.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    tensors = {"rope_freqs.weight": np.ones(8, np.float32), "blk.0.attn_q.weight": np.zeros((32, 32), np.float16)}
    write_minimal(path, tensors=tensors, **vocabulary_keys(__rope__scaling__type="yarn", __attention__sliding_window=8))
    return path.read_bytes()


def open_all(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    checkpoint = read_gguf(path)
    for name in checkpoint.tensors:
        checkpoint.tensors[name]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_never_escapes_as_another_error(tmp_path: Path, whole_file: bytes, data: st.DataObject):
    content = bytearray(whole_file)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        open_all(tmp_path / "m.gguf", bytes(content))
    except TinyinferError as error:
        assert "m.gguf" in str(error)  # noqa: PT017 - damage that changes no fact is no error


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 0.999))
def test_truncation_is_always_noticed(tmp_path: Path, whole_file: bytes, share: float):
    with pytest.raises((BadCheckpoint, UnsupportedModel), match=r"m\.gguf"):
        open_all(tmp_path / "m.gguf", whole_file[: int(len(whole_file) * share)])

"""The reader of tokenizer.model: what a sound file says, and that a damaged one raises only TinyinferErrors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyinfer.errors import BadCheckpoint, TinyinferError, UnsupportedModel
from tinyinfer.text.sentencepiece import BPE, UNIGRAM, read_sentencepiece_model

GOLDEN = Path(__file__).parent.parent / "golden" / "tokenizers" / "sentencepiece"


def test_llama_like():
    model = read_sentencepiece_model(GOLDEN / "bpe_bytes.model")
    assert (model.model_type, model.byte_fallback, model.add_dummy_prefix) == (BPE, True, True)
    assert model.remove_extra_whitespaces is False
    assert model.precompiled_charsmap == b""
    assert (model.unknown, model.bos, model.eos, model.pad) == (0, 1, 2, -1)
    assert len(model.pieces) == len(model.scores) == len(model.types) == 520
    assert model.pieces[:4] == ["<unk>", "<s>", "</s>", "<0x00>"]
    assert model.types[:4] == [2, 3, 3, 6]
    assert model.scores[259:262] == [0.0, -1.0, -2.0]


def test_gemma_like_and_t5_like():
    gemma = read_sentencepiece_model(GOLDEN / "bpe_no_prefix.model")
    assert gemma.add_dummy_prefix is False
    assert gemma.types[gemma.pieces.index("<start_of_turn>")] == 3
    assert gemma.types[gemma.pieces.index("<b>")] == 4
    t5 = read_sentencepiece_model(GOLDEN / "unigram.model")
    assert (t5.model_type, t5.remove_extra_whitespaces, t5.byte_fallback) == (UNIGRAM, True, False)
    assert (t5.pad, t5.eos, t5.unknown, t5.bos) == (0, 1, 2, -1)
    assert len(t5.precompiled_charsmap) > 4


PIECE = b"\x0a\x03\x0a\x01a"  # field 1, a message of 3 bytes: field 1, "a"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no pieces"),
        (b"\x0a", "ends inside a number"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "bytes expected"),
        (b"\x0a" + b"\xff" * 20, "more than ten bytes"),
        (b"\x0b" + bytes(8), "wire type 3"),
        (b"\x02\x00", "field number 0"),
        (b"\x08\x01", "should be a message"),
        (b"\x0a\x00", "a text, a score"),
        (b"\x0a\x03\x0a\x01\xff", "UTF-8"),
        (b"\x0a\x05\x0a\x01a\x18\x63", "type 99"),
        (b"\x0a\x08\x0a\x01a\x15\x00\x00\xc0\x7f", "score nan"),
        (PIECE + b"\x12\x03\x1a\x01x", "should be a number"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, words: str):
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(BadCheckpoint, match=words):
        read_sentencepiece_model(tmp_path / "tokenizer.model")


def test_options_that_are_not_followed(tmp_path: Path):
    (tmp_path / "tokenizer.model").write_bytes(PIECE + b"\x12\x03\xc0\x01\x01")  # treat_whitespace_as_suffix
    with pytest.raises(UnsupportedModel, match="suffix"):
        read_sentencepiece_model(tmp_path / "tokenizer.model")


def test_tiktoken_file(tmp_path: Path):
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    with pytest.raises(UnsupportedModel, match="tiktoken"):
        read_sentencepiece_model(tmp_path / "tokenizer.model")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_never_escapes_as_another_error(tmp_path: Path, data: st.DataObject):
    content = bytearray((GOLDEN / "unigram.model").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(1, len(content))) :]
    (tmp_path / "tokenizer.model").write_bytes(content)
    try:
        model = read_sentencepiece_model(tmp_path / "tokenizer.model")
    except TinyinferError as error:
        assert "tokenizer.model" in str(error)  # noqa: PT017 - damage that changes no fact is no error
    else:
        assert len(model.pieces) == len(model.scores) == len(model.types) > 0

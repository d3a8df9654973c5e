"""Reading SentencePiece's tokenizer.model: a protocol buffer, of which a tokenizer needs a dozen fields.

Protocol buffers (https://protobuf.dev/programming-guides/encoding/): a message is a row of fields, each a varint
`number << 3 | wire type` and a value: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes. Field numbers are
those of sentencepiece_model.proto (https://github.com/google/sentencepiece). The file is untrusted input.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadCheckpoint, UnsupportedModel
from ..files import refuse_pointer

UNIGRAM, BPE = 1, 2
_MAX_BYTES = 256 << 20
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


@dataclass(frozen=True)
class SentencePieceModel:
    """What a tokenizer.model says; types are numbered as in `vocabulary.py`; an id of -1 means that there is none."""

    pieces: list[str]
    scores: list[float]
    types: list[int]
    model_type: int
    unknown: int
    bos: int
    eos: int
    pad: int
    byte_fallback: bool
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    precompiled_charsmap: bytes


def read_sentencepiece_model(path: str | os.PathLike) -> SentencePieceModel:
    """Read a tokenizer.model.

    Raises `BadCheckpoint` where it is no SentencePiece model or a damaged one, `UnsupportedModel` for a tiktoken
    vocabulary of that name, and for options that change the text in ways that this version does not follow.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadCheckpoint(f"{path}: {path.stat().st_size:,} bytes; the limit is {_MAX_BYTES:,}")
        data = path.read_bytes()
    except OSError as error:
        raise BadCheckpoint(f"{path}: can't be read: {error.strerror}") from None
    refuse_pointer(path, data)
    if re.match(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n", data):
        raise UnsupportedModel(
            f"{path}: a tiktoken vocabulary, which lacks the pattern that cuts words; tokenizer.json is needed"
        )
    try:
        return _model(path, data)
    except _Damaged as error:
        raise BadCheckpoint(f"{path}: not a SentencePiece model, or a damaged one: {error}") from None


class _Damaged(Exception):
    """The bytes are not a message of the expected form."""


def _model(path: Path, data: bytes) -> SentencePieceModel:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number in (1, 2, 3) and not isinstance(value, bytes):
            raise _Damaged(f"field {number} should be a message")
        if number == 1:
            pieces.append(_piece(value))
        elif number in (2, 3):
            (trainer if number == 2 else normalizer).update(_fields(value))
    if not pieces:
        raise _Damaged("there are no pieces in it")
    if _whole(trainer, 24, 0) or not _whole(normalizer, 5, 1):
        raise UnsupportedModel(f"{path}: white space as a suffix, or not escaped, is not supported")
    charsmap = normalizer.get(2, b"")
    unknown, bos, eos, pad = (
        _id(trainer, field, default, len(pieces)) for field, default in ((40, 0), (41, 1), (42, 2), (43, -1))
    )
    names, scores, types = (list(column) for column in zip(*pieces, strict=True))
    return SentencePieceModel(
        names, scores, types,
        model_type=_whole(trainer, 3, UNIGRAM), unknown=unknown, bos=bos, eos=eos, pad=pad,
        byte_fallback=bool(_whole(trainer, 35, 0)),
        add_dummy_prefix=bool(_whole(normalizer, 3, 1)), remove_extra_whitespaces=bool(_whole(normalizer, 4, 1)),
        precompiled_charsmap=charsmap if isinstance(charsmap, bytes) else b"",
    )  # fmt: skip


def _piece(data: bytes) -> tuple[str, float, int]:
    fields = dict(_fields(data))
    raw, score, kind = fields.get(1), fields.get(2, b"\0\0\0\0"), fields.get(3, 1)
    if not isinstance(raw, bytes) or not isinstance(score, bytes) or len(score) != 4 or not isinstance(kind, int):
        raise _Damaged("a piece should have a text, a score and a type")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise _Damaged(f"a piece should be UTF-8, found {raw[:40]!r}") from None
    number = struct.unpack("<f", score)[0]
    if not math.isfinite(number) or not 1 <= kind <= 6:
        raise _Damaged(f"piece {text[:40]!r} has score {number} and type {kind}")
    return text, number, kind


def _whole(fields: dict[int, int | bytes], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise _Damaged(f"field {number} should be a number")
    return value


def _id(fields: dict[int, int | bytes], number: int, default: int, count: int) -> int:
    """An id from the trainer's options, which models do not always keep up to date: -1 where it is out of range."""
    value = _whole(fields, number, default)
    return value if 0 <= value < count else -1


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers for varints, bytes for all else."""
    offset = 0
    while offset < len(data):
        tag, offset = _varint(data, offset)
        wire = tag & 7
        if tag >> 3 == 0:
            raise _Damaged(f"field number 0 before byte {offset}")
        if wire == _VARINT:
            value, offset = _varint(data, offset)
            yield tag >> 3, value
            continue
        if wire == _BYTES:
            size, offset = _varint(data, offset)
        elif wire in (_EIGHT, _FOUR):
            size = 8 if wire == _EIGHT else 4
        else:
            raise _Damaged(f"wire type {wire} before byte {offset}")
        if size > len(data) - offset:
            raise _Damaged(f"{size:,} bytes expected at byte {offset}, but only {len(data) - offset:,} are left")
        yield tag >> 3, data[offset : offset + size]
        offset += size


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if offset == len(data):
            raise _Damaged("it ends inside a number")
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise _Damaged(f"a number of more than ten bytes before byte {offset}")

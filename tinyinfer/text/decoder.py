"""Decoding piece by piece: what a tokenizer's decoder gives for all pieces at once, each part as soon as it is certain.

A decoder is a chain of steps. Most look at one piece at a time and need no memory. Three do:

    ByteLevel      pieces are bytes; a character may be cut between two of them, so its first bytes wait
    ByteFallback   a run of byte pieces such as <0xF0> is text only if the whole run is UTF-8, else each byte is one
                   U+FFFD: so the run waits for the first piece that is no byte
    Strip          after pieces were fused, it takes spaces from the front of the text only

A chain with a step that cannot be followed in this way waits for the end: late, but never different from the whole.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tokenizers.decoders import Decoder

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PER_PIECE = ("Metaspace", "WordPiece", "Replace", "Strip")


def byte_characters() -> list[str]:
    """The character that stands for each byte, 0 to 255, in a byte-level vocabulary.

    Printable ones of Latin-1 stand for themselves, the others for the code points from 256 on (GPT-2's table).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def decoder_steps(decoder: Decoder | None) -> list[dict[str, Any]]:
    """The steps of a decoder as tokenizer.json describes them, each with its "type"; none for None."""
    if decoder is None:
        return []
    spec = json.loads(decoder.__getstate__())
    return spec["decoders"] if spec["type"] == "Sequence" else [spec]


class Step(Protocol):
    """One step of a decoder, fed one piece at a time."""

    def push(self, piece: str) -> list[str]:
        """What is certain now that `piece` has come."""

    def finish(self) -> list[str]:
        """What was still waiting, when no more pieces come."""


class IncrementalDecoder:
    """A decoder fed one piece at a time: all results joined equal `decoder.decode(all pieces)`."""

    def __init__(self, decoder: Decoder | None):
        """`decoder` is a tokenizer's; None, which joins pieces with spaces, is one too."""
        self.steps = _steps(decoder)

    def push(self, piece: str) -> str:
        """The text that is certain now. Cost does not grow with what came before."""
        return "".join(_through(self.steps, [piece]))

    def finish(self) -> str:
        """The text that was still waiting; nothing may be pushed after it."""
        return "".join("".join(_through(self.steps[i + 1 :], step.finish())) for i, step in enumerate(self.steps))


def _through(steps: list[Step], pieces: Iterable[str]) -> Iterable[str]:
    for step in steps:
        pieces = [result for piece in pieces for result in step.push(piece)]
    return pieces


def _steps(decoder: Decoder | None) -> list[Step]:
    if decoder is None:
        return [_Spaces()]
    specs = decoder_steps(decoder)
    steps: list[Step] = []
    fused = False  # after this every later step sees one whole text, not pieces
    for i, spec in enumerate(specs):
        step = _step(spec, fused)
        if step is None:
            return [*steps, _Whole(specs[i:], fused)]
        steps.append(step)
        fused = fused or spec["type"] in ("Fuse", "ByteLevel")
    return steps


def _step(spec: dict[str, Any], fused: bool) -> Step | None:
    """The step that a description asks for, None where it can only be done on the whole."""
    kind = spec["type"]
    if kind == "Fuse":
        return _Same()
    if not fused:
        if kind in PER_PIECE:
            return _PerPiece(_library_decoder(spec))
        return {"ByteLevel": _Bytes, "ByteFallback": _ByteRuns}.get(kind, lambda: None)()
    if kind == "Strip" and spec["stop"] == 0:
        return _StripFront(spec["content"], spec["start"])
    if kind == "Replace" and len(spec["pattern"].get("String", "")) == 1:
        return _PerPiece(_library_decoder(spec))
    return None


def _library_decoder(spec: dict[str, Any]) -> Decoder:
    from tokenizers import decoders

    decoder = decoders.Fuse()
    decoder.__setstate__(json.dumps(spec).encode())
    return decoder


class _Same:
    """Fuse: joining is what happens to the results anyway."""

    def push(self, piece: str) -> list[str]:
        return [piece]

    def finish(self) -> list[str]:
        return []


class _Spaces(_Same):
    """No decoder at all: a space between pieces."""

    first = True

    def push(self, piece: str) -> list[str]:
        piece = piece if self.first else " " + piece
        self.first = False
        return [piece]


class _PerPiece(_Same):
    """A step of the library that asks of other pieces only whether there was one before."""

    def __init__(self, decoder: Decoder):
        self.decoder, self.before = decoder, []

    def push(self, piece: str) -> list[str]:
        text = self.decoder.decode([*self.before, piece])
        self.before = [""]  # an empty piece before gives no text, but makes the next one not the first
        return [text]


class _Bytes:
    """ByteLevel: each character of a piece is one byte; a piece with any other character is plain text."""

    def __init__(self):
        self.byte = {char: byte for byte, char in enumerate(byte_characters())}
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: str) -> list[str]:
        try:
            data = bytes(self.byte[char] for char in piece)
        except KeyError:
            data = piece.encode()
        return [self.utf8.decode(data)]

    def finish(self) -> list[str]:
        return [self.utf8.decode(b"", final=True)]


class _ByteRuns:
    """ByteFallback: a run of byte pieces is one text if it is UTF-8 as a whole, else one U+FFFD a byte."""

    def __init__(self):
        self.run = bytearray()

    def push(self, piece: str) -> list[str]:
        if match := BYTE_PIECE.fullmatch(piece):
            self.run.append(int(match[1], 16))
            return []
        return [*self.finish(), piece]

    def finish(self) -> list[str]:
        run, self.run = self.run, bytearray()
        try:
            return [run.decode()] if run else []
        except UnicodeDecodeError:
            return ["\ufffd"] * len(run)


class _StripFront(_Same):
    """Strip on the whole text: up to `count` of `content` are taken from its front."""

    def __init__(self, content: str, count: int):
        self.content, self.count = content, count

    def push(self, piece: str) -> list[str]:
        while self.count and piece.startswith(self.content):
            piece = piece[len(self.content) :]
            self.count -= 1
        self.count = 0 if piece else self.count
        return [piece]


class _Whole:
    """Steps that need all pieces: nothing is certain before the end."""

    def __init__(self, specs: list[dict[str, Any]], fused: bool):
        self.decoder = _library_decoder({"type": "Sequence", "decoders": specs})
        self.fused, self.pieces = fused, []

    def push(self, piece: str) -> list[str]:
        self.pieces.append(piece)
        return []

    def finish(self) -> list[str]:
        return [self.decoder.decode(["".join(self.pieces)] if self.fused else self.pieces)]

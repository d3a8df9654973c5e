"""Two tokenizers small enough to read, one of each kind: the text of a tokenizer.json for tests of any part.

`byte_level_tokenizer_json()` is a GPT-2 style byte-level BPE: ids 0 to 255 are the bytes in order of value, then
merges, then added tokens. `sentencepiece_tokenizer_json()` is a Llama 2 style BPE with byte fallback: control tokens,
the 256 bytes as "<0x00>" to "<0xFF>", then pieces in which "▁" stands for a space.
"""

from __future__ import annotations

import json
from typing import Any

MERGES = ["Ġ a", "Ġ b", "t h", "th e", "Ġ the", "q u", "i c", "qu ic", "quic k", "Ġb r", "o w", "ow n", "Ġ f", "o x"]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<pad>"]
PIECES = ["▁", "▁▁", "▁leading", "▁x", "▁the", "▁a", "x", "a", "b", "c", "d", "e", "f", "g", "h", "i", "l", "n", "t"]
PIECES += ["th", "the", "le", "ea", "lea", "ad", "lead", "in", "ing", "leading", "é", "日", "\n", ".", ","]
PIECE_MERGES = ["▁ ▁", "▁ x", "▁ a", "t h", "th e", "▁ the", "l e", "le a", "lea d", "i n", "in g", "lead ing"]
PIECE_MERGES += ["▁ leading"]


def byte_alphabet() -> list[str]:
    """The character that stands for each byte value in a byte-level vocabulary (printable ones for themselves)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]


def added_token(id: int, content: str, **flags: bool) -> dict[str, Any]:
    """One entry of "added_tokens" in a tokenizer.json; flags are special, lstrip, rstrip, single_word, normalized."""
    default = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"id": id, "content": content, **default, **flags}


def byte_level_tokenizer_json(added: tuple[dict[str, Any], ...] = (), bos: bool = False, **changes: Any) -> str:
    """A byte-level tokenizer.json: 256 bytes, 14 merges (ids 256 to 269), 5 special tokens (270 to 274), then `added`.

    `added` are `added_token(0, ...)` dicts; their ids are set here, from 275 on. `bos` makes the post-processor put
    "<s>" first. `changes` replace top-level keys.
    """
    vocab = {char: byte for byte, char in enumerate(byte_alphabet())}
    for merge in MERGES:
        vocab[merge.replace(" ", "")] = len(vocab)
    specials = [added_token(len(vocab) + n, content, special=True) for n, content in enumerate(SPECIAL)]
    extras = [{**token, "id": len(vocab) + len(specials) + n} for n, token in enumerate(added)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    default = {
        "model": {"type": "BPE", "vocab": vocab, "merges": MERGES},
        "added_tokens": specials + extras,
        "pre_tokenizer": byte_level,
        "post_processor": first_token("<s>", len(vocab)) if bos else byte_level,
        "decoder": byte_level,
    }
    return _tokenizer_json(**{**default, **changes})


def sentencepiece_tokenizer_json(added: tuple[dict[str, Any], ...] = (), bos: bool = True, **changes: Any) -> str:
    """A Llama 2 style tokenizer.json: <unk> <s> </s> (ids 0 to 2), bytes (3 to 258), pieces (259 on), then `added`.

    A space is put before the text and one space is taken away from the front when decoding.
    """
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in PIECES:
        vocab[piece] = len(vocab)
    specials = [added_token(n, content, special=True) for n, content in enumerate(["<unk>", "<s>", "</s>"])]
    extras = [{**token, "id": len(vocab) + n} for n, token in enumerate(added)]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    default = {
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": PIECE_MERGES,
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
        },
        "added_tokens": specials + extras,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]},
        "post_processor": first_token("<s>", 1) if bos else None,
        "decoder": {"type": "Sequence", "decoders": steps},
    }
    return _tokenizer_json(**{**default, **changes})


def first_token(token: str, id: int) -> dict[str, Any]:
    """A post-processor that puts one token before the text."""
    special, text = {"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [special, text],
        "pair": [special, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    }


def _tokenizer_json(**parts: Any) -> str:
    empty = dict.fromkeys(["truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"])
    return json.dumps({"version": "1.0", **empty, **parts}, ensure_ascii=False)

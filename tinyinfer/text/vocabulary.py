"""Foreign vocabularies -> the JSON of a tokenizers tokenizer (tokenizer.json), so that one kind is run.

Vocabularies come from GGUF files, from SentencePiece's tokenizer.model, and from vocab.json with merges.txt. Token
types are numbered as SentencePiece and llama.cpp number them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ..errors import BadCheckpoint, UnsupportedModel
from ..files import POINTER_BYTES, refuse_pointer
from .pretokenizers import IGNORES_MERGES, patterns_for
from .sentencepiece import BPE, UNIGRAM, read_sentencepiece_model

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_SPACE = "\u2581"  # how SentencePiece writes a space


def bpe_tokenizer_json(
    tokens: Sequence[str],
    merges: Sequence[str | tuple[str, str]],
    token_types: Sequence[int],
    pre: str,
    *,
    first: int | None = None,
    last: int | None = None,
    right_stripped: Collection[int] = (),
) -> str:
    """A byte-level BPE tokenizer; ids equal llama.cpp's for the same vocabulary.

    `merges` hold two tokens each, with one space between, best first; `pre` names the pre-tokenizer as llama.cpp does;
    `first` and `last` are the ids that are added before and after a text; `right_stripped` are ids of special tokens
    that swallow the white space after them. Raises `UnsupportedModel` for an unknown `pre`, `BadCheckpoint` where the
    vocabulary contradicts itself.
    """
    patterns = patterns_for(pre)
    ids = _ids(tokens, token_types)
    pairs = [merge.split(" ", 1) if isinstance(merge, str) else list(merge) for merge in merges]
    usable = [pair for pair in pairs if len(pair) == 2 and {*pair, "".join(pair)} <= ids.keys()]
    splits = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} for regex in patterns
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return _tokenizer_json(
        model={
            "type": "BPE", "vocab": ids, "merges": usable, "ignore_merges": pre in IGNORES_MERGES,
            "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False,
        },
        added=_added_tokens(tokens, token_types, right_stripped),
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        post_processor=_frame(tokens, first, last),
        decoder=byte_level,
    )  # fmt: skip


def sentencepiece_tokenizer_json(
    pieces: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],
    *,
    model_type: int = BPE,
    unknown: int = 0,
    add_dummy_prefix: bool = True,
    remove_extra_whitespaces: bool = False,
    precompiled_charsmap: bytes = b"",
    first: int | None = None,
    last: int | None = None,
    right_stripped: Collection[int] = (),
) -> str:
    """A SentencePiece-style tokenizer, BPE or Unigram; ids equal the SentencePiece library's for plain text.

    Special tokens in the text are recognised, which the library does not do; each stretch of text between them gets its
    own dummy prefix, as in llama.cpp. Byte fallback is on when the vocabulary has all 256 byte pieces. Raises
    `UnsupportedModel` for another model type, `BadCheckpoint` where the vocabulary contradicts itself.
    """
    ids = _ids(pieces, types)
    if len(scores) != len(pieces) or not 0 <= unknown < len(pieces):
        raise BadCheckpoint(f"{len(pieces)} pieces, but {len(scores)} scores and unknown id {unknown}")
    byte_fallback = all(f"<0x{byte:02X}>" in ids for byte in range(256))
    if model_type == BPE:
        model = {
            "type": "BPE", "vocab": ids, "merges": _merges_from_scores(pieces, scores, types),
            "dropout": None, "unk_token": pieces[unknown], "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": byte_fallback, "ignore_merges": False,
        }  # fmt: skip
    elif model_type == UNIGRAM:
        vocab = [[piece, float(score)] for piece, score in zip(pieces, scores, strict=True)]
        model = {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": byte_fallback}
    else:
        raise UnsupportedModel(f"expected a SentencePiece model of type BPE or Unigram, found type {model_type}")
    decoders: list[dict[str, Any]] = [_replace(_SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if add_dummy_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _tokenizer_json(
        model=model,
        added=_added_tokens(pieces, types, right_stripped),
        normalizer=_normalizer(add_dummy_prefix, remove_extra_whitespaces, precompiled_charsmap),
        post_processor=_frame(pieces, first, last),
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _ids(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
        raise BadCheckpoint(f"token {twice!r} stands twice in the vocabulary")
    if len(types) != len(tokens):
        raise BadCheckpoint(f"{len(tokens)} tokens, but {len(types)} token types")
    return ids


def _merges_from_scores(pieces: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[list[str]]:
    """SentencePiece keeps no merges: any two neighbours may merge whose union is a piece, best score first."""
    mergeable = {
        piece: score for piece, score, kind in zip(pieces, scores, types, strict=True) if kind in (NORMAL, USER_DEFINED)
    }
    order = {piece: index for index, piece in enumerate(pieces)}
    found = []
    for piece, score in mergeable.items():
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        usable = [pair for pair in halves if pair[0] in mergeable and pair[1] in mergeable]
        found += [(-score, order[piece], order[left], [left, right]) for left, right in usable]
    return [pair for *_, pair in sorted(found)]


def _normalizer(add_dummy_prefix: bool, remove_extra_whitespaces: bool, charsmap: bytes) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    if remove_extra_whitespaces:
        for regex, content in ((rf"\A +|[ {_SPACE}]+\z", ""), (" {2,}", " ")):
            steps.append({"type": "Replace", "pattern": {"Regex": regex}, "content": content})
    if add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": _SPACE})
    return {"type": "Sequence", "normalizers": [*steps, _replace(" ", _SPACE)]}


def _replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _added_tokens(tokens: Sequence[str], types: Sequence[int], right_stripped: Collection[int]) -> list[dict[str, Any]]:
    """Control and unknown tokens are special; user-defined ones are found in the text before all else, but are text."""
    return [
        {
            "id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": index in right_stripped,
            "normalized": False, "special": int(kind) != USER_DEFINED,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, UNKNOWN, USER_DEFINED)
    ]  # fmt: skip


def _frame(tokens: Sequence[str], first: int | None, last: int | None) -> dict[str, Any] | None:
    """A post-processor that adds a token before and after each text; None where there is nothing to add."""
    if first is None and last is None:
        return None

    def around(sequence: str, kind: int) -> list[dict[str, Any]]:
        special = [
            None if index is None else {"SpecialToken": {"id": tokens[index], "type_id": kind}}
            for index in (first, last)
        ]
        return [part for part in (special[0], {"Sequence": {"id": sequence, "type_id": kind}}, special[1]) if part]

    used = {index for index in (first, last) if index is not None}
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in sorted(used)},
    }


def _tokenizer_json(model: dict[str, Any], added: list[dict[str, Any]], **parts: Any) -> str:
    stages = {name: parts.get(name) for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **stages, "model": model}
    return json.dumps(whole, ensure_ascii=False)


# ---- folders without tokenizer.json


# The pre-tokenizer of tokenizers that come as vocab.json and merges.txt
_PRE_OF_CLASS = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}


def tokenizer_json_from_folder(folder: Path) -> str | None:
    """The text of tokenizer.json as it is, or made from tokenizer.model, or from vocab.json with merges.txt.

    None where the folder has none of these. Raises `BadCheckpoint` for damaged files, `UnsupportedModel` for a
    vocabulary of a kind that this version does not read.
    """
    if (folder / "tokenizer.json").is_file():
        return _read_text(folder / "tokenizer.json")
    if (folder / "tokenizer.model").is_file():
        return _from_sentencepiece(folder)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _from_vocab_and_merges(folder)
    return None


def _from_sentencepiece(folder: Path) -> str:
    model = read_sentencepiece_model(folder / "tokenizer.model")
    config = _read_object(folder / "tokenizer_config.json")
    pieces, scores, types = list(model.pieces), list(model.scores), list(model.types)
    right_stripped = _merge_added(folder, config, pieces, types)
    scores += [0.0] * (len(pieces) - len(scores))
    kind = str(config.get("tokenizer_class", ""))
    add_bos = config.get("add_bos_token", model.model_type == BPE)
    add_eos = config.get("add_eos_token", "T5" in kind)
    return sentencepiece_tokenizer_json(
        pieces, scores, types,
        model_type=model.model_type,
        unknown=model.unknown if model.unknown >= 0 else types.index(UNKNOWN) if UNKNOWN in types else 0,
        add_dummy_prefix=bool(config.get("add_prefix_space", model.add_dummy_prefix)),
        remove_extra_whitespaces=model.remove_extra_whitespaces,
        precompiled_charsmap=model.precompiled_charsmap,
        first=_named(config, "bos_token", pieces, model.bos) if add_bos else None,
        last=_named(config, "eos_token", pieces, model.eos) if add_eos else None,
        right_stripped=right_stripped,
    )  # fmt: skip


def _from_vocab_and_merges(folder: Path) -> str:
    config = _read_object(folder / "tokenizer_config.json")
    kind = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    if kind not in _PRE_OF_CLASS:
        raise UnsupportedModel(
            f"{folder}: vocab.json and merges.txt of tokenizer_class {kind!r} don't say how text is cut into words; "
            f"known are {', '.join(_PRE_OF_CLASS)}; tokenizer.json is needed"
        )
    ids = _read_object(folder / "vocab.json")
    if sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str):
        raise BadCheckpoint(f"{folder / 'vocab.json'}: expected the ids 0 to {len(ids) - 1}, each once")
    tokens = sorted(ids, key=ids.__getitem__)
    types = [NORMAL] * len(tokens)
    lines = _read_text(folder / "merges.txt").split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    stripped = _merge_added(folder, config, tokens, types)
    bos = _named(config, "bos_token", tokens, -1) if config.get("add_bos_token") else None
    return bpe_tokenizer_json(tokens, merges, types, _PRE_OF_CLASS[kind], first=bos, right_stripped=stripped)


def _merge_added(folder: Path, config: dict[str, Any], tokens: list[str], types: list[int]) -> set[int]:
    """Put the folder's added tokens into the vocabulary, in place; returns ids that swallow white space after them."""
    added = {index: {"content": token} for token, index in _read_object(folder / "added_tokens.json").items()}
    for index, entry in (config.get("added_tokens_decoder") or {}).items():
        added[int(index) if str(index).isdecimal() else -1] = entry
    stripped = set()
    for index in sorted(added, key=lambda index: index if isinstance(index, int) else -1):
        entry = added[index]
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not isinstance(index, int) or not 0 <= index <= len(tokens):
            raise BadCheckpoint(
                f"{folder}: added token {str(content)[:40]!r} has id {index}, but the next free id is {len(tokens)}"
            )
        tokens[index : index + 1] = [content]
        types[index : index + 1] = [CONTROL if entry.get("special", True) else USER_DEFINED]
        if entry.get("rstrip"):
            stripped.add(index)
    return stripped


def _named(config: dict[str, Any], key: str, tokens: Sequence[str], default: int) -> int | None:
    """The id of a token that tokenizer_config.json names, as a string or in the AddedToken form."""
    name = config.get(key)
    name = name.get("content") if isinstance(name, dict) else name
    if isinstance(name, str) and name in tokens:
        return tokens.index(name)
    return default if 0 <= default < len(tokens) else None


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path}: can't be read: {error}") from None
    refuse_pointer(path, text[:POINTER_BYTES].encode())
    return text


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value

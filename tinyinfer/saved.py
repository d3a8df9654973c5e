"""What a session has computed, as a file or as bytes: for a later run, or another process, to go on from.

It is a safetensors file:

    ids                            int32 [tokens]: what the keys and values are of
    layers.0.keys, .values, ...    see `cache/transfer.py`
    __metadata__                   strings: "format"; "name", for people; the key; and "state", see below

The key is what keys and values depend on beside the ids: the model (its facts, rotary scaling among them, and all bytes
of its weights), tokenizer, chat template, adapters with their scales, the dtype that the cache is kept in, and whether
quantized weights meet activations in 8 bits. A file with another key is refused: the numbers would be of another model.
Blocks may be of another size, and floats may differ in the last bit between processors, as they always do.

"state" are the numbers of `cached_sequence.State`: how long the text was, which some rotary scalings go by, and what of
it was dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import cache as kv
from .cached_sequence import CachedSequence, State
from .checkpoint.safetensors import (
    open_with_metadata,
    parse_safetensors,
    safetensors_bytes,
    write_safetensors,
)
from .config import ModelConfig
from .errors import BadCheckpoint, BadRequest
from .model.forward import Model
from .rolling import Rolling, check_rolling

FORMAT = "tinyinfer cache 1"
IDS = np.dtype("<i4")

# what each part of the key is called where it differs
PARTS = {
    "model": "model",
    "tokenizer": "tokenizer",
    "template": "chat template",
    "adapters": "choice of adapters or scales",
    "kv_dtype": "dtype of keys and values",
    "activations": "form of activations",
}
Key = Mapping[str, str]  # by the names in PARTS


@dataclass(frozen=True)
class SavedCache:
    """A sequence out of its cache: arrays by name, and strings that say what they are; see above.

    where   what to call it where something is wrong with it
    """

    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, str]
    where: str

    @classmethod
    def read(cls, file: str | os.PathLike) -> SavedCache:
        """Map a file. Raises `BadCheckpoint` where it is none, or damaged."""
        return cls(*open_with_metadata(file), str(file))

    @classmethod
    def from_bytes(cls, content: bytes, where: str = "the saved cache") -> SavedCache:
        """What `bytes_of` gave. Raises `BadCheckpoint` where it is something else."""
        return cls(*parse_safetensors(content, where), where)


def write_cache(held: CachedSequence, key: Key, name: str, file: str | os.PathLike) -> None:
    """Write what a sequence holds to a file, which is there when it is whole; an older one is replaced.

    Raises `BadRequest` where a folder stands in its place.
    """
    if Path(file).is_dir():
        raise BadRequest(f"{file}: a saved cache is a file, and a folder stands there", "file")
    write_safetensors(file, *_content(held, key, name))


def bytes_of(held: CachedSequence, key: Key, name: str) -> bytes:
    """The same as bytes."""
    return safetensors_bytes(*_content(held, key, name))


def restored(model: Model, saved: SavedCache, key: Key) -> CachedSequence:
    """A sequence that holds what was saved, in a cache of its own.

    Raises `BadCheckpoint` for what no session can have saved, and `BadRequest` where it was saved under another key,
    saying which part differs.
    """
    where, facts = saved.where, saved.facts
    if facts.get("format") != FORMAT:
        expected = f"expected {FORMAT!r}, found {facts.get('format', 'nothing')[:80]!r}"
        raise BadCheckpoint(f"{where}: not a saved cache, or of another version: {expected}")
    _check_key(where, facts, key)
    arrays = dict(saved.arrays)
    ids = _checked_ids(where, arrays.pop("ids", None), model.config)
    state = _checked_state(where, facts.get("state", ""), len(ids), model.config)
    try:
        sequence = kv.sequence_from(model.new_cache(), arrays, len(ids) - state.dropped)
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{where}: {error}") from None
    return CachedSequence.holding(model, sequence, ids, state)


def _content(held: CachedSequence, key: Key, name: str) -> tuple[dict, Iterator[tuple[str, np.ndarray]], dict]:
    held.settle()
    ids = np.array(held.ids, IDS)
    facts = {"format": FORMAT, "name": name, **key, "state": " ".join(map(str, held.state))}
    layout = {"ids": (IDS, ids.shape)} | kv.layout_of(held.sequence)

    def arrays() -> Iterator[tuple[str, np.ndarray]]:
        yield "ids", ids
        yield from kv.arrays_of(held.sequence)

    return layout, arrays(), facts


def _check_key(where: str, facts: Mapping[str, str], key: Key) -> None:
    for part, called in PARTS.items():
        found, expected = facts.get(part, "nothing"), key[part]
        if found != expected:
            made = f" ({facts['name'][:80]!r})" if part == "model" and "name" in facts else ""
            both = f"expected {_short(expected)}, found {_short(found)}"
            raise BadRequest(f"{where}: saved with another {called}{made}: {both}", "prompt_cache")


def _short(value: str) -> str:
    return value[:12] if value.isprintable() else repr(value[:12])


def _checked_ids(where: str, ids: Any, config: ModelConfig) -> list[int]:
    if ids is None:
        raise BadCheckpoint(f"{where}: ids is missing")
    if ids.dtype != IDS or ids.ndim != 1:
        raise BadCheckpoint(f"{where}: ids: expected int32 of one dimension, found {ids.dtype} {list(ids.shape)}")
    outside = ids[(ids < 0) | (ids >= config.vocab_size)]
    if outside.size:
        raise BadCheckpoint(f"{where}: id {outside[0]} is outside the vocabulary of {config.vocab_size:,}")
    return ids.tolist()


def _checked_state(where: str, text: str, count: int, config: ModelConfig) -> State:
    words = text.split(" ")
    if len(words) != len(State._fields) or not all(w.isascii() and w.isdigit() and len(w) <= 10 for w in words):
        raise BadCheckpoint(f"{where}: state: expected {len(State._fields)} whole numbers, found {text[:80]!r}")
    state = State(*map(int, words))
    rolling, longest = Rolling(state.context, state.keep), config.longest_context
    if count - state.dropped > longest:
        raise BadCheckpoint(f"{where}: it holds {count - state.dropped:,} tokens, more than the model's {longest:,}")
    if state.context:
        try:
            check_rolling(config, rolling)
        except BadRequest as error:
            raise BadCheckpoint(f"{where}: state: {error}") from None
    # each time the context was full, and so many tokens went
    times, rest = divmod(state.dropped, rolling.drop) if rolling.drop else (0, state.dropped)
    at = state.context + (times - 1) * rolling.drop if times else 0
    if rest or state.dropped_at != at or at > count or state.context > longest:
        raise BadCheckpoint(f"{where}: state: {text[:80]!r} is none that {count:,} tokens can be in")
    return state

"""GPTQ, as AutoGPTQ and GPTQModel write it: codes of 2, 3, 4 or 8 bits in words that run down the input axis.

    qweight   int32 [K * bits / 32, N]        a stream of codes down each column (`codes.py` draws it)
    qzeros    int32 [groups, N * bits / 32]   a stream along each row
    scales    float [groups, N]
    g_idx     int32 [K]                       the group of each input; absent: k // group_size

    w[n, k] = scales[g_idx[k], n] * (q[n, k] - zero[g_idx[k], n])

Which zero is stored depends on "checkpoint_format". "gptq_v2" stores the zero itself. "gptq", the older and usual one,
stores zero - 1, subtracted from whole words of 2, 4 or 8 bits a field: where a zero was 0, it borrowed from the next
field. Adding one to each field of a whole word, modulo 2^32, takes that back; adding to each field by itself does not.
Fields of 3 bits, which lie across words, were subtracted from each by itself, modulo 8.
With act-order ("desc_act") g_idx is no staircase: columns that share a scale do not lie together.
GPTQ: https://arxiv.org/abs/2210.17323.
"""

from __future__ import annotations

import numpy as np

from ...errors import BadCheckpoint
from ..safetensors import to_float32
from .codes import stream, words_for
from .grid import Grid
from .parts import FLOATS, WHOLE, WORDS, Parts, Settings, matches

BITS = (2, 3, 4, 8)


def read(settings: Settings, parts: Parts) -> list[Grid]:
    """Every matrix of the folder that has codes."""
    version = settings.text("checkpoint_format", ("gptq", "gptq_v2"), settings.get("format", "gptq"))
    settings.text("pack_dtype", ("int32",), "int32")
    found = []
    for stem in parts.stems(".qweight", ".qzeros"):
        layer = _layer_settings(settings, stem)
        found.append(_matrix(layer, parts, stem, version == "gptq"))
    return found


def _layer_settings(settings: Settings, stem: str) -> Settings:
    """The settings of one layer: the first expression of "dynamic" that fits its name overrides the others."""
    for pattern, changes in settings.part("dynamic").values.items():
        where = f"{settings.where}: dynamic"
        if matches(pattern.removeprefix("+:").removeprefix("-:"), stem, where):
            if pattern.startswith("-:"):
                raise BadCheckpoint(f"{where}: {stem} is said not to be quantized, but it is")
            return Settings({**settings.values, **Settings(changes, where).values}, where)
    return settings


def _matrix(settings: Settings, parts: Parts, stem: str, minus_one: bool) -> Grid:
    bits = settings.choice("bits", BITS)
    name = f"{stem}.qweight"
    qweight = parts.take(name, WORDS, (None, None))
    columns, rows = parts.size(name, 32 * qweight.shape[0], bits, "bits a column"), qweight.shape[1]
    g_idx = parts.take(f"{stem}.g_idx", WHOLE, (columns,)) if f"{stem}.g_idx" in parts.left else None
    said = group_size(settings)
    size = said or columns
    groups = -(-columns // size)
    scales = parts.take(f"{stem}.scales", FLOATS, (groups, rows))
    qzeros = parts.take(f"{stem}.qzeros", WORDS, (groups, words_for(rows, bits)))
    order = _order(parts, f"{stem}.g_idx", g_idx, groups, size)
    zeros = _zeros(qzeros, bits, rows, minus_one)
    stored = qweight.nbytes + scales.nbytes + qzeros.nbytes + (g_idx.nbytes if g_idx is not None else 0)
    return Grid(
        name=f"{stem}.weight",
        kind=f"GPTQ {bits}-bit{group_words(said)}{', act-order' if order is not None else ''}",
        shape=(rows, columns),
        stored=stored,
        codes=lambda ids: stream(_columns(qweight, ids), bits, columns),
        scales=lambda ids: to_float32(_columns(scales, ids)),
        zeros=lambda ids: _columns(zeros, ids).astype(np.float32),
        group=size,
        levels=(0, 2**bits - 1),
        order=order,
    )


def _order(parts: Parts, name: str, g_idx: np.ndarray | None, groups: int, size: int) -> np.ndarray | None:
    """The group of each column, None where they are in order."""
    if g_idx is None:
        return None
    if g_idx.min() < 0 or g_idx.max() >= groups:
        parts.refuse(name, f"expected groups from 0 to {groups - 1}, found {g_idx.min()} to {g_idx.max()}")
    return None if np.array_equal(g_idx, np.arange(len(g_idx)) // size) else g_idx.astype(np.int64)


def _zeros(qzeros: np.ndarray, bits: int, count: int, minus_one: bool) -> np.ndarray:
    """The zeros as they are meant: uint8 [groups, N]."""
    words = np.ascontiguousarray(qzeros).view(np.uint32)
    if not minus_one:
        return stream(words, bits, count)
    if 32 % bits:
        return (stream(words, bits, count) + np.uint8(1)) & np.uint8(2**bits - 1)
    one_each = np.uint32((2**32 - 1) // (2**bits - 1))
    return stream(words + one_each, bits, count)


def _columns(array: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Some columns as rows: [m, N], int [n] -> [n, m]. Neighbours are cut out whole."""
    first, last = int(ids[0]), int(ids[-1]) + 1
    together = len(ids) == last - first and bool((np.diff(ids) == 1).all())
    return np.ascontiguousarray((array[:, first:last] if together else array[:, ids]).T)


def group_size(settings: Settings, key: str = "group_size") -> int | None:
    """Columns that share a scale; None where the whole row does, which is said by -1 or by nothing."""
    return None if settings.get(key, -1) == -1 else settings.size(key)


def group_words(size: int | None) -> str:
    """`, groups of 128`, for people."""
    return f", groups of {size}" if size else ", a scale a row"

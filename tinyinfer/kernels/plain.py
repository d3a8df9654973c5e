"""Attention in NumPy: what a tape does without Numba, and what the compiled attention is held against."""

from __future__ import annotations

import numpy as np

TILE_QUERIES = 128  # bounds the scores held at once to heads * TILE_QUERIES * context


def attend(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
    slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """The last n of T positions look at all that they may see.

    query float32 [n, H, D]; key, value float32 [T, G, D] of positions in a row, the last n of them the queries' own.
    `window` counts the token itself; `cap` bends scores. slopes [H]: what a score loses with each position back;
    sinks [H]: the score of looking at nothing. Returns float32 [n, H, D].
    """
    n, heads, dim = query.shape
    total, kv_heads, _ = key.shape
    share = heads // kv_heads
    # query heads that share a key head become rows of one matrix, so that each key is read once
    grouped = (query * np.float32(scale)).reshape(n, kv_heads, share, dim).transpose(1, 2, 0, 3)  # [G, share, n, D]
    keys, values = key.transpose(1, 2, 0), value.transpose(1, 0, 2)  # [G, D, T], [G, T, D]
    out = np.empty((n, kv_heads, share, dim), np.float32)
    for begin in range(0, n, TILE_QUERIES):
        end = min(begin + TILE_QUERIES, n)
        last = total - n + end  # the causal loop is bounded: keys after the tile's last query are not touched
        first = 0 if window is None else max(total - n + begin - window + 1, 0)
        rows = grouped[:, :, begin:end].reshape(kv_heads, share * (end - begin), dim)
        scores = rows @ keys[:, :, first:last]  # [G, share * tile, keys]
        if cap is not None:
            np.tanh(scores / np.float32(cap), out=scores)
            scores *= np.float32(cap)
        apart = scores.reshape(kv_heads, share, end - begin, last - first)
        if slopes is not None:
            back = np.arange(last - end + begin, last)[:, None] - np.arange(first, last)
            apart -= slopes.reshape(kv_heads, share, 1, 1) * back.astype(np.float32)
        _hide_unseen(apart, window)
        _softmax_in_place(apart, sinks)
        mixed = scores @ values[:, first:last]  # [G, share * tile, D]
        out[begin:end] = mixed.reshape(kv_heads, share, end - begin, dim).transpose(2, 0, 1, 3)
    return out.reshape(n, heads, dim)


def _hide_unseen(scores: np.ndarray, window: int | None) -> None:
    """Set what a query may not see to -inf: scores [G, share, tile, keys], whose last keys are the tile's own."""
    tile, keys = scores.shape[-2:]
    if tile == 1:
        return  # one query: its keys are exactly those between `first` and `last`
    query = np.arange(keys - tile, keys)[:, None]
    key = np.arange(keys)[None, :]
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    np.copyto(scores, np.float32(-np.inf), where=hidden)


def _softmax_in_place(scores: np.ndarray, sinks: np.ndarray | None) -> None:
    largest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        sinks = sinks.reshape(*scores.shape[:2], 1, 1)
        largest = np.maximum(largest, sinks)
    scores -= largest
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    scores /= total if sinks is None else total + np.exp(sinks - largest)

"""What a model takes to be served, before it is loaded."""

from __future__ import annotations

from ..cache import KVCache
from ..checkpoint.source import Checkpoint, stored_bytes
from ..config import read_config

CACHE_BYTES = 2**30  # of keys and values, where nothing is said: or one whole context, if that is more


def usual_cache_bytes(cache: KVCache, context: int) -> int:
    """What keys and values may take where nothing is said."""
    return max(CACHE_BYTES, cache.block_bytes * -(-context // cache.block_size))


def serving_bytes(
    checkpoint: Checkpoint, context: int | None = None, kv_dtype: str = "float16", kv_cache_bytes: int | None = None
) -> int:
    """Bytes of a model's weights, and what its keys and values may come to; work space is not counted.

    `context` and `kv_dtype` are those of `load`, `kv_cache_bytes` is the engine's. No weight is read. Raises as
    `read_config` does.
    """
    weights = sum(stored_bytes(checkpoint.tensors).values())
    if kv_cache_bytes is None:
        config = read_config(checkpoint.config)
        kv_cache_bytes = usual_cache_bytes(KVCache(config, dtype=kv_dtype), context or config.context)
    return weights + kv_cache_bytes

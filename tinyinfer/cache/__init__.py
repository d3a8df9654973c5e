"""The key-value cache: what earlier tokens left behind, so that a step computes only what is new."""

from .blocks import DEFAULT_BLOCK_SIZE, KV_DTYPES, KVCache, Part, Sequence, layer_places
from .branches import Branches
from .prefixes import PrefixTree
from .transfer import arrays_of, layout_of, sequence_from

__all__ = [
    "DEFAULT_BLOCK_SIZE", "KV_DTYPES", "Branches", "KVCache", "Part", "PrefixTree", "Sequence", "arrays_of",
    "layer_places", "layout_of", "sequence_from",
]  # fmt: skip

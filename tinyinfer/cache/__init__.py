"""The key-value cache: what earlier tokens left behind, so that a step computes only what is new."""

from .blocks import DEFAULT_BLOCK_SIZE, KVCache, Part, Sequence, layer_places
from .branches import Branches
from .forms import FORMS, KV_DTYPES
from .prefixes import PrefixTree
from .transfer import arrays_of, layout_of, sequence_from

__all__ = [
    "DEFAULT_BLOCK_SIZE", "FORMS", "KV_DTYPES", "Branches", "KVCache", "Part", "PrefixTree", "Sequence", "arrays_of",
    "layer_places", "layout_of", "sequence_from",
]  # fmt: skip

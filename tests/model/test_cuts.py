"""However a text is cut into steps, and whoever shares them, its logits are the same to the last bit.

The numbers of a row come from its own text alone, and stretches of the past are joined in the same order by the same
function. So a prompt in chunks, a cached beginning, a verified draft and a batch give the very ids of a lone run.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny_models import WINDOWED, random_runtime
from tinyinfer.cache import KV_DTYPES
from tinyinfer.cached_sequence import CachedSequence
from tinyinfer.kernels.tape import use_compiled
from tinyinfer.model.forward import Model

pytestmark = pytest.mark.skipif(not use_compiled(), reason="BLAS gives other floats for other numbers of rows")

LENGTH = 300  # more than two stretches of 128
TEXT = np.random.default_rng(1).integers(0, 97, LENGTH).tolist()
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"max_position_embeddings": 512},
    "windows": {**WINDOWED, "sliding_window": 70, "max_position_embeddings": 512},
    "head of 16": {"head_dim": 16, "max_position_embeddings": 512},
    "head of 72, and one for all": {"head_dim": 72, "num_key_value_heads": 1, "max_position_embeddings": 512},
}


@cache
def model_of(kind: str, kv_dtype: str) -> Model:
    return Model(*random_runtime(**KINDS[kind]), kv_dtype=kv_dtype, threads=2)


def logits_of(model: Model, ends: list[int], others: tuple[int, ...] = ()) -> np.ndarray:
    """Of TEXT cut at `ends`, each step beside chunks of so many tokens of other texts: float32 [LENGTH, vocab]."""
    held, rows = CachedSequence(model), []
    for begin, end in zip([0, *ends], [*ends, LENGTH], strict=True):
        beside = [CachedSequence(model).chunk(TEXT[:n], n) for n in others]
        logits = model.forward([*beside, held.chunk(TEXT[begin:end], LENGTH, slice(None))])
        held.fed(TEXT[begin:end], LENGTH)
        rows.append(logits[len(others) :])
    return np.concatenate(rows)


@cache
def whole(kind: str, kv_dtype: str) -> np.ndarray:
    return logits_of(model_of(kind, kv_dtype), [])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3, 8, 16, 17, 64, 100])
def test_steps_of_one_size(kind: str, kv_dtype: str, size: int):
    logits = logits_of(model_of(kind, kv_dtype), list(range(size, LENGTH, size)))
    np.testing.assert_array_equal(logits, whole(kind, kv_dtype))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(
    ends=st.lists(st.integers(1, LENGTH - 1), max_size=12, unique=True).map(sorted),
    others=st.lists(st.integers(1, 40), max_size=4).map(tuple),
)
def test_steps_of_any_size_beside_any_others(kind: str, ends: list[int], others: tuple[int, ...]):
    np.testing.assert_array_equal(logits_of(model_of(kind, "float16"), ends, others), whole(kind, "float16"))

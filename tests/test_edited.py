"""Histories that were edited, with every kind of cache: not a bit of what was there before shows.

With compiled kernels floats do not depend on how a text is cut into steps, so that what follows an edit equals a cold
run of the same kind bit for bit, in int8 too. BLAS gives other floats for other numbers of rows; there a float that
falls on the other side of a rounding moves a key by one step, and the bound is what that may do.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.test_session import EDITS, KINDS, MORE, SYSTEM, USER1, USER2, common, random_of, text
from tinyinfer import LLM
from tinyinfer.cache import KV_DTYPES
from tinyinfer.cached_sequence import CachedSequence
from tinyinfer.errors import BadRequest
from tinyinfer.kernels.tape import use_compiled

BOUNDS = {"float32": 1e-5, "float16": 2e-2, "int8": 0.5, "int8-int4": 1.0}  # without compiled kernels; codes may flip


@cache
def llm_of(kind: str, dtype: str) -> LLM:
    return LLM(random_of(kind).llm.checkpoint, kv_dtype=dtype)


def check(held: CachedSequence, ids: list[int], dtype: str) -> int:
    before = list(held.ids)
    logits, kept = held.prefill(ids)
    cold, none = CachedSequence(held.model).prefill(ids)
    assert none == 0
    assert kept <= min(common(before, ids), len(ids) - 1)  # at least one token is run
    np.testing.assert_allclose(logits, cold, rtol=0, atol=0 if use_compiled() else BOUNDS[dtype])
    return kept


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompts", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("saved", [False, True])
def test_after_an_edit_logits_are_those_of_a_cold_run(
    kind: str, dtype: str, prompts: list[list[int]], saved: bool, tmp_path: Path
):
    llm = llm_of(kind, dtype)
    session = llm.session()
    for prompt in prompts:
        if saved:
            llm.save_cache(session, tmp_path / "saved")
            session = llm.load_cache(tmp_path / "saved")
        held = session._held
        expected = min(common(held.ids, prompt), len(prompt) - 1)
        kept = check(held, prompt, dtype)
        assert kept == expected if kind == "full" else kept in (0, expected)  # all or nothing, never half of the layers
        for id in text(len(prompt), 4):
            held.step(id)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_cached_tokens_are_told_truly(dtype: str):
    llm, how = llm_of("full", dtype), {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    session = llm.session()
    for prompt in (SYSTEM + USER1, SYSTEM + USER2, SYSTEM + USER1, SYSTEM, SYSTEM + MORE, [7, *SYSTEM[1:]]):
        held = session.cached_ids
        done = session.generate(prompt, **how)
        assert done.timings.cached_tokens == min(common(held, prompt), len(prompt) - 1)
        if use_compiled():
            assert done.ids == llm.generate(prompt, **how).ids


def test_a_cache_of_another_kind_is_refused():
    session = llm_of("full", "int8").session()
    session.generate(SYSTEM, max_tokens=1)
    content = llm_of("full", "int8").export_cache(session)
    for kind, dtype, said in (("full", "float16", "dtype of keys and values"), ("windows", "int8", "model")):
        with pytest.raises(BadRequest, match=f"another {said}"):
            llm_of(kind, dtype).import_cache(content)

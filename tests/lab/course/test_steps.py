"""The experiments on the cache and on steps: formulas, and counters against the engine's own; never a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny_models import WINDOWED, random_model
from tinyinfer.errors import BadRequest
from tinyinfer.lab.course import attention, batch, cache, macs, memory, phases
from tinyinfer.lab.course.setting import Setting
from tinyinfer.model.footprint import kv_bytes


def setting_of(folder: Path, **changes) -> Setting:
    random_model(folder, **{"max_position_embeddings": 512} | changes)
    return Setting(str(folder))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return setting_of(tmp_path / "model")


def column(table, name: str) -> list:
    at = list(table.columns).index(name)
    return [row[at] for row in table.rows]


@pytest.mark.parametrize("changes", [{}, WINDOWED], ids=["llama", "windows"])
def test_the_cache_changes_no_token(tmp_path: Path, changes: dict):
    finding = cache.measure(setting_of(tmp_path / "model", **changes))
    assert finding.tables[1].rows[0][1:] == (cache.NEW, cache.NEW)
    assert [len(points) for points in finding.drawings[0].lines.values()] == [cache.NEW] * 2


def test_a_model_of_too_short_a_context_is_refused(tmp_path: Path):
    with pytest.raises(BadRequest, match="88 tokens, more than this model's context of 64"):
        cache.measure(setting_of(tmp_path / "model", max_position_embeddings=64))


@pytest.mark.parametrize("n", [1, 5, 200])
def test_a_cached_step_is_the_last_row_of_the_square(n: int):
    np.testing.assert_allclose(attention.cached_step(n)(), attention.recomputed_step(n)(), rtol=1e-5, atol=1e-6)


def test_scores_are_the_courses(setting: Setting, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "LENGTHS", (64, 4096))
    (table,) = attention.measure(setting).tables
    assert table.rows[1][3:7] == (67_108_864, 16_384, 67e6, 16_384)


def test_every_multiply_add_is_counted():
    table = macs.counted()
    for tokens, formula, counted, cold_formula, cold_counted in table.rows:
        assert (formula, cold_formula) == (counted, cold_counted), tokens
    assert [row[0] for row in table.rows] == list(macs.COUNTED_LENGTHS)


def test_a_count_sees_a_product_more(monkeypatch: pytest.MonkeyPatch):
    forward = macs.forward
    monkeypatch.setattr(macs, "forward", lambda config, tensors, ids: forward(config, tensors, [*ids, 0]))
    assert any(row[3] != row[4] for row in macs.counted().rows)


def test_weights_grow_by_a_power_and_attention_by_another():
    def passes(new: int, wanted: int) -> float:
        return 100 * new + 7 * wanted

    for tokens in (1, 3, 10):
        with_weights, attends = macs.with_cache(macs.SMALL, passes, tokens)
        assert with_weights == sum(passes(1, 1) for _ in range(tokens))
        pair = 2 * 2 * 4 * 8  # scores and shares, in two layers of four heads of eight
        assert attends == pair * tokens * (tokens + 1) // 2
        cold, cold_attends = macs.without_cache(macs.SMALL, passes, tokens)
        assert cold == sum(passes(n, 1) for n in range(1, tokens + 1))
        assert cold_attends == pair * tokens * (tokens + 1) * (2 * tokens + 1) // 6


def test_macs_of_a_model(setting: Setting):
    table, powers, _ = macs.measure(setting).tables
    # from 64 to 256 tokens; sums to n, n^2 and n^3 have lower powers too
    assert column(powers, "here") == pytest.approx([1, 2, 2, 3], abs=0.05)
    assert column(table, "tokens") == [16, 64, 256]
    ratios = column(table, "times as many without")
    assert ratios == sorted(ratios)


def test_memory_by_the_caches_own_count(setting: Setting, monkeypatch: pytest.MonkeyPatch):
    table, ratio = memory.measure(setting).tables
    bytes_held = column(table, table.columns[-1])
    assert bytes_held[:2] == [kv_bytes(setting.config, 256) / memory.MB] * 2  # 256 tokens fill whole blocks
    assert bytes_held[2] == 0
    assert ratio.rows[0][2] == 8.3


def test_where_the_system_does_not_tell_peaks(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "none" / "such")
    assert memory.peaks_of(setting.llm, memory.with_cache)["peaks"] == [None] * 3
    monkeypatch.setattr(memory, "in_own_process", lambda setting, way: {"peaks": [None] * 3, "cache": 5 * memory.MB})
    finding = memory.measure(setting)
    assert finding.tables[0].rows[0] == ("with the cache", None, None, None, 5)
    assert finding.tables[1].rows[0][1] is None
    assert not finding.drawings


def test_phases_take_what_fits(setting: Setting):
    prefill, decode, course = phases.measure(setting).tables
    assert column(prefill, "tokens") == column(decode, "tokens before it") == [16, 32, 64, 128, 256]
    per_token = column(prefill, "ms a token")
    assert column(course, "here")[:2] == pytest.approx([per_token[0] / min(per_token), per_token[-1] / min(per_token)])
    read = column(decode, "MiB that it reads")
    # between two depths lie their keys and values
    per_token = kv_bytes(setting.config, 1) / 2**20
    assert read[4] - read[3] == pytest.approx(128 * per_token)


def test_batches_and_their_knee(setting: Setting, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch, "SIZES", (1, 2, 3))
    sizes, *knee = batch.measure(setting).tables
    assert column(sizes, "sequences") == [1, 2, 3]
    throughput, latency = column(sizes, "throughput, times one"), column(sizes, "latency, times one")
    assert [a * b for a, b in zip(throughput, latency, strict=True)] == pytest.approx([1, 2, 3])
    for table in knee:  # not where NumPy computes
        reads, rate, adds, peak, where = (row[1] for row in table.rows)
        assert where == pytest.approx((reads / 1024 / rate) / (adds / 1000 / peak))

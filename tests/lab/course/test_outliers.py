"""Cures leave an exact product as it is, and each does what it says to one large dimension."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.lab.course.tiny_settings import tiny_setting
from tinyinfer.lab.course import outliers
from tinyinfer.lab.course.outliers import CURES, hadamard, rotate, smoothing
from tinyinfer.quant import relative_error


def spiked(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, weight = rng.standard_normal((16, 96)).astype(np.float32), rng.standard_normal((32, 96)).astype(np.float32)
    x[:, 7] *= 1000
    return x, weight


def test_on_the_vectors_that_have_one_large_dimension():
    x, weight = spiked()
    small = np.delete(x, 7, axis=1), np.delete(weight, 7, axis=1)
    part = x[:, 7:8] @ weight[:, 7:8].T  # the large dimension's, beside which the error must be seen
    error = {
        name: np.linalg.norm(product(x, weight) - x @ weight.T) / np.linalg.norm(small[0] @ small[1].T)
        for name, product in CURES.items()
    }
    assert np.linalg.norm(part) > 50 * np.linalg.norm(small[0] @ small[1].T)
    names = list(CURES)
    assert error[names[4]] == min(error.values())  # what is large is exact
    assert error[names[4]] < 0.02
    assert all(error[name] < error["one scale"] for name in names[3:])


@pytest.mark.parametrize("size", [1, 2, 64, 96, 7])
def test_a_rotation_keeps_lengths_and_products(size: int):
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((5, size)).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(rotate(x) @ rotate(y).T, x @ y.T, atol=1e-5 * size)


def test_hadamard_is_plus_and_minus_one_and_orthogonal():
    matrix = hadamard(16)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(16), atol=1e-6)
    np.testing.assert_allclose(np.abs(matrix), 0.25)
    spread = hadamard(64) @ np.eye(64, dtype=np.float32)[3]
    np.testing.assert_allclose(np.abs(spread), 1 / 8)  # what was in one dimension is in all alike


def test_smoothing_shares_the_difficulty_and_leaves_dimensions_without_any():
    factor = smoothing(np.array([100.0, 4.0, 0.0, 3.0]), np.array([1.0, 4.0, 1.0, 0.0]))
    np.testing.assert_allclose(factor, [10, 1, 1, 1])
    assert 100 / factor[0] == 1 * factor[0]  # at one half, both sides are as large


def test_levels_are_counted():
    x = np.array([[127.0, 0.2, -0.3, 1.0, 2.0]], np.float32)
    assert outliers.levels_used(x) == 4  # 127, 0, 1, 2
    assert outliers.zeros(x) == 0.4


def test_the_experiment(tmp_path: Path):
    finding = outliers.measure(tiny_setting(tmp_path / "model", text="the quick brown fox " * 8))
    by_layer, levels, cures, far = finding.tables
    assert len(by_layer.rows) == 4  # before the layers, and after each of three
    assert [row[3] for row in levels.rows[:4]] == [1579.6, "below 1.6", 12.44, 14]
    assert levels.rows[2][1] == pytest.approx(levels.rows[0][1] / 127)
    assert max(row[1] for row in by_layer.rows) == levels.rows[0][1]
    assert cures.columns[1:] == ("the stream itself", "query, layer 2", "gate, layer 2", "up, layer 2", "down, layer 2")
    assert all(0 < value < 0.2 for row in cures.rows for value in row[1:])
    assert len(far.rows[0]) == len(cures.columns)
    assert sum(count for _, count in finding.drawings[1].lines["dimensions"]) == 64
    assert relative_error(np.ones(3), np.ones(3)) == 0

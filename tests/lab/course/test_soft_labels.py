"""Ratios at temperature 2 are square roots, whatever the model."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.lab.course.tiny_settings import tiny_setting
from tinyinfer.lab.course import soft_labels
from tinyinfer.lab.course.soft_labels import entropy, tokens_within


def test_the_experiment(tmp_path: Path):
    setting = tiny_setting(tmp_path / "model", text="the fox")
    shares, ratios, whole, course = soft_labels.measure(setting).tables
    logits = setting.llm.forward(setting.llm.prompt_ids("the fox"))[-1].astype(np.float64)
    exact = np.sort(np.exp(logits) / np.exp(logits).sum())[::-1]
    assert [row[1] for row in shares.rows] == pytest.approx(exact[:8].tolist())
    for _, cold, warm in ratios.rows:
        assert warm == pytest.approx(math.sqrt(cold))
    assert whole.rows[1][1] > whole.rows[0][1]
    assert round(course.rows[0][2], 2) == course.rows[0][1] == 1.50


def test_entropy_and_tokens_within():
    even = np.full(8, 1 / 8)
    assert entropy(even) == pytest.approx(3)
    assert entropy(np.array([1.0, 0.0])) == 0
    assert tokens_within(np.array([0.1, 0.6, 0.3]), 0.9) in (2, 3)  # 0.6 + 0.3 may round to either side
    assert tokens_within(np.array([0.1, 0.6, 0.3]), 0.5) == 1
    assert tokens_within(np.array([0.1, 0.6, 0.3]), 0.95) == 3

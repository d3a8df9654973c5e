"""Order changes what is kept only where probabilities decide; n-grams are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.lab.course.tiny_settings import tiny_setting
from tinyinfer.lab.course import sampling
from tinyinfer.lab.course.sampling import distinct_n, n_grams, repeated
from tinyinfer.sampling import SamplingParams
from tinyinfer.sampling.sampler import Sampler


def test_n_grams():
    assert n_grams([1, 2, 3], 2) == [(1, 2), (2, 3)]
    assert n_grams([1], 2) == []
    assert distinct_n([[1, 1, 1], [1, 1, 2]], 2) == 2 / 4
    assert distinct_n([], 2) == 0
    assert repeated([1, 2, 1, 2, 1, 2], 2) == pytest.approx(3 / 5)
    assert repeated([1], 2) == 0


def test_the_experiment(tmp_path: Path):
    setting = tiny_setting(tmp_path / "model", text="the fox")
    orders, grid = sampling.measure(setting).tables
    logits = setting.llm.forward(setting.llm.prompt_ids("the fox"))[-1]
    rows = {(row[0], row[1]): row[2:4] for row in orders.rows}
    for (cut, temperature), (first, last) in rows.items():
        if temperature == 1 or cut in ("none", "top-k 40", "top-n-sigma 1"):
            assert first == last
    assert rows["top-k 40", 0.5] == (40, 40)
    assert rows["top-p 0.9", 0.5][0] < rows["top-p 0.9", 0.5][1] < rows["top-p 0.9", 1.5][0]
    chain = Sampler(SamplingParams(temperature=0.5, top_p=0.9, seed=0), len(logits))
    assert rows["top-p 0.9", 0.5][0] == len(chain.distribution(logits).ids)
    assert len(grid.rows) == 9
    assert np.all([0 <= value <= 1 for row in grid.rows for value in row[2:]])

"""Errors are those of the engine's own quantizers, and levels told apart from blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.lab.course.tiny_settings import tiny_setting
from tinyinfer.lab.course import quant
from tinyinfer.lab.course.matrices import projections, some_layers
from tinyinfer.quant import dequantize, quantize, relative_error


def test_normal_float_is_the_engines_where_it_has_the_form():
    weight = np.random.default_rng(0).standard_normal((9, 128)).astype(np.float32)
    back, bits = quant.normal_float(weight, 64)
    np.testing.assert_array_equal(back, dequantize(quantize(weight, "nf4-g64")))
    assert bits == 4.25
    assert quant.normal_float(weight[:, :100], 64)[0].shape == (9, 100)


@pytest.mark.parametrize(
    ("count", "wanted", "layers"), [(24, 2, [6, 18]), (3, 3, [0, 1, 2]), (2, 5, [0, 1]), (1, 2, [0])]
)
def test_some_layers(count: int, wanted: int, layers: list[int]):
    assert some_layers(count, wanted) == layers


def test_the_experiment(tmp_path: Path):
    setting = tiny_setting(tmp_path / "model", full=True)
    whole, apart, tails = quant.measure(setting).tables
    weights = dict(projections(setting.llm.model.tensors, [0, 1, 2]))
    assert len(weights) == 21
    found = {row[0]: row for row in whole.rows}
    errors = [relative_error(w, dequantize(quantize(w, "nf4-g64"))) for w in weights.values()]
    assert found["NF4, groups of 64"][2:] == (pytest.approx(np.mean(errors)), pytest.approx(max(errors)), 0.0952, None)
    assert found["4 bits, groups of 128"][4] == 0.1323
    assert found["4 bits, a scale a tensor"][5] == 0.99
    for row in apart.rows:
        assert row[3] == pytest.approx(1 - row[2] / row[1])
        assert row[3] > 0  # the weights are normal, for which these levels were made
    assert tails.rows[-1] == ("course: one of Qwen2.5-0.5B", 4_358_144, 24.1, 692)
    assert tails.rows[0][2] == pytest.approx(max(np.abs(w).max() / w.std() for w in weights.values()))


def test_short_of_time_it_takes_fewer_layers(tmp_path: Path):
    assert "14 matrices, layers 0, 2" in quant.measure(tiny_setting(tmp_path / "model")).tables[0].title

"""Each scheme at the same bits, judged by the engine's own measures; what is worth what in the model as stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.lab.course.tiny_settings import tiny_setting
from tinyinfer.calibration.text import usual_text
from tinyinfer.lab.course import calibrated
from tinyinfer.lab.course.calibrated import SCHEMES, _rounded
from tinyinfer.quant import dequantize, quantize, relative_error


def test_the_experiment(tmp_path: Path):
    setting = tiny_setting(tmp_path / "model", num_hidden_layers=8)
    finding = calibrated.measure(setting)
    rows = finding.tables[0].rows
    assert [row[0] for row in rows] == ["as stored", *SCHEMES]
    assert {row[1] for row in rows[1:]} == {rows[1][1]}  # bits
    assert rows[0][1:4] == (None, None, None)
    assert "layers 0, 1 alone" in finding.tables[0].title
    assert all(0.02 < row[2] < 0.3 and 0.01 < row[3] < 0.3 and row[7] > 0 for row in rows[1:])
    assert all(row[5] < row[4] < row[6] for row in rows)
    nearest, _, gptq, awq = rows[1:]
    assert gptq[2] > nearest[2] > gptq[3]  # weights move further, products less
    assert awq[3] < nearest[3]
    assert [list(drawing.lines) for drawing in finding.drawings] == [["of weights", "of products"], ["divergence"]]


@pytest.mark.parametrize(("scheme", "exact"), [("nearest, even steps", True), ("GPTQ", False), ("AWQ", False)])
def test_other_layers_stay_as_stored(tmp_path: Path, scheme: str, exact: bool):
    stored = tiny_setting(tmp_path / "model", num_hidden_layers=3).llm
    made = _rounded(stored, [1], *SCHEMES[scheme], usual_text()[:600])
    for name, tensor in stored.checkpoint.tensors.items():
        if ".1." not in name:
            np.testing.assert_array_equal(made.checkpoint.tensors[name], tensor)
    name = "model.layers.1.mlp.down_proj.weight"
    weight = stored.checkpoint.tensors[name]
    nearest = dequantize(quantize(weight, SCHEMES[scheme][0]))
    assert np.array_equal(made.worth(name), nearest) == exact
    assert relative_error(weight, made.worth(name)) < 0.4

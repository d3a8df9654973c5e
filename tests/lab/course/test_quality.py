"""Schemes are those of the engine, intervals those of the books, the text is there and long enough."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.lab.course.tiny_settings import tiny_setting
from tinyinfer.lab import perplexity
from tinyinfer.lab.course import quality
from tinyinfer.lab.course.quality import SCHEMES, held_out, knows, wilson
from tinyinfer.llm import LLM
from tinyinfer.model.tensors import floats
from tinyinfer.quant.study import absmax


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"), [(0, 10, 0, 0.2775), (5, 10, 0.2366, 0.7634), (16, 16, 0.8064, 1)]
)
def test_wilsons_interval(hits: int, count: int, low: float, high: float):
    assert wilson(hits, count) == pytest.approx((low, high), abs=1e-4)


def test_plain_schemes_round_the_matrices_and_nothing_else(tmp_path: Path):
    stored = tiny_setting(tmp_path / "model").llm
    made = LLM(SCHEMES["4 bits, a scale a tensor"](stored.checkpoint)).model.tensors
    before = stored.model.tensors
    for name, tensor in before.layers[1].items():
        if tensor.ndim == 2:
            expected = absmax(tensor, 4)[0].astype(np.float16)
            np.testing.assert_array_equal(floats(made.layers[1][name]), expected)
        else:
            np.testing.assert_array_equal(made.layers[1][name], tensor)
    np.testing.assert_array_equal(floats(made.head), floats(before.head))


def test_the_prose_is_as_long_as_the_course_asks(tmp_path: Path):
    llm = tiny_setting(tmp_path / "model").llm
    whole = held_out(llm, 10**6, None)
    assert len(whole.split()) > 2000  # a tokenizer of words and pieces makes more tokens of them than words
    assert llm.tokenizer.encode(held_out(llm, 100, None)) == llm.tokenizer.encode(whole)[:100]
    assert held_out(llm, 100, "the fox") == "the fox"


def test_the_experiment(tmp_path: Path):
    setting = tiny_setting(tmp_path / "model")
    rows, facts = (table.rows for table in quality.measure(setting).tables)
    text = held_out(setting.llm, 192, None)
    exact = perplexity.measure(setting.llm, text, 128, 64)[0]
    assert rows[0][:2] == ("as stored", exact.perplexity)
    assert math.log(rows[0][3] / rows[0][2]) == pytest.approx(2 * 1.96 * exact.standard_error)
    assert [row[4] for row in rows] == [23.08, 22.96, 24.55, 365e6]
    assert rows[0][5] is None
    assert 0 < rows[1][5] < rows[2][5] < rows[3][5]  # 8 bits, NF4, 4 bits a tensor
    assert rows[1][9] == "142 of 144"
    assert [row[:2] for row in facts][:2] == [("as stored", 1.1), ("int8, a scale a row", 1.1)]


def test_a_fact_is_known_when_the_answer_has_the_word(tmp_path: Path):
    llm = tiny_setting(tmp_path / "model").llm
    said = llm.generate("The", temperature=0.0, max_tokens=6, repetition_penalty=1.1).text.lower()
    assert knows(llm, "The", f"nothing|{said[:2]}", 1.1) == bool(said)
    assert not knows(llm, "The", "no such word", 1.1)

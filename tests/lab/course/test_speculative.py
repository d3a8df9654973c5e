"""The formula is the course's, and what is counted is what the engine reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.course.tiny_settings import tiny_setting
from tinyinfer.lab.course import speculative
from tinyinfer.lab.course.speculative import expected_speedup, expected_tokens


def test_the_courses_figures():
    table = speculative._formula()
    pairs = [(row[3], row[4]) for row in table.rows if row[4] is not None]
    assert [(round(found, 2), course) for found, course in pairs] == [(3.40, 3.40), (0.79, 0.79)]


def test_the_ends_of_the_formula():
    assert expected_tokens(1, 5) == 6
    assert expected_tokens(0, 5) == 1
    assert expected_tokens(0.5, 1) == 1.5  # the draft half of the time, and what is drawn after it
    assert expected_speedup(0.9, 0) == 1


def test_what_is_counted(tmp_path: Path):
    setting = tiny_setting(tmp_path / "model", text="the fox and the fox and the fox and")
    table = speculative.measure(setting).tables[1]
    assert [row[0] for row in table.rows] == list(speculative.DRAFTERS)
    wish = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False}
    prompt = "the fox and the fox and the fox and"
    done = setting.llm.generate(prompt, max_tokens=32, ignore_eos=True, temperature=0, speculate=wish).speculation
    row = table.rows[0]
    assert row[3] == done.proposed / done.drafts
    assert row[4] == done.alpha
    assert row[8] == pytest.approx(row[5] / row[7])
    assert row[6] == pytest.approx(1 + done.accepted / done.drafts, abs=1 / done.drafts)

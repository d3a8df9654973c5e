"""What the course fixes by formula comes out to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_models import random_model
from tinyinfer.lab.course.catalogue import experiment
from tinyinfer.lab.course.finding import Table
from tinyinfer.lab.course.setting import Setting


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    random_model(tmp_path / "model")
    return Setting(str(tmp_path / "model"))


def against_course(table: Table, column: str) -> list[tuple]:
    """Pairs of what came out and what the course says, where it says anything."""
    here, there = table.columns.index(column), list(table.columns).index("course")
    return [(row[here], row[there]) for row in table.rows if row[there] is not None]


@pytest.mark.parametrize(
    ("name", "number", "column", "count"),
    [("kv", 0, "formula", 3), ("kv", 1, "MiB", 5), ("fit", 0, "tokens", 3)],
)
def test_figures_are_the_courses(setting: Setting, name: str, number: int, column: str, count: int):
    pairs = against_course(experiment(name).run(setting).tables[number], column)
    assert len(pairs) == count
    assert all(found == course for found, course in pairs), pairs


def test_the_bytes_held_are_those_of_the_formula(setting: Setting):
    for row in experiment("kv").run(setting).tables[0].rows:
        assert row[3] in (None, row[2])


def test_heads_share_and_latents_have_a_size_of_their_own(setting: Setting):
    (full, grouped, single, paper, kept) = experiment("kv").run(setting).tables[2].rows
    # three layers of six heads of ten, two of them with keys and values, 2 bytes a number
    assert [full[1:3], grouped[1:3], single[1:3]] == [(6, 720), (2, 240), (1, 120)]
    # DeepSeek-V2: 60 layers of 128 heads of 128, whose latents are 512 + 64 numbers
    assert full[4] == 60 * 2 * 128 * 128 * 2
    assert paper[4] == 60 * 576 * 2 == kept[4] // 2

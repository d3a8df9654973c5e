"""Tokens are the tokenizer's own counts; graphemes are what people see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.course.tiny_settings import tiny_setting
from tinyinfer.lab.course import tokens
from tinyinfer.lab.course.tokens import TEXTS, count_graphemes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0), ("abc", 3), ("e\u0301", 1), ("👩‍👩‍👧‍👦", 1), ("👍🏽", 1), ("🇺🇦🇫🇷", 2), ("☀️", 1), ("की", 1), ("น้ำ", 2),
        ("한국", 2), ("a\u200db", 1),
    ],
)  # fmt: skip
def test_graphemes(text: str, count: int):
    assert count_graphemes(text) == count


def test_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINYINFER_HOME", str(tmp_path / "nothing"))
    setting = tiny_setting(tmp_path / "model", text="the fox")
    counts, template, words, given = tokens.measure(setting).tables
    rows = {row[1]: row for row in counts.rows}
    assert rows["English"][7] == 1
    assert rows["Russian"][4] == len(setting.llm.tokenizer.encode(TEXTS["Russian"]))
    assert rows["Russian"][7] == rows["Russian"][4] / rows["English"][4]
    assert rows["Russian"][8] == "2 to 4 times"
    assert rows["emoji"][7] is None
    chat = len(setting.llm.chat_ids([{"role": "user", "content": "Hello"}]))
    assert template.rows == [(setting.model, 5, chat, chat - 5)]
    assert len(words.rows) == 4
    assert given.rows[0][1:4] == (7, 7, len(setting.llm.tokenizer.encode("the fox")))


def test_a_tokenizer_that_two_models_share_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINYINFER_HOME", str(tmp_path))
    tiny_setting(tmp_path / "one")
    setting = tiny_setting(tmp_path / "two")
    assert len(tokens.measure(setting).tables[1].rows) == 1

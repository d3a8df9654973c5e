"""Tables of text."""

from __future__ import annotations

from tinyinfer.cli.tables import markdown_table, plain_table


def test_columns_line_up_with_numbers_to_the_right():
    shown = plain_table(["what", "n"], [["one", "1"], ["a longer one", "1,000"]])
    assert shown.splitlines() == ["what              n", "one               1", "a longer one  1,000"]


def test_nothing_trails():
    assert plain_table(["a", ""], [["long", ""]]).splitlines() == ["a", "long"]


def test_markdown_has_a_rule_and_escapes_its_bars():
    shown = markdown_table(["what", "n"], [["a|b", "1"]])
    assert shown.splitlines() == ["| what | n |", "| --- | ---: |", r"| a\|b | 1 |"]


def test_without_rows_there_are_headings():
    assert plain_table(["a", "b"], []) == "a  b"
    assert markdown_table(["a", "b"], []).count("\n") == 1

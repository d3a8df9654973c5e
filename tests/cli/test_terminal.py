"""How turns are read, from any source of lines."""

import pytest

from tinyinfer.cli.terminal import CONTINUED, PROMPT, read_turn


def turns(*lines):
    """Every turn that these lines make, and the prompts that were shown."""
    left, prompts = list(lines), []

    def read_line(prompt):
        prompts.append(prompt)
        return left.pop(0) if left else None

    found = []
    while (turn := read_turn(read_line)) is not None:
        found.append(turn)
    return found, prompts


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], []),
        (["hello"], ["hello"]),
        (["a", "", "b"], ["a", "", "b"]),
        (["  def f():"], ["  def f():"]),
        (["one\\", "two\\", "three", "next"], ["one\ntwo\nthree", "next"]),
        (["cut off\\"], ["cut off\n"]),
        (['"""first', "second", 'third"""', "next"], ["first\nsecond\nthird", "next"]),
        (['"""', "first", "", "second", '"""', "next"], ["first\n\nsecond", "next"]),
        (['"""on one line"""', "next"], ["on one line", "next"]),
        (['"""never ended', "second"], ["never ended\nsecond"]),
        (['"""', "ends in \\", '"""'], ["ends in \\"]),
        (['say "hi"'], ['say "hi"']),
    ],
)
def test_lines_become_turns(lines, expected):
    assert turns(*lines)[0] == expected


def test_a_continued_line_has_another_prompt():
    assert turns("a\\", "b")[1] == [PROMPT, CONTINUED, PROMPT]

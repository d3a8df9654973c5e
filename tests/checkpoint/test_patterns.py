"""Expressions match what Python's `re` says they match, and none can take long."""

from __future__ import annotations

import random
import re
import time

import pytest

from tinyinfer.checkpoint.patterns import Unreadable, ends, matches_all

ATOMS = [
    "a", "b", "c", "_", ".", "[ab]", "[^a]", "[a-c]", "[]a]", "[^]]", "[\\d_]", "[a-]", "\\d", "\\W", "\\.", "\\b", "^",
    "$", "(a|b)", "(?:ab|)", "(a*b)", "(|a)", "()",
]  # fmt: skip
TIMES = ["", "", "", "*", "+", "?", "*?", "+?", "{2}", "{1,2}", "{,2}", "{1,}"]


def test_as_re_says():
    rng = random.Random(1)
    checked = 0
    while checked < 5000:
        parts = (
            rng.choice(ATOMS) + rng.choice(TIMES) + rng.choice(["", "", "", "|"]) for _ in range(rng.randint(1, 5))
        )
        pattern = "".join(parts)
        text = "".join(rng.choice("abc._1]-") for _ in range(rng.randint(0, 7)))
        try:
            expected = bool(re.fullmatch(pattern, text))
        except re.error:  # it will not repeat an anchor
            continue
        assert matches_all(pattern, text) == expected, (pattern, text)
        checked += 1


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (r".*\.(?:self_attn\.(?:qkv|o)_proj|mlp\.gate_up_proj)", "model.layers.0.self_attn.o_proj", True),
        (r".*\.(?:self_attn\.(?:qkv|o)_proj|mlp\.gate_up_proj)", "model.layers.0.self_attn.k_proj", False),
        (
            r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:k_proj|v_proj).*?)"
            r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:k_proj|v_proj)))",
            "model.layers.12.self_attn.v_proj",
            True,
        ),
    ],
)
def test_expressions_of_published_adapters(pattern: str, name: str, expected: bool):
    assert matches_all(pattern, name) is expected is bool(re.fullmatch(pattern, name))


def test_where_matches_end():
    assert ends("a+", "aaab", {0, 2}) == {1, 2, 3}
    assert ends("a|ab", "ab", {0}) == {1, 2}
    assert ends("b", "ab", {0}) == set()


@pytest.mark.parametrize(
    "pattern",
    ["(a*)*" * 100 + "b", "((((((a*)*)*)*)*)*)*b", "(a|a)*" * 200 + "b", "(((((a{200}){200}){200}){200}){200})b",
     "((((((){200}){200}){200}){200}){200})b", "(((((a?b?){2}){3}){5}){7}){200}b" * 20, "(|a)" * 400 + "b"],
    ids=range(7),
)  # fmt: skip
def test_none_takes_long(pattern: str):
    """`re` would take years for most of these."""
    began = time.perf_counter()
    assert not matches_all(pattern, "a" * 60)
    assert time.perf_counter() - began < 5  # a few milliseconds each, on a machine that does something else


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a(", "nothing closes"), ("a)", "nothing opens"), ("*a", "after nothing"), ("a**", "repetition"),
        ("(?=a)", "a group with '?='"), ("(?i)a", "'?i'"), (r"(a)\1", r"escape \1"), ("[a", "more was to come"),
        ("\\", "more was to come"), ("a{300}", "at most 200"), ("a{3,2}", "no smaller"),
        ("a" * 3000, "3,000 characters"), ("(" * 20 + ")" * 20, "9 deep"), ("(?P<n>a)", "'?P'"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(pattern: str, found: str):
    with pytest.raises(Unreadable) as error:
        matches_all(pattern, "a")
    assert found in str(error.value)

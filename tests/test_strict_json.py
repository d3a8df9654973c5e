"""JSON in one way only: what Python's own reader lets through beyond it is refused, and so is what breaks it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyinfer.strict_json import parse_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


class Wrong(Exception):
    pass


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), VALUES, max_size=4))
def test_what_json_writes_is_read(value: dict):
    for escaped in (True, False):
        assert parse_object(json.dumps(value, ensure_ascii=escaped).encode("utf-8", "replace"), Wrong) is not None
    assert parse_object(json.dumps(value).encode(), Wrong) == value


@pytest.mark.parametrize(
    ("raw", "reason", "key"),
    [
        (b"", "not JSON: Expecting value at character 0", None),
        (b'{"a": 1} x', "not JSON: Extra data at character 9", None),
        (b"[1]", "expected a JSON object, found list", None),
        (b"null", "expected a JSON object, found NoneType", None),
        (b'{"a": "\xff"}', "not UTF-8 text: byte 0xff at 7", None),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON: Unexpected UTF-8 BOM", None),
        (b'{"a": NaN}', "not JSON: NaN is no number there", None),
        (b'{"a": [-Infinity]}', "not JSON: -Infinity is no number there", None),
        (b'{"a": {"b": 1, "c": 2, "b": 1}}', "the key 'b' stands twice in one object", "b"),
        (b'{"' + b"k" * 200 + b'": 1, "' + b"k" * 200 + b'": 2}', "stands twice", "k" * 80),
        (b'{"a": ' + b"[" * 200_000, "not JSON that can be read: it is nested too deeply", None),
        (b'{"a": 1' + b"0" * 5000 + b"}", "not JSON that can be read: ", None),
    ],
)
def test_anything_else_is_refused_with_what_the_caller_makes_of_it(raw: bytes, reason: str, key: str | None):
    with pytest.raises(Wrong) as found:
        parse_object(raw, Wrong)
    assert reason in found.value.args[0]
    assert found.value.args[1] == key

"""The file of requests: every line becomes a request or an error that says what is wrong with it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyinfer.batch import requests
from tinyinfer.batch.requests import count_requests, read_requests

BODY = {"model": "m", "prompt": "a", "max_tokens": 3}


def line(custom_id="one", **changes):
    found = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": BODY} | changes
    return json.dumps({key: value for key, value in found.items() if value is not ...}).encode()


def read(tmp_path, *lines, end=b"\n"):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(lines) + end)
    found = list(read_requests(path))
    assert count_requests(path) == len(found)
    return found


@pytest.mark.parametrize("end", [b"\n", b"", b"\r\n", b"\n\n  \n"])
def test_a_line_becomes_a_request(tmp_path, end):
    (found,) = read(tmp_path, line("eins", url="/v1/chat/completions"), end=end)
    assert (found.line, found.custom_id, found.url, found.body) == (1, "eins", "/v1/chat/completions", BODY)
    assert found.error is None


def test_blank_lines_are_none_but_count_as_lines(tmp_path):
    found = read(tmp_path, b"", line("a"), b"  ", line("b"))
    assert [(request.line, request.custom_id) for request in found] == [(2, "a"), (4, "b")]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (found,) = read(tmp_path, b"\xef\xbb\xbf" + line())
    assert found.error is None


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"{", "not JSON"),
        (b"[1]", "expected a JSON object, found list"),
        (b'{"custom_id": "a\xff"}', "not UTF-8 text: byte 0xff at 16"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"custom_id": 1' + b"0" * 5000 + b"}", "not JSON that can be read"),
        (b'{"custom_id": "a", "custom_id": "b"}', "'custom_id' stands twice"),
        (line(body={"temperature": float("nan")}), "NaN"),
        (line(...), "custom_id should be"),
        (line(7), "custom_id should be"),
        (line(""), "custom_id should be"),
        (line("x" * 513), "custom_id should be"),
        (line(method="GET"), 'method should be "POST", found "GET"'),
        (line(url="/v1/embeddings"), "url should be one of"),
        (line(url=["/v1/completions"]), "url should be one of"),
        (line(body=...), "body should be a JSON object, found null"),
        (line(body=[]), "body should be a JSON object, found []"),
        (line(priority=1), "there is no field 'priority'"),
    ],
)
def test_a_bad_line_says_what_is_wrong_and_the_next_is_read(tmp_path, raw, told):
    bad, good = read(tmp_path, raw, line("next"))
    assert told in str(bad.error)
    assert str(bad.error).startswith("line 1: ")
    assert (good.error, good.custom_id) == (None, "next")


def test_a_line_that_is_too_long_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "LONGEST_LINE", 1000)
    bad, good = read(tmp_path, line("long", body={"prompt": "x" * 5000}), line("next"))
    assert "longer than 1,000 bytes" in str(bad.error)
    assert good.custom_id == "next"
    fits = line("fits", body={"prompt": "x" * 1000})
    monkeypatch.setattr(requests, "LONGEST_LINE", len(fits) + 1)  # the newline counts
    assert read(tmp_path, fits)[0].error is None


def test_a_custom_id_that_was_there_before_is_an_error_of_the_second_line(tmp_path):
    first, second, third = read(tmp_path, line("a"), line("a"), line("a"))
    assert first.error is None
    assert "line 2: custom_id 'a' was given before" in str(second.error)
    assert second.error.parameter == "custom_id"
    assert len({first.id, second.id, third.id}) == 3


def test_a_request_is_known_again_by_what_it_says_and_a_bad_line_by_its_place_too(tmp_path):
    before = read(tmp_path, line("a"), line("b"), b"{")
    moved = read(tmp_path, line("b"), b"", line("a"), b"{")
    assert [before[0].id, before[1].id] == [moved[1].id, moved[0].id]
    assert before[2].id != moved[2].id
    assert read(tmp_path, line("a", body={"prompt": "other"}))[0].id != before[0].id


@given(raw=st.binary(max_size=200).map(lambda raw: raw.replace(b"\n", b"")))
@settings(max_examples=200, deadline=None)
def test_no_bytes_do_more_than_be_refused(tmp_path_factory, raw):
    found = read(tmp_path_factory.mktemp("fuzz"), raw, line("next"))
    assert found[-1].custom_id == "next"
    assert all(request.error for request in found[:-1])

"""The file of answers: what was written stays, what was half-written goes, and nothing else is touched."""

import json
import subprocess
import sys

import pytest

from tests.batch.test_requests import line, read
from tests.cli.commands import environment
from tinyinfer.batch import Answers
from tinyinfer.errors import BadRequest


@pytest.fixture
def asked(tmp_path):
    return read(tmp_path, line("a"), line("b"), b"{")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


def write(out, *requests, status=200):
    with Answers(out) as answers:
        for request in requests:
            answers.write(request, status, {"said": "é \u2028 \n"})


def test_an_answer_is_a_line_in_openais_form(out, asked):
    write(out, asked[0])
    (found,) = out.read_text().splitlines()
    found = json.loads(found)
    assert found["custom_id"] == "a"
    assert found["id"].startswith("batch_req_")
    assert found["error"] is None
    assert found["response"]["status_code"] == 200
    assert found["response"]["body"] == {"said": "é \u2028 \n"}
    assert found["response"]["request_id"]


def test_an_answer_is_in_the_file_as_soon_as_it_is_written(out, asked):
    with Answers(out) as answers:
        answers.write(asked[0], 200, {})
        assert out.read_bytes().count(b"\n") == 1


def test_what_was_answered_is_known_in_the_next_run(out, asked):
    write(out, asked[0])
    write(out, asked[2], status=400)
    with Answers(out) as answers:
        assert [answers.has(request) for request in asked] == [True, False, True]
        assert len(answers) == 2
    assert out.read_bytes().count(b"\n") == 2


def test_a_line_cut_anywhere_is_cut_off(out, asked):
    write(out, asked[0], asked[1])
    whole = out.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        out.write_bytes(whole[:cut])
        with Answers(out) as answers:
            assert answers.has(asked[0])
            assert not answers.has(asked[1])
        assert out.read_bytes() == whole[:first]


@pytest.mark.parametrize(
    "said",
    [
        b"notes of mine, without a newline",
        b'{"a": 1}\n',
        b'{"id": "batch_req_1", "custom_id": "a", "response": null}\n',
        b'{"id": "batch_req_1", "custom_id": 7, "response": {"status_code": 200}}\n',
        b'{"custom_id": "a", "id": "batch_req_1", "response": {"status_code": 200}}\n',
        b"\n",
    ],
)
@pytest.mark.parametrize("after_an_answer", [False, True])
def test_a_file_that_holds_anything_else_is_refused_and_left_alone(out, asked, said, after_an_answer):
    write(out, asked[0])
    said = out.read_bytes() + said if after_an_answer else said
    out.write_bytes(said)
    with pytest.raises(BadRequest, match=f"line {1 + after_an_answer} is no answer"), Answers(out):
        pass
    assert out.read_bytes() == said


def test_an_answer_that_stands_twice_is_told(out, asked):
    write(out, asked[0])
    out.write_bytes(out.read_bytes() * 2)
    with pytest.raises(BadRequest, match="line 2 answers a request that was answered before"), Answers(out):
        pass


def test_answers_to_another_file_of_requests_are_not_mixed_with_these(out, asked, tmp_path):
    write(out, asked[0])
    (other,) = read(tmp_path, line("a", body={"prompt": "other"}))
    with Answers(out) as answers, pytest.raises(BadRequest, match="custom_id 'a' of another request than line 1"):
        answers.has(other)


def test_a_line_that_was_refused_may_be_mended_and_asked_again(out, asked, tmp_path):
    write(out, asked[0], status=400)
    (mended,) = read(tmp_path, line("a", body={"prompt": "other"}))
    with Answers(out) as answers:
        assert not answers.has(mended)


def test_two_jobs_do_not_write_the_same_file(out):
    held = (
        "import pathlib, sys; from tinyinfer.batch import Answers\n"
        "with Answers(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", held, str(out)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment()}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BadRequest, match="another batch job is writing this file"), Answers(out):
            pass
        other.kill()
        other.wait()
        with Answers(out):  # a killed job holds nothing
            pass

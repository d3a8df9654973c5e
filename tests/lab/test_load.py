"""The load test, against a small server that says whatever a test wants."""

import asyncio
import json
import re
import statistics

import numpy as np
import pytest

from tests.cli.commands import refused, tinyinfer
from tests.lab.stream_server import ANSWER, answer, event, serving, usage
from tests.server.served import HELLO, served
from tinyinfer.errors import BadRequest
from tinyinfer.lab.http_client import target_of
from tinyinfer.lab.load import Mix, Sent, first_model, plan, report, run


def test_arrivals_are_seeded_and_come_by_chance_at_the_rate_asked_for():
    first, again = (plan(Mix(), 5, 4000, 1, "m") for _ in range(2))
    assert first == again
    assert plan(Mix(), 5, 4000, 2, "m") != first
    gaps = np.diff([0, *(arrival.at for arrival in first)])
    # exponential: mean and deviation are 1 / rate; of 4000, each is within 6 of its standard errors
    assert abs(gaps.mean() * 5 - 1) < 0.1
    assert abs(gaps.std() * 5 - 1) < 0.15


def test_lengths_are_many_short_ones_and_a_few_long_ones_within_the_limits():
    mix = Mix(prompt_words=50, most_prompt_words=300, answer_tokens=30, most_answer_tokens=100)
    arrivals = plan(mix, 1, 2000, 0, "m")
    words = [len(arrival.body["messages"][0]["content"].split()) for arrival in arrivals]
    tokens = [arrival.body["max_tokens"] for arrival in arrivals]
    assert 44 < statistics.median(words) < 56
    assert 27 < statistics.median(tokens) < 33
    assert (min(words) >= 1, max(words), max(tokens)) == (True, 300, 100)
    assert sum(tokens) / len(tokens) > 31  # the mean lies above the median


def test_a_shared_system_message_is_the_same_in_all():
    arrivals = plan(Mix(shared_words=20, extra={"top_k": 3}), 1, 10, 0, "m")
    systems = {arrival.body["messages"][0]["content"] for arrival in arrivals}
    assert len(systems) == 1
    assert len(systems.pop().split()) == 20
    assert all(arrival.body["top_k"] == 3 and arrival.body["model"] == "m" for arrival in arrivals)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(BadRequest, match="rate should be"):
        plan(Mix(), rate, 1, 0, "m")


def send(say, count=1, timeout=20, **how):
    with serving(say, **how) as (url, asked):
        arrivals = plan(Mix(prompt_words=3), 1000, count, 0, "m")
        sent = asyncio.run(run(target_of(url), arrivals, timeout))
        assert len(asked) == count
    return sent


@pytest.mark.parametrize("chunks", [True, False])
def test_times_and_counts_of_an_answer(chunks):
    (sent,) = send(lambda i, body: answer(ANSWER, chunks=chunks))
    assert (sent.error, sent.status, sent.pieces) == (None, 200, 4)
    assert (sent.prompt_tokens, sent.cached_tokens, sent.completion_tokens) == (7, 2, 4)
    assert 0 < sent.ttft <= sent.latency
    assert sent.tpot == (sent.last - sent.first) / 3


def test_events_may_be_cut_anywhere():
    raw = b"".join([event("é"), usage(), b"data: [DONE]\n\n"]).replace(b"\n", b"\r\n")
    (sent,) = send(lambda i, body: answer([raw[j : j + 1] for j in range(len(raw))]))
    assert (sent.error, sent.pieces, sent.completion_tokens) == (None, 1, 4)


def test_the_clock_runs_from_when_a_request_was_to_be_sent():
    one = Sent(at=2.0, first=5.0, last=8.0, end=9.0, completion_tokens=4)
    assert (one.ttft, one.tpot, one.latency) == (3.0, 1.0, 7.0)
    assert Sent(at=2.0, first=5.0, last=5.0, end=9.0, completion_tokens=1).tpot is None


def test_requests_do_not_wait_for_each_other():
    sent = send(lambda i, body: answer(ANSWER), count=20, together=20)
    assert [one.error for one in sent] == [None] * 20


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (answer(b"{}", "429 Too Many Requests"), "status 429"),
        (answer(b"{}", "503 Service Unavailable", chunks=False), "status 503"),
        (answer(ANSWER[:-1]), r"the stream ended without \[DONE\]"),
        (answer([*ANSWER[:3], b'data: {"error": {"message": "no"}}\n\n']), "an error in the stream"),
        (answer([b"data: {\n\n"]), "no chunk of a chat"),
        (answer([b'data: {"choices": 3}\n\n']), "no chunk of a chat"),
        ((answer(ANSWER)[0], answer(ANSWER)[1][:60]), "ended in the middle"),
        ((answer(ANSWER)[0], b"xyz\r\n"), "a length of 'xyz'"),
        ((b"", b""), "ended before the answer"),
        ((b"SSH-2.0-x\r\n", b""), "not HTTP"),
        ((b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 0, b"x" * (2**20 + 100)), "line of more than"),
    ],
)
def test_what_goes_wrong_is_counted_and_not_timed(said, error):
    sent = send(lambda i, body: said if i == 0 else answer(ANSWER), count=3)
    found = report(sent)
    ((told, count),) = found.errors.items()
    assert count == 1
    assert re.search(error, told)
    assert len(found.answered) == 2
    assert found.completion_tokens == 8


def test_an_answer_that_never_ends_is_an_error():
    (sent,) = send(lambda i, body: (answer(ANSWER)[0], b"6\r\n"), timeout=0.3, pause=2)
    assert sent.error == "no end after 0.3 s"


def test_a_server_that_is_not_there_is_an_error_of_each():
    arrivals = plan(Mix(), 1000, 2, 0, "m")
    sent = asyncio.run(run(target_of("http://127.0.0.1:9"), arrivals, 5))
    assert all(one.error.startswith("no connection") for one in sent)
    assert report(sent).ttft is None


def test_percentiles_are_those_of_the_requests_that_were_answered():
    sent = [Sent(at=i, first=i + i / 100, last=i + 1, end=i + 2, completion_tokens=3) for i in range(101)]
    found = report([*sent, Sent(at=5, error="status 500", end=6.0)])
    assert found.ttft == pytest.approx([0.5, 0.95, 0.99, 1.0])
    assert (found.completion_tokens, found.seconds) == (303, 102)


def test_the_model_is_the_first_that_the_server_has():
    with serving(lambda i, body: answer(ANSWER)) as (url, _):
        assert asyncio.run(first_model(target_of(url + "/v1/"))) == "fake"
    with pytest.raises(BadRequest, match=r"no server at 127\.0\.0\.1:9"):
        asyncio.run(first_model(target_of("http://127.0.0.1:9")))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "ftp://a", "http://", "http://a:x", "http://a:99999", "http://a/?q=1", "http://a/ b"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(BadRequest):
        target_of(url)


def test_our_own_server_is_understood():
    with served() as server:
        target = target_of(server.url)
        assert asyncio.run(first_model(target)) == "chain"
        mix = Mix(prompt_words=5, most_prompt_words=20, shared_words=20)
        sent = asyncio.run(run(target, plan(mix, 100, 30, 0, "chain"), 60))
    found = report(sent)
    assert found.errors == {}
    for one, arrival in zip(sent, plan(mix, 100, 30, 0, "chain"), strict=True):
        assert one.completion_tokens == min(arrival.body["max_tokens"], len(HELLO) + 1)  # it ends with one of its own
        assert one.pieces == min(arrival.body["max_tokens"], len(HELLO))
        assert one.prompt_tokens > 20
        assert one.at < one.first <= one.last <= one.end
    assert found.cached_tokens > 0


def test_the_command_prints_a_table_or_json():
    with serving(lambda i, body: answer(ANSWER)) as (url, asked):
        done = tinyinfer("loadtest", url, "--rate", "200", "--requests", "5", "-q")
        assert (done.returncode, done.stderr) == (0, "")
        for word in ("p50", "p95", "p99", "TTFT", "TPOT", "answered    5 of 5", "tokens      20", "10 of them cached"):
            assert word in done.stdout
        done = tinyinfer("loadtest", url, "--rate", "200", "--requests", "5", "-q", "--json", "--extra", '{"top_k": 2}')
    found = json.loads(done.stdout)
    assert (found["model"], found["answered"], found["errors"], len(found["requests"])) == ("fake", 5, {}, 5)
    assert found["ttft"]["p50"] <= found["ttft"]["p99"] <= found["ttft"]["longest"]
    assert [body.get("top_k") for body in asked] == [None] * 5 + [2] * 5


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["nonsense"], "expected an address"),
        (["http://127.0.0.1:9"], "no server at"),
        (["http://127.0.0.1:9", "--rate", "0", "--model", "m"], "rate should be"),
        (["http://127.0.0.1:9", "--requests", "0", "--model", "m"], "requests should be"),
        (["http://127.0.0.1:9", "--timeout", "0"], "timeout should be"),
        (["http://127.0.0.1:9", "--prompt-words", "0"], "--prompt-words is too small"),
        (["http://127.0.0.1:9", "--extra", "[]"], "--extra should be"),
        (["http://127.0.0.1:9", "--extra", "{"], "--extra is not JSON"),
        (["http://127.0.0.1:9", "--plot", "a.gif"], "should end in one of"),
    ],
)
def test_wrong_usage_is_one_sentence(argv, told):
    assert told in refused(tinyinfer("loadtest", *argv))


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from tinyinfer.lab.load_plot import draw

    sent = [Sent(at=i / 10, first=i / 10 + 0.1, last=i / 10 + 1, end=i / 10 + 1, completion_tokens=3) for i in range(9)]
    draw(report([*sent, Sent(at=0.5, error="status 500", end=0.6)]), tmp_path / "load.svg", "a title")
    assert "<svg" in (tmp_path / "load.svg").read_text()
    draw(report([Sent(at=0.5, error="status 500", end=0.6)]), tmp_path / "load.png", "only errors")
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")

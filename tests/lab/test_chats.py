"""Chats that go on side by side: what they send, and what is counted."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.lab.stream_server import ANSWER, answer, serving
from tests.server.served import chain_llm, served
from tinyinfer.lab.chats import Heard, Talk, converse, percentile
from tinyinfer.lab.http_client import target_of
from tinyinfer.lab.load import Sent

SMALL = Talk(chats=3, turns=2, system_words=20, question_words=2, tokens=6)


def talk(url: str, seed: int = 1) -> Heard:
    return asyncio.run(converse(target_of(url), "m", SMALL, seed))


def test_each_turn_brings_all_that_was_said_and_a_seed_gives_the_same_words():
    with serving(lambda i, body: answer(ANSWER)) as (url, asked):
        talk(url), talk(url), talk(url, seed=2)
    first, again, other = (sorted(asked[i : i + 6], key=str) for i in (0, 6, 12))
    assert first == again != other
    for body in first:
        assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (6, 0, True)
    later = [body["messages"] for body in first if len(body["messages"]) > 2]
    assert len(later) == 3
    assert all([message["role"] for message in said] == ["system", "user", "assistant", "user"] for said in later)
    assert all(said[2]["content"] == "four" for said in later)
    assert len({said[0]["content"] for said in later}) == 1
    assert len({said[1]["content"] for said in later}) == 3


def test_a_system_message_may_be_the_same_for_all_seeds():
    with serving(lambda i, body: answer(ANSWER)) as (url, asked):
        for seed in (1, 2):
            asyncio.run(converse(target_of(url), "m", SMALL, seed, system_seed=0))
    assert len({body["messages"][0]["content"] for body in asked}) == 1
    assert len({body["messages"][1]["content"] for body in asked}) == 6


def test_what_our_server_says_has_as_many_tokens_as_were_asked_for():
    with served(chain_llm(context=1024)) as server:
        heard = asyncio.run(converse(target_of(server.url), "chain", SMALL, 0))
    assert heard.errors == []
    assert [len(turn) for turn in heard.turns] == [3, 3]
    assert heard.tokens == 3 * 2 * 6
    assert heard.tokens_per_second > 0
    assert all(one.cached_tokens for one in heard.turns[1])
    assert all(len(one.times) == one.pieces and one.times == sorted(one.times) for one in heard.sent)


def test_a_chat_whose_answer_fails_ends_there():
    with serving(lambda i, body: answer(ANSWER if i else b"", "200 OK" if i else "500 No")) as (url, asked):
        heard = talk(url)
    assert heard.errors == ["status 500"]
    assert [len(turn) for turn in heard.turns] == [3, 2]
    assert len(asked) == 5


def test_tokens_a_second_run_to_the_last_end():
    turns = [[Sent(0.0, end=2.0, completion_tokens=6)], [Sent(2.0, end=4.0, completion_tokens=6)]]
    assert Heard(turns).tokens_per_second == 3


def test_percentiles_leave_out_what_is_no_number():
    assert percentile([1.0, None, 3.0], 50) == pytest.approx(2)
    assert math.isnan(percentile([None], 50))

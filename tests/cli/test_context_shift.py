"""`--context-shift`: texts that go on where the context is full, and say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chain_models import say, write_chain_model
from tests.cli.commands import refused, tinyinfer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_chain_model(folder / "endless", say("talk ", end=None), context=100)
    write_chain_model(folder / "hi", say("Hi!"), context=60)
    return folder


def test_run_goes_on_and_says_what_it_no_longer_sees(models: Path):
    argv = ["run", models / "endless", "Hello", "-n", "150", "-q", "--context-shift"]
    done = tinyinfer(*argv)
    assert (done.returncode, done.stdout) == (0, 30 * "talk " + "\n")
    assert "(the context was full: the model no longer sees" in done.stderr
    assert "those after the first 4)" in done.stderr
    assert "after the first 20)" in tinyinfer(*argv, "--keep", "20").stderr
    record = json.loads(tinyinfer(*argv, "--json").stdout)
    total = len(record["prompt_ids"]) + 150
    assert record["dropped_tokens"] == 48 * -(-(total - 1 - 100) // 48)
    assert (record["sampling"]["context_full"], record["sampling"]["context_keep"]) == ("roll", 4)
    stopped = json.loads(tinyinfer(*argv[:-1], "--json").stdout)
    assert (len(stopped["prompt_ids"]) + len(stopped["ids"]), stopped["dropped_tokens"]) == (100, 0)


def test_a_chat_goes_on_past_its_context(models: Path):
    turns = 12 * "Hello\n"
    done = tinyinfer("chat", models / "hi", "--context-shift", input=turns)
    assert (done.returncode, done.stdout) == (0, 12 * "Hi!\n")
    assert done.stderr.count("the model no longer sees") >= 6
    stopped = tinyinfer("chat", models / "hi", input=turns)
    assert stopped.returncode == 2
    assert "more than the context of 60" in stopped.stderr


def test_what_is_not_possible_is_refused(models: Path):
    said = refused(tinyinfer("run", models / "hi", "Hello", "--context-shift", "--keep", "59"))
    assert "--keep should be a number up to 58" in said
    said = refused(tinyinfer("run", models / "hi", "Hello", "--keep", "5"))
    assert "--keep says nothing by itself: give --context-shift too" in said
    for command in (["run", models / "hi", "Hello"], ["chat", models / "hi"]):
        said = refused(tinyinfer(*command, "--context-shift", "--speculate", "ngram"))
        assert "a text that outgrows its context is not drafted" in said

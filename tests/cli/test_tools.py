"""Tools, reasoning and whole characters on the command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.chain_models import TEMPLATE, say, script, write_chain_model
from tests.cli.commands import COMMAND, environment, refused
from tinyinfer.cli import main

HERMES = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{# <think> #}" + TEMPLATE
CALL = ("<tool_call>", '{"name": "f", "arguments": {"a": [1]}}', "</tool_call>")
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CALLED = [{"name": "f", "arguments": {"a": [1]}}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_chain_model(folder / "calls", template=HERMES, **script(*CALL))
    write_chain_model(folder / "speaks and calls", template=HERMES, **script("Wait.\n", *CALL))
    write_chain_model(folder / "thinks", template=HERMES, **script("<think>", "hm", "</think>\n\n", "Yes."))
    write_chain_model(folder / "plain", say("Hi!"))
    write_chain_model(folder / "bare", say("Hi!"), template=None)
    (folder / "tools.json").write_text(json.dumps(TOOLS))
    return folder


def tinyinfer(*argv: object, input: str = "") -> SimpleNamespace:
    """The command in this process: starting another for each would take most of the time."""
    out, err, stdin = io.StringIO(), io.StringIO(), io.TextIOWrapper(io.BytesIO(input.encode()))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(sys, "stdin", stdin):
        code = main([*map(str, argv)])
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def without_ids(calls: list[dict]) -> list[dict]:
    assert all(len(call.pop("id")) == 9 for call in calls)
    return calls


def test_calls_come_as_json_after_the_text(models: Path):
    done = tinyinfer("run", models / "calls", "Hello", "--tools", models / "tools.json")
    assert done.returncode == 0
    assert without_ids(json.loads(done.stdout)) == CALLED
    assert "ended by the model" in done.stderr
    done = tinyinfer("run", models / "speaks and calls", "Hello", "--tools", models / "tools.json")
    text, _, calls = done.stdout.partition("\n")
    assert (text, without_ids(json.loads(calls))) == ("Wait.", CALLED)


def test_json_holds_the_calls(models: Path):
    done = tinyinfer("run", models / "speaks and calls", "Hello", "--tools", models / "tools.json", "--json")
    record = json.loads(done.stdout)
    assert (record["text"], record["reasoning"], record["finish_reason"]) == ("Wait.", "", "tool_calls")
    assert without_ids(record["tool_calls"]) == CALLED
    done = tinyinfer("run", models / "calls", "Hello", "--json")
    assert json.loads(done.stdout)["tool_calls"] == []


def test_the_format_can_be_named(models: Path):
    done = tinyinfer("run", models / "calls", "Hello", "--tool-format", "hermes")
    assert without_ids(json.loads(done.stdout)) == CALLED
    assert "--tool-format should be one of" in refused(
        tinyinfer("run", models / "calls", "Hello", "--tool-format", "x")
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"null", "expected a list of tools, found null"),
        (b"{}", "--tools should be a list of dicts"),
        (b"[1]", "--tools should be a list of dicts"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_bad_files_of_tools(models: Path, tmp_path: Path, content: bytes, sentence: str):
    (tmp_path / "tools.json").write_bytes(content)
    assert sentence in refused(tinyinfer("run", models / "calls", "Hello", "--tools", tmp_path / "tools.json"))


def test_where_tools_have_no_place(models: Path):
    tools = models / "tools.json"
    assert "no place for tools" in refused(tinyinfer("run", models / "plain", "Hello", "--tools", tools))
    assert "--tools needs a chat template" in refused(tinyinfer("run", models / "bare", "Hello", "--tools", tools))
    assert "--raw" in refused(tinyinfer("run", models / "calls", "Hello", "--tools", tools, "--raw"))
    assert "nowhere" in refused(tinyinfer("run", models / "calls", "Hello", "--tools", "nowhere"))


@pytest.mark.parametrize("argv", [["run", "Hello"], ["chat"], ["run", "Hello", "--samples", "1"]])
def test_reasoning_is_on_standard_error(models: Path, argv: list[str]):
    command, rest = argv[0], argv[1:]
    ask = {"input": "Hello\n"} if command == "chat" else {}
    done = tinyinfer(command, models / "thinks", *rest, **ask)
    assert done.stdout == "Yes.\n"
    assert "hm\n\n" in done.stderr
    for flag in ("--hide-reasoning", "--hidethinking", "-q"):
        done = tinyinfer(command, models / "thinks", *rest, flag, **ask)
        assert (done.stdout, "hm" in done.stderr) == ("Yes.\n", False)


def test_reasoning_that_is_cut_ends_its_line(models: Path):
    done = tinyinfer("run", models / "thinks", "Hello", "-n", "2", "-v")
    assert (done.stdout, "hm\n" in done.stderr) == ("\n", True)


def test_json_has_the_reasoning_and_shows_none(models: Path):
    done = tinyinfer("run", models / "thinks", "Hello", "--json")
    record = json.loads(done.stdout)
    assert (record["reasoning"], record["text"], "hm" in done.stderr) == ("hm", "Yes.", False)


@pytest.mark.parametrize(("variables", "dim"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_reasoning_is_dim_on_a_terminal(models: Path, variables: dict[str, str], dim: bool):
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "run", models / "thinks", "Hello"], stderr=theirs, stdout=subprocess.PIPE, timeout=60,
        env=environment() | variables,
    )  # fmt: skip
    os.close(theirs)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert done.stdout == b"Yes.\n"
    assert ("\x1b[2mhm\x1b[0m" in said) == dim
    assert "hm" in said


@pytest.mark.parametrize("argv", [["run", "Hello"], ["chat"]])
def test_whole_characters_only(models: Path, argv: list[str]):
    ask = {"input": "Hello\n"} if argv == ["chat"] else {}
    assert tinyinfer(argv[0], models / "plain", *argv[1:], "--graphemes", **ask).stdout == "Hi!\n"

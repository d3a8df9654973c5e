"""Ctrl-C in commands that run for long: 130, no traceback, nothing half written."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.chain_models import say, write_chain_model
from tests.cli.commands import COMMAND, environment

LONG = 10**6  # tokens, prompts or rounds: more than anyone waits for


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says "talk " for ever."""
    chain = say("talk ", end=None)
    return write_chain_model(tmp_path_factory.mktemp("models") / "endless", chain, context=10**6)


def interrupted(argv: list[object], cwd: Path, after: float) -> subprocess.Popen:
    """Start a command that does not end by itself, and press Ctrl-C once it has begun to work."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, argv)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(), cwd=cwd,
    )  # fmt: skip
    timer = threading.Timer(after, process.send_signal, [signal.SIGINT])
    timer.start()
    _, process.errors = process.communicate(timeout=60)
    timer.cancel()
    return process


def commands(model: Path, folder: Path) -> dict[str, list[object]]:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10**5, "ignore_eos": True}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (folder / "in.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "text.txt").write_text("talk " * 150_000)
    answer = ["run", model, "x", "--ignore-eos", "-n", LONG]
    return {
        "beams": ["run", model, "x", "--num-beams", 3, "--ignore-eos", "-n", LONG],
        "samples": [*answer, "--samples", 3],
        "drafts": [*answer, "--speculate", "int8"],
        "prompt cache": [*answer, "--prompt-cache", folder / "new.cache"],
        "perplexity": ["perplexity", model, "--text", folder / "text.txt", "--stride", 1],
        "batch": ["batch", model, folder / "in.jsonl", folder / "out.jsonl"],
        "bench": ["bench", model, "--decode", 8, "--prefill", "", "--batch", "", "--repeats", LONG],
        "bench of drafts": ["bench", model, "--speculate", "ngram", "-n", 1000, "--repeats", LONG],
        "lab": ["lab", "all", "-m", model, "--out", folder / "page"],
    }


@pytest.mark.parametrize("name", [
    "beams", "samples", "drafts", "prompt cache", "perplexity", "batch", "bench", "bench of drafts", "lab",
])  # fmt: skip
def test_ctrl_c(model: Path, tmp_path: Path, name: str):
    argv = commands(model, tmp_path)[name]
    process = interrupted(argv, tmp_path, 2.0)
    assert process.returncode == 130, process.errors
    assert b"Traceback" not in process.errors
    left = {path.name for path in tmp_path.iterdir()} - {"in.jsonl", "text.txt", ".out.jsonl.lock", "page"}
    assert left <= {"out.jsonl"}
    if left:
        assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert not [path for path in tmp_path.rglob("*") if re.search(r"partial|\.old", path.name)]
